// adds: 16 bytes an access, EACH of them in flight from each of ROWS rows; the rows of a warp share one read of x
// costs: ROWS x EACH x 4 registers a thread for what is in flight, and rows of a and x must begin at multiples of 16 bytes
// loses when: there are few rows: 16 of them are 16 warps at most, and 132 multiprocessors want 8 each
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// rSum[r] += the products of EACH vectors of row r, `step` apart, with those of x. All are in flight before the first is used.
template <int EACH, typename T, int ROWS>
__device__ __forceinline__ void multiply(float (&rSum)[ROWS], const T* const (&gA)[ROWS], const T* gX, long long i, int step) {
  constexpr int WIDTH = 16 / sizeof(T);
  Wide<T> rA[ROWS][EACH], rX[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    load(rX[j], gX + (i + j * step) * WIDTH);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) load_global(rA[r][j], gA[r] + (i + j * step) * WIDTH);
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

// 128 threads, a warp for ROWS rows. 5 blocks a multiprocessor leave 96 registers, where ptxas by itself saves them and waits between loads.
template <typename T, int ROWS, int EACH>
__global__ void __launch_bounds__(128, 5) gemv(T* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, long long M,
                                               long long K, long long stride_m) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i_m = (blockIdx.x * 4LL + warp()) * ROWS, vectors = K / WIDTH;
  if (i_m >= M) return;
  const T* gRow[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) gRow[r] = gA + min(i_m + r, M - 1) * stride_m;  // what is past the last row repeats it and is not written
  float rSum[ROWS] = {};
  long long i = lane();
#pragma unroll 1  // the loads of one turn are enough in flight; unrolled on top of them, it spills
  for (; i + (EACH - 1) * WARP < vectors; i += EACH * WARP) multiply<EACH>(rSum, gRow, gX, i, WARP);
#pragma unroll 1
  for (; i < vectors; i += WARP) multiply<1>(rSum, gRow, gX, i, WARP);
  i = vectors * WIDTH + lane();  // fewer columns than WIDTH are left
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (i < K) rSum[r] += static_cast<float>(gRow[r][i]) * static_cast<float>(gX[i]);
    rSum[r] = warp_reduce(rSum[r], Sum());
    if (lane() == 0 && i_m + r < M) gOut[i_m + r] = static_cast<T>(rSum[r]);
  }
}
