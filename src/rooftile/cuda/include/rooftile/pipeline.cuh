// A ring of STAGES tiles in shared memory between threads that fill them and warps that use them: Hopper and later. Each side walks the
// ring with a Stage of its own.
//
//   producer, one thread:  for (...; ++at) { producer_acquire(ring, at, BYTES); tensor_load(sX[at.index], map, &ring.full[at.index], ...); }
//   consumer, each warp:   for (...; ++at) { consumer_wait(ring, at); ... consumer_release(ring, at); }
#pragma once
#include "rooftile/mbarrier.cuh"

namespace rooftile {

template <int STAGES> struct Pipeline {  // in shared memory
  static_assert(STAGES >= 1 && STAGES <= 64, "a ring has 1 to 64 stages");
  MBarrier full[STAGES], empty[STAGES];
};

template <int STAGES> struct Stage {  // in registers
  int index = 0, parity = 0;
  ROOFTILE_DEVICE void operator++() {
    if (++index == STAGES) index = 0, parity ^= 1;
  }
};

// By one thread, before a __syncthreads. producers: how many threads acquire with bytes, or commit, each stage; consumers: how many warps release it.
template <int STAGES> ROOFTILE_DEVICE void pipeline_init(Pipeline<STAGES>& sRing, int producers, int consumers) {
  for (int i = 0; i < STAGES; ++i) {
    mbarrier_init(&sRing.full[i], producers);
    mbarrier_init(&sRing.empty[i], consumers);
  }
  mbarrier_fence();
}

// Until the stage is free. The first round finds all of them so: the parity before a barrier's first phase passes.
template <int STAGES> ROOFTILE_DEVICE void producer_acquire(Pipeline<STAGES>& sRing, const Stage<STAGES>& at) {
  mbarrier_wait(&sRing.empty[at.index], at.parity ^ 1);
}
// The same where copies fill the stage, with so many bytes in all on sRing.full[at.index]; they need no commit.
template <int STAGES> ROOFTILE_DEVICE void producer_acquire(Pipeline<STAGES>& sRing, const Stage<STAGES>& at, int bytes) {
  producer_acquire(sRing, at);
  mbarrier_arrive_expect(&sRing.full[at.index], bytes);
}
// A stage that this thread has filled with stores. What wgmma or a copy is to read wants a fence_async before.
template <int STAGES> ROOFTILE_DEVICE void producer_commit(Pipeline<STAGES>& sRing, const Stage<STAGES>& at) { mbarrier_arrive(&sRing.full[at.index]); }

template <int STAGES> ROOFTILE_DEVICE void consumer_wait(Pipeline<STAGES>& sRing, const Stage<STAGES>& at) {
  mbarrier_wait(&sRing.full[at.index], at.parity);
}
// By a whole warp that has read what it wants of the stage; a wgmma has when it was waited for.
template <int STAGES> ROOFTILE_DEVICE void consumer_release(Pipeline<STAGES>& sRing, const Stage<STAGES>& at) {
  __syncwarp();
  if (lane() == 0) mbarrier_arrive(&sRing.empty[at.index]);
}

}  // namespace rooftile
