// adds: flat matrices: a block keeps its columns of x in registers and walks down all rows, so x is read once, and all blocks together read row after row
// costs: a row of partial sums a block, as many blocks as the device holds, or several times that; a second launch that adds them
// loses when: a row does not fill the device: a thread then has few of its vectors, and too little is on its way
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/behind.cuh"
#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

constexpr int THREADS = 256, EACH = 6, MOST = 64;  // vectors of a row a thread; rows

// Block b has `share` vectors of every row from b share on. gPartial is [M, gridDim.x].
template <typename T>
__global__ void __launch_bounds__(THREADS, 3) slices(float* __restrict__ gPartial, const T* __restrict__ gA, const T* __restrict__ gX, int M, long long K,
                                                     long long stride_m, int share) {
  ROOFTILE_CHECK_BLOCK(THREADS);
  constexpr int WIDTH = 16 / sizeof(T), WARPS = THREADS / WARP;
  __shared__ float sSum[MOST][WARPS];
  const long long vectors = K / WIDTH, first = blockIdx.x * (long long)share + threadIdx.x;
  const int count = int(min(blockIdx.x * (long long)share + share, vectors) - first);  // one in THREADS of them is this thread's
  const Policy policy = evict_first(M * K * (long long)sizeof(T));
  let_next_stand_by();
  const uint4* gNext = reinterpret_cast<const uint4*>(gA) + first;
  const long long stride = stride_m / WIDTH;
  uint4 rA[EACH] = {}, rX[EACH] = {};  // zeros behind the slice
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    if (j * THREADS < count) rA[j] = load_global(gNext + j * THREADS, policy);
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    if (j * THREADS < count) load_now(rX[j], reinterpret_cast<const uint4*>(gX) + first + j * THREADS);
#pragma unroll 1
  for (int i_m = 0; i_m < M; ++i_m) {
    const unsigned zero = hidden_zero(i_m);
    float sum = 0.0f;
    gNext += stride;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      float rF[WIDTH], rXf[WIDTH];
      if (WIDTH > 4) stay_packed(rX[j], zero);
      unpack<T>(rF, rA[j]), unpack<T>(rXf, rX[j]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rXf[k];
      if (i_m + 1 < M && j * THREADS < count) load_behind(rA[j], gNext + j * THREADS, policy, sum);
    }
    sum = warp_reduce(sum, Sum());
    if (lane() == 0) sSum[i_m][warp()] = sum;
  }
  __syncthreads();
  const int i_m = threadIdx.x;
  if (i_m >= M) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) total += sSum[i_m][w];
  if (blockIdx.x == gridDim.x - 1)  // fewer columns than WIDTH are left
#pragma unroll 1
    for (long long k = vectors * WIDTH; k < K; ++k) total += float(gA[i_m * stride_m + k]) * float(gX[k]);
  gPartial[i_m * (long long)gridDim.x + blockIdx.x] = total;
}

// out = the sums of a row's slices: a block a row, whose lanes ask for all that they have before one is added.
template <typename T>
__global__ void ROOFTILE_EARLY __launch_bounds__(THREADS) join(T* __restrict__ gOut, const float* __restrict__ gPartial, int slices) {
  constexpr int AT_ONCE = 4;
  float sum = 0.0f;
  earlier_done();
#pragma unroll 1
  for (int i = threadIdx.x; i < slices; i += AT_ONCE * THREADS) {
    Vec<float, 1> r[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      fill(r[k], 0.0f);
      if (i + k * THREADS < slices) load_global(r[k], gPartial + blockIdx.x * (long long)slices + i + k * THREADS);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) sum += r[k][0];
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gOut[blockIdx.x] = T(sum);
}
