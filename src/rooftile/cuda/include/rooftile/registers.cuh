// What the assembler keeps in registers, and in which, where a kernel has none to spare.
#pragma once
#include "rooftile/mbarrier.cuh"
#include "rooftile/wgmma.cuh"

namespace rooftile {

// The same in all lanes of a warp, and what the assembler cannot make anew: it stays in the uniform registers that descriptors are read from, where what
// follows from threadIdx would be brought there before each product, and an address of shared memory be made from its parts in each step.
ROOFTILE_DEVICE unsigned uniform(unsigned x) { return __shfl_sync(ALL_LANES, x, 0); }
template <typename T> ROOFTILE_DEVICE T* uniform(T* sX) {
#ifdef ROOFTILE_SIMULATOR
  return sX;
#else
  return static_cast<T*>(__cvta_shared_to_generic(uniform(shared_address(sX))));
#endif
}

// A number of which the assembler does not know that it was there before: what follows from it would be computed ahead of a walk, or of all of them, and
// there are no registers to keep it in.
ROOFTILE_DEVICE unsigned anew(unsigned x) {
  unsigned as_array[1] = {x};
  pin(as_array);
  return as_array[0];
}

}  // namespace rooftile
