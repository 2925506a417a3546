// cp.async: from global to shared memory without passing through registers. Copies are gathered into groups; a thread waits for its own
// groups, and a barrier then tells the block. In the simulator bytes arrive at the wait that covers them and never before.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

// BYTES is 4, 8 or 16, and both addresses are multiples of it. Where `there` is false, zeros are written and gX is not read.
template <int BYTES> ROOFTILE_DEVICE void copy_async(void* sX, const void* gX, bool there = true) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_copy_async(sX, gX, BYTES, there ? 0 : BYTES);
#else
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(sX));
  const int bytes = there ? BYTES : 0;
  if constexpr (BYTES == 16) {  // .cg: past L1, whose lines such tiles would only fill
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(gX), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(gX), "n"(BYTES), "r"(bytes) : "memory");
  }
#endif
}

// The first `bytes` of 16, from none to all, and zeros behind them.
ROOFTILE_DEVICE void copy_async_part(void* sX, const void* gX, int bytes) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_copy_async(sX, gX, 16, 16 - bytes);
#else
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(sX));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(gX), "r"(bytes) : "memory");
#endif
}

// Ends the group that this thread's copies have gone into so far. An empty group counts too.
ROOFTILE_DEVICE void copy_commit() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_copy_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most LEFT of this thread's groups, the newest, are under way.
template <int LEFT> ROOFTILE_DEVICE void copy_wait() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_copy_wait(LEFT);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

}  // namespace rooftile
