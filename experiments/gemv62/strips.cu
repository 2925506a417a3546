// adds: a cluster walks down a strip of columns and joins its sums in shared memory, hidden behind the writing: one launch, no partial rows
// costs: a strip is LANES x 16 bytes wide, so that a row is read by many multiprocessors at about one time
// loses when: strips times clusters leave many multiprocessors without a block
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/cluster.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T, int LANES, int THREADS, int EACH, int CLUSTER, bool TURNS, bool FIRST>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, (EACH > 4 ? 512 : 1024) / THREADS)
    strips(T* __restrict__ gDa, T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gA, const T* __restrict__ gX, long long M,
           long long K, long long stride_m) {
  ROOFTILE_CHECK_BLOCK(THREADS);
  constexpr int WIDTH = 16 / sizeof(T), ROWS = THREADS / LANES, COLUMNS = LANES * WIDTH, GROUP = LANES > WARP ? LANES : WARP;
  constexpr int PARTS = THREADS / GROUP;
  static_assert(COLUMNS <= THREADS, "a thread a column at the end");
  __shared__ alignas(16) float sSum[PARTS][COLUMNS];
  __shared__ float sAll[CLUSTER][COLUMNS];
  const int rank = CLUSTER > 1 ? cluster_rank() : 0;
  if (CLUSTER > 1) cluster_arrive_relaxed();  // that this block is there
  const long long strip = blockIdx.x / CLUSTER, i_k = (strip * LANES + threadIdx.x % LANES) * WIDTH;
  const bool in = i_k < K;
  const long long first = rank * ROWS + threadIdx.x / LANES, end = in ? M : 0;
  constexpr int STEP = CLUSTER * ROWS;
  float rXf[WIDTH], rSum[WIDTH] = {};
  if (in) {
    Wide<T> rX;
    load(rX, gX + i_k);
    to_float(rXf, rX);
  }
  const Policy policy = evict_first(M * K * (long long)sizeof(T));
  auto write = [&](long long row, float dout) {
    Wide<T> rDa;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rDa[k] = static_cast<T>(dout * rXf[k]);
    store_global(gDa + row * K + i_k, rDa);
  };
#pragma unroll 1
  for (long long i_m = first; i_m < end; i_m += EACH * STEP) {
    Wide<T> rA[EACH];
    float rDout[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * STEP;
      if (row >= M) continue;
      const T* g = gA + row * stride_m + i_k;
      if (FIRST) rA[j].whole = load_global(reinterpret_cast<const typename Wide<T>::Whole*>(g), policy);
      else load_global(rA[j], g);
      rDout[j] = static_cast<float>(gDout[row]);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * STEP;
      if (row >= M) continue;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += static_cast<float>(rA[j][k]) * rDout[j];
      if (!TURNS) write(row, rDout[j]);
    }
  }
  if (LANES < WARP)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k)
#pragma unroll
      for (int distance = LANES; distance < WARP; distance *= 2) rSum[k] += shuffle_xor(rSum[k], distance);
  if (threadIdx.x % GROUP < LANES)
#pragma unroll
    for (int k = 0; k < WIDTH; k += 4)
      *reinterpret_cast<float4*>(&sSum[threadIdx.x / GROUP][threadIdx.x % GROUP * WIDTH + k]) = {rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]};
  __syncthreads();
  if (CLUSTER > 1) cluster_wait();
  float total = 0.0f;
  if (threadIdx.x < COLUMNS) {
#pragma unroll 8
    for (int i = 0; i < PARTS; ++i) total += sSum[i][threadIdx.x];
    if (CLUSTER > 1) store_cluster(&sAll[rank][threadIdx.x], 0, total);
  }
  if (CLUSTER > 1) cluster_arrive();
  if (TURNS)
#pragma unroll 1
    for (long long i_m = first; i_m < end; i_m += EACH * STEP) {
      float rDout[EACH];
#pragma unroll
      for (int j = 0; j < EACH; ++j) rDout[j] = i_m + j * STEP < M ? static_cast<float>(gDout[i_m + j * STEP]) : 0.0f;
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (i_m + j * STEP < M) write(i_m + j * STEP, rDout[j]);
    }
  if (CLUSTER > 1) cluster_wait();
  if (rank || threadIdx.x >= COLUMNS) return;
  if (CLUSTER > 1) {
    total = 0.0f;
#pragma unroll
    for (int i = 0; i < CLUSTER; ++i) total += sAll[i][threadIdx.x];
  }
  if (strip * COLUMNS + threadIdx.x < K) gDx[strip * COLUMNS + threadIdx.x] = static_cast<T>(total);
}
