// Reads into the registers of what has just been used: as many bytes are on their way as a thread has registers for, and none wait for the whole to be used.
#pragma once
#include "rooftile/policy.cuh"

namespace rooftile {

// load_global of policy.cuh into rX, whose numbers have been added to `sum`. Asked for before that they would come into other registers and be copied from
// there, which waits for them: so the compiler is told that sum hangs on the load.
ROOFTILE_DEVICE void load_behind(uint4& rX, const void* gX, Policy policy, float& sum) {
#ifdef ROOFTILE_SIMULATOR
  rX = load_global(static_cast<const uint4*>(gX), policy);
#else
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;"
               : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w), "+f"(sum)
               : "l"(__cvta_generic_to_global(gX)), "l"(policy));
#endif
}

}  // namespace rooftile
