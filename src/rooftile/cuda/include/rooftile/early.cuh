// A kernel that is launched while the one before it in its stream still runs (programmatic dependent launch, Hopper and later; elsewhere it
// waits its turn): its blocks take the places that those of the other leave, and stand by.
#pragma once
#include "rooftile/check.cuh"

// In a kernel's declaration, beside __launch_bounds__: it is launched so. Such a kernel calls earlier_done() before it touches memory.
#define ROOFTILE_EARLY

namespace rooftile {

#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 900
// Until the launches before have ended, and what they wrote is seen.
ROOFTILE_DEVICE void earlier_done() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Of the kernel before: whoever comes next may stand by from here on, once all blocks have said so or ended.
ROOFTILE_DEVICE void let_next_stand_by() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
ROOFTILE_DEVICE void earlier_done() {}
ROOFTILE_DEVICE void let_next_stand_by() {}
#endif

}  // namespace rooftile
