// Blocks of a cluster, which run together and write into each other's shared memory: Hopper and later.
#pragma once
#include "rooftile/mbarrier.cuh"
#include "rooftile/rows.cuh"

#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 900
#define ROOFTILE_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else  // compiled for an older architecture it is a kernel that must not be launched
#define ROOFTILE_CLUSTER(blocks)
#endif

namespace rooftile {

#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 900
ROOFTILE_DEVICE int cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}
// All threads of all blocks must come. What they wrote before it, into whichever block, is seen after it.
ROOFTILE_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Its two halves: what lies between them runs while the others come.
ROOFTILE_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
ROOFTILE_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Says that this block is there and, by mbarrier_fence, its barriers. The other arrive waits until all this thread has written is seen by the
// whole device, a microsecond where that goes to memory.
ROOFTILE_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
// The address that *sX has in the shared memory of the block of that rank.
ROOFTILE_DEVICE unsigned cluster_address(const void* sX, int rank) {
  unsigned to;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(sX)), "r"(rank));
  return to;
}
// To that place.
ROOFTILE_DEVICE void store_cluster(float* sX, int rank, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address(sX, rank)), "f"(value) : "memory");
}
// The same, counted in by the mbarrier that has this one's place there, as the bytes of a copy are: nobody else waits for it.
ROOFTILE_DEVICE void store_async(float* sX, int rank, float value, MBarrier* sBarrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(cluster_address(sX, rank)), "f"(value),
               "r"(cluster_address(sBarrier, rank))
               : "memory");
}
ROOFTILE_DEVICE void store_async(float* sX, int rank, float a, float b, MBarrier* sBarrier) {  // 8 bytes, at a multiple of 8
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(cluster_address(sX, rank)), "f"(a), "f"(b),
               "r"(cluster_address(sBarrier, rank))
               : "memory");
}
#elif defined(ROOFTILE_SIMULATOR)
ROOFTILE_DEVICE int cluster_rank() { return int(rooftile_sim_cluster_rank()); }
ROOFTILE_DEVICE void cluster_arrive() { rooftile_sim_cluster_arrive(); }
ROOFTILE_DEVICE void cluster_arrive_relaxed() { rooftile_sim_cluster_arrive(); }
ROOFTILE_DEVICE void cluster_wait() { rooftile_sim_cluster_wait(); }
ROOFTILE_DEVICE void cluster_sync() { rooftile_sim_cluster_arrive(), rooftile_sim_cluster_wait(); }
ROOFTILE_DEVICE void store_cluster(float* sX, int rank, float value) { rooftile_sim_store_cluster(sX, rank, &value, 4); }
ROOFTILE_DEVICE void store_async(float* sX, int rank, float value, MBarrier* sBarrier) { rooftile_sim_store_async(sX, rank, &value, 4, sBarrier); }
ROOFTILE_DEVICE void store_async(float* sX, int rank, float a, float b, MBarrier* sBarrier) {
  const float both[2] = {a, b};
  rooftile_sim_store_async(sX, rank, both, 8, sBarrier);
}
#else
ROOFTILE_DEVICE int cluster_rank() { return 0; }
ROOFTILE_DEVICE void cluster_arrive() {}
ROOFTILE_DEVICE void cluster_arrive_relaxed() {}
ROOFTILE_DEVICE void cluster_wait() { __trap(); }
ROOFTILE_DEVICE void cluster_sync() { __trap(); }
ROOFTILE_DEVICE void store_cluster(float*, int, float) { __trap(); }
ROOFTILE_DEVICE void store_async(float*, int, float, MBarrier*) { __trap(); }
ROOFTILE_DEVICE void store_async(float*, int, float, float, MBarrier*) { __trap(); }
#endif
ROOFTILE_DEVICE void store_cluster(Online* sX, int rank, Online value) {
  store_cluster(&sX->max, rank, value.max);
  store_cluster(&sX->sum, rank, value.sum);
}
ROOFTILE_DEVICE void store_cluster(Pair* sX, int rank, Pair value) {
  store_cluster(&sX->a, rank, value.a);
  store_cluster(&sX->b, rank, value.b);
}

// Over the CLUSTER blocks of THREADS threads that hold one row, as row_reduce over one: each warp sends its part to every block.
template <int CLUSTER, int THREADS, typename T, typename Op>
ROOFTILE_DEVICE T cluster_reduce(T value, Op op, T (&sPartial)[2][CLUSTER * THREADS / WARP], int parity) {
  constexpr int PARTS = CLUSTER * THREADS / WARP;
  static_assert(power_of_two(PARTS) && CLUSTER <= 8, "a cluster is 1, 2, 4 or 8 blocks");
  value = group_reduce<WARP>(value, op);
  if (lane() < CLUSTER) store_cluster(&sPartial[parity][cluster_rank() * (THREADS / WARP) + warp()], lane(), value);
  cluster_sync();
  value = sPartial[parity][lane() % PARTS];
#pragma unroll
  for (int i = WARP; i < PARTS; i += WARP) value = op(value, sPartial[parity][i + lane()]);
  return group_reduce<(PARTS < WARP ? PARTS : WARP)>(value, op);
}

