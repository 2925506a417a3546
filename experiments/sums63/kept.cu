// adds: a block keeps its columns of x in registers and walks down all rows: x is read once, and all blocks together read a row at a time, in the order of addresses
// costs: registers for x beside the row that is on its way; a second launch adds the slices
// loses when: rows are short: a thread has then less than a few vectors of a row, and too few of them are on their way
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int MOST = 128;  // rows

ROOFTILE_DEVICE void load_behind(uint4& rX, const uint4* gX, Policy policy, float& run) {
#ifdef ROOFTILE_SIMULATOR
  rX = load_global(gX, policy);
#else
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;"
               : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w), "+f"(run)
               : "l"(__cvta_generic_to_global(gX)), "l"(policy));
#endif
}

// Block b has `share` vectors of every row from b share on, EACH a thread at most. gPartial is [M, gridDim.x].
template <typename T, int THREADS, int EACH, int PER>
__global__ void __launch_bounds__(THREADS, PER) slices(float* __restrict__ gPartial, const T* __restrict__ gA, const T* __restrict__ gX, int M, long long K,
                                                               long long stride_m, int share) {
  constexpr int WIDTH = 16 / sizeof(T), WARPS = THREADS / WARP;
  __shared__ float sSum[MOST][WARPS];
  const long long vectors = K / WIDTH, first = blockIdx.x * (long long)share;
  const int count = int(min((long long)share, vectors - first)), t = threadIdx.x;
  const Policy policy = evict_first(M * K * (long long)sizeof(T));  // of the matrix: slices are written, x may be asked for again
  let_next_stand_by();
  const T* gRow = gA + (first + t) * WIDTH;
  uint4 rA[EACH] = {}, rX[EACH] = {};  // zeros behind the slice
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    if (j * THREADS + t < count) rA[j] = load_global(reinterpret_cast<const uint4*>(gRow) + j * THREADS, policy);
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    if (j * THREADS + t < count) load_now(rX[j], reinterpret_cast<const uint4*>(gX) + first + t + j * THREADS);
#pragma unroll 1
  for (int m = 0; m < M; ++m) {
    const unsigned zero = hidden_zero(m);
    float sum = 0.0f;
    gRow += stride_m;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      float rP[WIDTH], rQ[WIDTH];
      if constexpr (WIDTH > 4) stay_packed(rX[j], zero);
      unpack<T>(rP, rA[j]), unpack<T>(rQ, rX[j]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rP[k] * rQ[k];
      if (m + 1 < M && j * THREADS + t < count) load_behind(rA[j], reinterpret_cast<const uint4*>(gRow) + j * THREADS, policy, sum);
    }
    sum = warp_reduce(sum, Sum());
    if (lane() == 0) sSum[m][warp()] = sum;
  }
  __syncthreads();
  const long long rest = vectors * WIDTH;  // fewer columns than WIDTH are left; the last slice takes them
  for (int m = t; m < M; m += THREADS) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += sSum[m][w];
    if (blockIdx.x == gridDim.x - 1)
#pragma unroll 1
      for (long long k = rest; k < K; ++k) total += float(gA[m * stride_m + k]) * float(gX[k]);
    gPartial[m * (long long)gridDim.x + blockIdx.x] = total;
  }
}

// out = the sums of a row's slices: a block a row; 8 of a lane are asked for before one is added.
template <typename T>
__global__ void ROOFTILE_EARLY __launch_bounds__(128) join(T* __restrict__ gOut, const float* __restrict__ gPartial, int slices) {
  constexpr int EACH = 4, THREADS = 128;
  __shared__ float sSum[THREADS / WARP];
  const float* gRow = gPartial + blockIdx.x * (long long)slices;
  float sum = 0;
  earlier_done();
#pragma unroll 1
  for (int i = threadIdx.x; i < slices; i += EACH * THREADS) {
    float r[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) r[k] = i + k * THREADS < slices ? gRow[i + k * THREADS] : 0.0f;
#pragma unroll
    for (int k = 0; k < EACH; ++k) sum += r[k];
  }
  sum = warp_reduce(sum, Sum());
  if (lane() == 0) sSum[warp()] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int w = 1; w < THREADS / WARP; ++w) sum += sSum[w];
  gOut[blockIdx.x] = T(sum);
}
