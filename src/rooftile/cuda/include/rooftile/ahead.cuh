// What is asked for long before it is used. A load of memory that nobody writes (`const __restrict__`, __ldg) may pass barriers and stores, and where registers
// are few the assembler has it stand as late as it can: a row's statistics, asked for a row ahead, were asked for at that row's end, and waited for.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

// Before the next barrier and the next store; 0 where it is not there.
ROOFTILE_DEVICE float ask_ahead(const float* gX, bool there) {
#ifdef ROOFTILE_SIMULATOR
  return there ? *gX : 0.0f;
#else
  float x;
  asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %2, 0;\nmov.f32 %0, 0f00000000;\n@there ld.global.f32 %0, [%1];\n}"
               : "=f"(x)
               : "l"(gX), "r"(unsigned(there))
               : "memory");
  return x;
#endif
}

}  // namespace rooftile
