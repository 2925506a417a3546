// adds: a block shares its ROWS rows, and flat matrices are cut into slices of columns, so that few rows still fill the device
// costs: a barrier a block; where there are slices, a second launch that adds them in one order, and 4 bytes a row and slice between the two
// loses when: rows are short: of 4096 bytes a block of 256 threads has one load each, and the barrier and the start weigh the most
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// rSum[r] += the products of EACH vectors of row r, `step` apart, with those of x. All are in flight before the first is used.
template <int EACH, typename T, int ROWS>
__device__ __forceinline__ void multiply(float (&rSum)[ROWS], const T* const (&gA)[ROWS], const T* gX, long long i, int step, Policy policy) {
  constexpr int WIDTH = 16 / sizeof(T);
  Wide<T> rA[ROWS][EACH], rX[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    load(rX[j], gX + (i + j * step) * WIDTH);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      rA[r][j].whole = load_global(reinterpret_cast<const typename Wide<T>::Whole*>(gA[r] + (i + j * step) * WIDTH), policy);
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    float rF[WIDTH];
    to_float(rF, rX[j]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[r] += static_cast<float>(rA[r][j][k]) * rF[k];
  }
}

// Block (x, y) takes rows x ROWS and the next, and `share` vectors of their columns from y share on. gOut is [M, gridDim.y]: the result itself
// where there is one slice. At least 768 threads a multiprocessor: 8 loads each are 96 KiB in flight, and leave 80 registers.
template <typename T, typename To, int THREADS, int ROWS, int EACH>
__global__ void __launch_bounds__(THREADS, 768 / THREADS) gemv(To* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX,
                                                              long long M, long long K, long long stride_m, long long share) {
  ROOFTILE_CHECK_BLOCK(THREADS);
  constexpr int WIDTH = 16 / sizeof(T), WARPS = THREADS / WARP;
  static_assert(ROWS <= THREADS, "a thread a row at the end");
  __shared__ float sSum[ROWS][WARPS];
  const long long i_m = blockIdx.x * (long long)ROWS, vectors = K / WIDTH, end = min((blockIdx.y + 1) * share, vectors);
  const T* gRow[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) gRow[r] = gA + min(i_m + r, M - 1) * stride_m;  // what is past the last row repeats it and is not written
  float rSum[ROWS] = {};
  long long i = blockIdx.y * share + threadIdx.x;
  const Policy policy = evict_first(M * K * (long long)sizeof(T));  // of the matrix: x is read by all
  let_next_stand_by();  // who adds up the slices
#pragma unroll 1  // the loads of one turn are enough in flight; unrolled on top of them, it spills
  for (; i + (EACH - 1) * THREADS < end; i += EACH * THREADS) multiply<EACH>(rSum, gRow, gX, i, THREADS, policy);
#pragma unroll 1
  for (; i < end; i += THREADS) multiply<1>(rSum, gRow, gX, i, THREADS, policy);
  i = vectors * WIDTH + threadIdx.x;  // fewer columns than WIDTH are left; the last slice takes them
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (i < K && blockIdx.y == gridDim.y - 1) rSum[r] += static_cast<float>(gRow[r][i]) * static_cast<float>(gX[i]);
    rSum[r] = warp_reduce(rSum[r], Sum());
    if (lane() == 0) sSum[r][warp()] = rSum[r];
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r >= ROWS || i_m + r >= M) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) total += sSum[r][w];
  gOut[(i_m + r) * gridDim.y + blockIdx.y] = static_cast<To>(total);
}

// out = the sums of a row's slices: a warp a row.
template <typename T>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, long long M, int slices) {
  const long long i_m = blockIdx.x * 8LL + warp();
  if (i_m >= M) return;
  float rSum = 0;
  earlier_done();
#pragma unroll 4
  for (int i = lane(); i < slices; i += WARP) rSum += gPartial[i_m * slices + i];
  rSum = warp_reduce(rSum, Sum());
  if (lane() == 0) gOut[i_m] = static_cast<T>(rSum);
}

// Both gradients in one read of the matrix, or one of them: memory that is read and written by turns is 6 % slower than first read, then written. A thread
// keeps WIDTH columns and walks down the rows blockIdx.y, blockIdx.y + gridDim.y, ...: it writes dA as it reads A, 4 rows in flight, and its share of
// dx = A^T dout never leaves its registers before the last row. gTo is [gridDim.y, K]: dx itself where one block walks down all rows.
template <typename T, typename To, bool SUMS, bool WRITES>
__global__ void __launch_bounds__(256, 3) gradients(T* __restrict__ gDa, To* __restrict__ gTo, const T* __restrict__ gDout,
                                                    const T* __restrict__ gA, const T* __restrict__ gX, long long M, long long K,
                                                    long long stride_m) {
  constexpr int WIDTH = 16 / sizeof(T), EACH = 4;
  const long long i_k = (blockIdx.x * 256LL + threadIdx.x) * WIDTH;
  if (i_k >= K) return;
  Wide<T> rX;
  load(rX, gX + i_k);
  float rXf[WIDTH], rSum[WIDTH] = {};
  to_float(rXf, rX);
  let_next_stand_by();  // who adds up the shares of dx
  for (long long i_m = blockIdx.y; i_m < M; i_m += EACH * (long long)gridDim.y) {
    Wide<T> rA[EACH];
    float rDout[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * (long long)gridDim.y;
      if (row >= M) continue;
      if (SUMS) load_global(rA[j], gA + row * stride_m + i_k);
      rDout[j] = static_cast<float>(gDout[row]);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * (long long)gridDim.y;
      if (row < M) {
        Wide<T> rDa;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          if (SUMS) rSum[k] += static_cast<float>(rA[j][k]) * rDout[j];
          rDa[k] = static_cast<T>(rDout[j] * rXf[k]);
        }
        if (WRITES) store_global(gDa + row * K + i_k, rDa);
      }
    }
  }
  if (!SUMS) return;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) gTo[blockIdx.y * K + i_k + k] = static_cast<To>(rSum[k]);
}
