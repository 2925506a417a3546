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

// Both gradients in one read of the matrix. A thread keeps WIDTH columns and walks down the rows blockIdx.y, blockIdx.y + gridDim.y, ...: it writes dA as it
// reads A, 4 rows in flight, and its share of dx = A^T dout never leaves its registers before the last row. gTo is [gridDim.y, K]: dx itself where one block
// walks down all rows.
template <typename T, typename To>
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
      load_global(rA[j], gA + row * stride_m + i_k);
      rDout[j] = static_cast<float>(gDout[row]);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * (long long)gridDim.y;
      if (row < M) {
        Wide<T> rDa;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          rSum[k] += static_cast<float>(rA[j][k]) * rDout[j];
          rDa[k] = static_cast<T>(rDout[j] * rXf[k]);
        }
        store_global(gDa + row * K + i_k, rDa);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) gTo[blockIdx.y * K + i_k + k] = static_cast<To>(rSum[k]);
}

// The shares of dx alone, the same walk: what is only read asks for 8 rows at once, and takes no lines from those that others wrote.
template <typename T>
__global__ void __launch_bounds__(256, sizeof(T) == 4 ? 3 : 2) shares(float* __restrict__ gPartial, const T* __restrict__ gDout,
                                                                      const T* __restrict__ gA, long long M, long long K, long long stride_m) {
  constexpr int WIDTH = 16 / sizeof(T), EACH = 8;
  const long long i_k = (blockIdx.x * 256LL + threadIdx.x) * WIDTH;
  if (i_k >= K) return;
  float rSum[WIDTH] = {};
  const Policy policy = evict_first(M * K * (long long)sizeof(T));
  if (false) let_next_stand_by();  // who adds them up, and who writes dA: three blocks leave no room for those
#pragma unroll 1
  for (long long i_m = blockIdx.y; i_m < M; i_m += EACH * (long long)gridDim.y) {
    Wide<T> rA[EACH];
    float rDout[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * (long long)gridDim.y;
      if (row >= M) continue;
      rA[j].whole = load_global(reinterpret_cast<const typename Wide<T>::Whole*>(gA + row * stride_m + i_k), policy);
      rDout[j] = static_cast<float>(gDout[row]);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      if (i_m + j * (long long)gridDim.y < M)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] += static_cast<float>(rA[j][k]) * rDout[j];
  }
  if (true) let_next_stand_by();  // two do, and what is written beside what is read slows both
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4) store_global(gPartial + blockIdx.y * K + i_k + k, Vec<float, 4>{rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]});
}

// What comes after the shares, of which there are P. The first `adders` blocks wait for them: 128 columns of dx each, a warp every eighth share. The others
// write dA, 8 rows of a strip each, which needs nothing that the launch before it makes: they begin as its blocks end, in one launch with those that wait, so
// that it does not end before the shares are added.
template <typename T>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) product(T* __restrict__ gDa, T* __restrict__ gDx, const float* __restrict__ gPartial,
                                                              const T* __restrict__ gDout, const T* __restrict__ gX, long long M, long long K, int P,
                                                              int adders, int strips) {
  constexpr int WIDTH = 16 / sizeof(T), EACH = 8, WARPS = 256 / WARP;
  if (int(blockIdx.x) < adders) {
    __shared__ alignas(16) float sSum[WARPS][4 * WARP];
    const long long first = blockIdx.x * (4LL * WARP), i_k = first + 4 * lane();
    Vec<float, 4> rSum = {};
    earlier_done();
    if (i_k < K) {
#pragma unroll 8
      for (int i_p = warp(); i_p < P; i_p += WARPS) {
        Vec<float, 4> r;
        load_global(r, gPartial + i_p * K + i_k);
#pragma unroll
        for (int k = 0; k < 4; ++k) rSum[k] += r[k];
      }
    }
    reinterpret_cast<Vec<float, 4>*>(sSum[warp()])[lane()] = rSum;
    __syncthreads();
    if (threadIdx.x >= 4 * WARP || first + threadIdx.x >= K) return;
    float total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += sSum[w][threadIdx.x];
    gDx[first + threadIdx.x] = static_cast<T>(total);
    return;
  }
  const int block = blockIdx.x - adders;
  const long long i_k = (block % strips * 256LL + threadIdx.x) * WIDTH, i_m = block / strips * (long long)EACH;
  if (i_k >= K) return;
  Wide<T> rX;
  load(rX, gX + i_k);
  float rDout[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) rDout[j] = static_cast<float>(gDout[min(i_m + j, M - 1)]);
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    Wide<T> rDa;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rDa[k] = static_cast<T>(rDout[j] * static_cast<float>(rX[k]));
    if (i_m + j < M) store_global(gDa + (i_m + j) * K + i_k, rDa);
  }
}
