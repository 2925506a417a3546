// Blocks of a cluster at work: the same file runs on the GPU and in the simulator.
#include "rooftile/cluster.cuh"

using namespace rooftile;

// Row after row: the sum of its numbers, to each block's place in gOut [rows, CLUSTER].
template <int CLUSTER, int THREADS> __global__ void ROOFTILE_CLUSTER(CLUSTER) sums(float* gOut, const float* gX, int M, int N) {
  __shared__ Exchange<float, CLUSTER, THREADS> sParts;
  const int i_l = cluster_rank() * THREADS + threadIdx.x;
  exchange_open(sParts);
  cluster_wait();
  for (int i_m = 0; i_m < M; ++i_m) {
    exchange_send(sParts, i_m, warp_reduce(i_l < N ? gX[i_m * N + i_l] : 0.0f, Sum()));
    const float sum = exchange_reduce(sParts, i_m, Sum());
    if (threadIdx.x == 0) gOut[i_m * CLUSTER + cluster_rank()] = sum;
  }
}

// And the squares of how far they are from their mean.
template <int CLUSTER, int THREADS> __global__ void ROOFTILE_CLUSTER(CLUSTER) moments(float* gOut, const float* gX, int M, int N) {
  __shared__ Exchange<Pair, CLUSTER, THREADS> sParts;
  const int i_l = cluster_rank() * THREADS + threadIdx.x;
  exchange_open(sParts);
  cluster_wait();
  for (int i_m = 0; i_m < M; ++i_m) {
    const float x = i_l < N ? gX[i_m * N + i_l] : 0.0f, part = warp_reduce(x, Sum());
    const float own = part / max(1, min(WARP, N - i_l / WARP * WARP));
    exchange_send(sParts, i_m, Pair{part, warp_reduce(i_l < N ? (x - own) * (x - own) : 0.0f, Sum())});
    const Pair both = exchange_moments<WARP>(sParts, i_m, N);
    if (threadIdx.x == 0) gOut[i_m * CLUSTER + cluster_rank()] = both.b;
  }
}

// Each block hands the block after it what it has, in a ring.
template <int CLUSTER> __global__ void ROOFTILE_CLUSTER(CLUSTER) ring(float* gOut, const float* gX) {
  __shared__ float sX[64];
  const int i = blockIdx.x * 64 + threadIdx.x;
  cluster_sync();
  store_cluster(&sX[threadIdx.x], (cluster_rank() + 1) % CLUSTER, gX[i]);
  cluster_sync();
  gOut[i] = sX[63 - threadIdx.x];
}
