// Sums in memory, 16 bytes an instruction: Hopper and later.
#pragma once
#include "rooftile/mbarrier.cuh"

namespace rooftile {

// In any order with who adds there too; g is a multiple of 16 bytes.
ROOFTILE_DEVICE void add_four(float* g, float a, float b, float c, float d) {
#ifdef ROOFTILE_SIMULATOR
  atomicAdd(g, a), atomicAdd(g + 1, b), atomicAdd(g + 2, c), atomicAdd(g + 3, d);
#else
  ROOFTILE_SM90("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(g)), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
#endif
}

}  // namespace rooftile
