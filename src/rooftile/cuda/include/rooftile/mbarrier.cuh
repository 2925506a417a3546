// Barriers that count arrivals and bytes: Hopper and later. A phase is complete when all arrivals have come and all bytes that were
// announced; then the next begins. Phases alternate between parity 0 and 1: the n-th wait on a barrier, from 0, is for parity n % 2, and
// parity 1 of a barrier nobody has arrived at passes, which is what the first producer of a ring wants. In the simulator a thread waits
// without spinning, and a wait that nothing can end is a finding.
#pragma once
#include "rooftile/check.cuh"

#if __CUDA_ARCH__ >= 900
#define ROOFTILE_SM90(...) asm volatile(__VA_ARGS__)
#else  // compiled for an older architecture it is a kernel that must not be launched
#define ROOFTILE_SM90(...) __trap()
#endif

namespace rooftile {

struct alignas(8) MBarrier {  // in shared memory
  unsigned long long state;
};

// The address that instructions on shared memory take.
ROOFTILE_DEVICE unsigned shared_address(const void* sX) {
#ifdef ROOFTILE_SIMULATOR
  return rooftile_sim_shared_address(sX);
#else
  return static_cast<unsigned>(__cvta_generic_to_shared(sX));
#endif
}

// One thread initialises; then mbarrier_fence by that thread, which shows the barriers to the copy engine, then __syncthreads.
ROOFTILE_DEVICE void mbarrier_init(MBarrier* sBarrier, int arrivals) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_mbarrier_init(sBarrier, arrivals);
#else
  ROOFTILE_SM90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(sBarrier)), "r"(arrivals) : "memory");
#endif
}
ROOFTILE_DEVICE void mbarrier_fence() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_mbarrier_fence();
#else
  ROOFTILE_SM90("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

ROOFTILE_DEVICE void mbarrier_arrive(MBarrier* sBarrier) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_mbarrier_arrive(sBarrier, 0);
#else
  ROOFTILE_SM90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(sBarrier)) : "memory");
#endif
}

// The phase is not complete before copies have brought so many bytes more. Announce before the copies are issued, as they may be quick.
ROOFTILE_DEVICE void mbarrier_expect(MBarrier* sBarrier, int bytes) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_mbarrier_expect(sBarrier, bytes);
#else
  ROOFTILE_SM90("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(sBarrier)), "r"(bytes) : "memory");
#endif
}
// Both in one instruction.
ROOFTILE_DEVICE void mbarrier_arrive_expect(MBarrier* sBarrier, int bytes) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_mbarrier_arrive(sBarrier, bytes);
#else
  ROOFTILE_SM90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(sBarrier)), "r"(bytes) : "memory");
#endif
}

// Whether the phase of this parity is complete: the present one has the other parity.
ROOFTILE_DEVICE bool mbarrier_test(MBarrier* sBarrier, int parity) {
#ifdef ROOFTILE_SIMULATOR
  return rooftile_sim_mbarrier_test(sBarrier, parity);
#else
  unsigned done = 0;
  ROOFTILE_SM90("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                : "=r"(done)
                : "r"(shared_address(sBarrier)), "r"(parity)
                : "memory");
  return done;
#endif
}
// Until it is. What the arriving threads wrote and the copies brought is seen after it.
ROOFTILE_DEVICE void mbarrier_wait(MBarrier* sBarrier, int parity) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_mbarrier_wait(sBarrier, parity);
#else
  ROOFTILE_SM90("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(shared_address(sBarrier)),
                "r"(parity)
                : "memory");
#endif
}

// What this thread has written to shared memory so far, bulk and tensor copies and wgmma see after the next barrier that follows this.
ROOFTILE_DEVICE void fence_async() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_fence_async(0);
#else
  ROOFTILE_SM90("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// The same of global memory, which later copies read.
ROOFTILE_DEVICE void fence_async_global() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_fence_async(1);
#else
  ROOFTILE_SM90("fence.proxy.async.global;" ::: "memory");
#endif
}

// A barrier of so many threads of the block, whole warps: 1 to 15; 0 is __syncthreads. Those that only arrive go on without waiting.
ROOFTILE_DEVICE void barrier_sync(int id, int threads) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_named_barrier(id, threads, 1);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
ROOFTILE_DEVICE void barrier_arrive(int id, int threads) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_named_barrier(id, threads, 0);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace rooftile