ROOFTILE_DEVICE void store_async(Online* sX, int rank, Online value, MBarrier* sBarrier) { store_async(&sX->max, rank, value.max, value.sum, sBarrier); }
ROOFTILE_DEVICE void store_async(Pair* sX, int rank, Pair value, MBarrier* sBarrier) { store_async(&sX->a, rank, value.a, value.b, sBarrier); }

// What the blocks of a cluster tell each other of a row: a T from each of their warps. A barrier in each block counts the bytes, so a warp
// waits for what it reads and for nothing else. Rows take turns with TURNS places, and a place is written again no sooner than all have read
// it. With 2, who sends for turn i + 2 has all parts of turn i + 1, and a warp sends its part of that when it has read those of turn i.
// Warps that send a turn ahead of the one they wait for need 4; a row alone needs 1.
template <typename T, int CLUSTER, int THREADS, int TURNS = 2> struct Exchange {  // in shared memory
  static constexpr int PARTS = CLUSTER * THREADS / WARP, BYTES = PARTS * int(sizeof(T));
  static_assert(power_of_two(PARTS) && CLUSTER <= 8, "a cluster is 1, 2, 4 or 8 blocks");
  static_assert(power_of_two(TURNS), "turns are counted in binary");
  alignas(8) T part[TURNS][PARTS];
  MBarrier barrier[TURNS];
};

// All threads come; cluster_wait must stand between it and the first send.
template <typename T, int CLUSTER, int THREADS, int TURNS> ROOFTILE_DEVICE void exchange_open(Exchange<T, CLUSTER, THREADS, TURNS>& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < TURNS; ++i) mbarrier_init(&s.barrier[i], 1);
    mbarrier_fence();
    for (int i = 0; i < TURNS; ++i) mbarrier_arrive_expect(&s.barrier[i], s.BYTES);
  }
  cluster_arrive_relaxed();
}
// This warp's part of a row, to every block.
template <typename T, int CLUSTER, int THREADS, int TURNS>
ROOFTILE_DEVICE void exchange_send(Exchange<T, CLUSTER, THREADS, TURNS>& s, unsigned turn, T value) {
  __syncwarp();  // what the warp has read of turn - TURNS it has read before
  if (lane() < CLUSTER) store_async(&s.part[turn % TURNS][cluster_rank() * (THREADS / WARP) + warp()], lane(), value, &s.barrier[turn % TURNS]);
}
// Until all parts of the row are in s.part[turn % TURNS].
template <typename T, int CLUSTER, int THREADS, int TURNS> ROOFTILE_DEVICE void exchange_wait(Exchange<T, CLUSTER, THREADS, TURNS>& s, unsigned turn) {
  mbarrier_wait(&s.barrier[turn % TURNS], turn / TURNS & 1);
  if (threadIdx.x == 0) mbarrier_arrive_expect(&s.barrier[turn % TURNS], s.BYTES);  // of turn + TURNS
}
template <typename T, int CLUSTER, int THREADS, int TURNS, typename Op>
ROOFTILE_DEVICE T exchange_reduce(Exchange<T, CLUSTER, THREADS, TURNS>& s, unsigned turn, Op op) {
  constexpr int PARTS = CLUSTER * THREADS / WARP;
  exchange_wait(s, turn);
  T value = s.part[turn % TURNS][lane() % PARTS];
#pragma unroll 1  // 8 parts a lane at most, beside 32 elements of the row in 64 registers
  for (int i = WARP; i < PARTS; i += WARP) value = op(value, s.part[turn % TURNS][i + lane()]);
  return group_reduce<(PARTS < WARP ? PARTS : WARP)>(value, op);
}

// The mean of a row of N columns and the sum of squared differences from it, of parts of SPAN columns, a warp's each, of which are told the sum
// and the squared differences from the part's own mean (Chan, Golub and LeVeque, 1979). Nothing cancels, and one exchange does.
template <int SPAN, int CLUSTER, int THREADS, int TURNS>
ROOFTILE_DEVICE Pair exchange_moments(Exchange<Pair, CLUSTER, THREADS, TURNS>& s, unsigned turn, int N) {
  constexpr int PARTS = CLUSTER * THREADS / WARP, LANES = PARTS < WARP ? PARTS : WARP, EACH = PARTS / LANES;
  exchange_wait(s, turn);
  float sum = 0.0f, square = 0.0f;
#pragma unroll 1
  for (int i = 0; i < EACH; ++i) sum += s.part[turn % TURNS][i * WARP + lane() % LANES].a;
  const float mean = warp_reduce<LANES>(sum, Sum()) / N;
#pragma unroll 1
  for (int i = 0; i < EACH; ++i) {
    const int columns = min(SPAN, N - (i * WARP + lane() % LANES) * SPAN);
    if (columns <= 0) continue;
    const Pair p = s.part[turn % TURNS][i * WARP + lane() % LANES];
    const float away = p.a / columns - mean;
    square += p.b + columns * away * away;
  }
  return {mean, warp_reduce<LANES>(square, Sum())};
}

}  // namespace rooftile
