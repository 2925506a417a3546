// Blocks of a cluster, which run together and write into each other's shared memory: Hopper and later. The simulator knows clusters of one.
#pragma once
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
// To the place that *sX has in the shared memory of the block of that rank.
ROOFTILE_DEVICE void store_cluster(float* sX, int rank, float value) {
  unsigned to;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(sX))), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
#else
ROOFTILE_DEVICE int cluster_rank() { return 0; }
ROOFTILE_DEVICE void cluster_sync() { __syncthreads(); }
ROOFTILE_DEVICE void store_cluster(float* sX, int, float value) { *sX = value; }
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

}  // namespace rooftile
