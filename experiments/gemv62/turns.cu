// adds: a block first reads its rows, deep in flight, then writes them: memory is read, then written, in one launch; or each a launch with a grid of its own
// costs: partial rows, added by a launch
// loses when: the matrix is small
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// HOW 0: writes as it reads, 1: reads all, then writes all, 2: reads only. WHEN 0: the next may stand by from the start, 1: when all is read.
template <typename T, typename To, int THREADS, int EACH, int BLOCKS, int HOW, int WHEN, bool FIRST>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    gradients(T* __restrict__ gDa, To* __restrict__ gTo, const T* __restrict__ gDout, const T* __restrict__ gA, const T* __restrict__ gX, long long M,
              long long K, long long stride_m, long long share) {
  ROOFTILE_CHECK_BLOCK(THREADS);
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i_k = (blockIdx.x * (long long)THREADS + threadIdx.x) * WIDTH;
  if (i_k >= K) return;
  // share 0: every gridDim.y-th row; else so many neighbours
  const long long first = share ? blockIdx.y * share : blockIdx.y, step = share ? 1 : gridDim.y, end = share ? min(M, first + share) : M;
  float rXf[WIDTH], rSum[WIDTH] = {};
  if (HOW < 2) {
    Wide<T> rX;
    load(rX, gX + i_k);
    to_float(rXf, rX);
  }
  const Policy policy = evict_first(M * K * (long long)sizeof(T));
  if (WHEN == 0) let_next_stand_by();
  auto write = [&](long long row, float dout) {
    Wide<T> rDa;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rDa[k] = static_cast<T>(dout * rXf[k]);
    store_global(gDa + row * K + i_k, rDa);
  };
#pragma unroll 1
  for (long long i_m = first; i_m < end; i_m += EACH * step) {
    Wide<T> rA[EACH];
    float rDout[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * step;
      if (row >= end) continue;
      const T* g = gA + row * stride_m + i_k;
      if (FIRST) rA[j].whole = load_global(reinterpret_cast<const typename Wide<T>::Whole*>(g), policy);
      else load_global(rA[j], g);
      rDout[j] = static_cast<float>(gDout[row]);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const long long row = i_m + j * step;
      if (row >= end) continue;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += static_cast<float>(rA[j][k]) * rDout[j];
      if (HOW == 0) write(row, rDout[j]);
    }
  }
  if (WHEN == 1) let_next_stand_by();
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) gTo[blockIdx.y * K + i_k + k] = static_cast<To>(rSum[k]);
  if (HOW == 1)
#pragma unroll 1
    for (long long i_m = first; i_m < end; i_m += EACH * step) {
      float rDout[EACH];
#pragma unroll
      for (int j = 0; j < EACH; ++j) rDout[j] = i_m + j * step < end ? static_cast<float>(gDout[i_m + j * step]) : 0.0f;
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        if (i_m + j * step < end) write(i_m + j * step, rDout[j]);
    }
}

// dA = dout x^T: a block ROWS neighbouring rows of a strip of 256 x 16 bytes.
template <typename T, int ROWS> ROOFTILE_DEVICE void product(T* gDa, const T* gDout, const T* gX, long long M, long long K) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i_k = (blockIdx.x * 256LL + threadIdx.x) * WIDTH, first = blockIdx.y * (long long)ROWS;
  if (i_k >= K) return;
  Wide<T> rX;
  load(rX, gX + i_k);
  float rDout[ROWS];
#pragma unroll
  for (int j = 0; j < ROWS; ++j) rDout[j] = static_cast<float>(gDout[min(first + j, M - 1)]);
#pragma unroll
  for (int j = 0; j < ROWS; ++j) {
    Wide<T> rDa;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rDa[k] = static_cast<T>(rDout[j] * static_cast<float>(rX[k]));
    if (first + j < M) store_global(gDa + (first + j) * K + i_k, rDa);
  }
}
template <typename T, int ROWS>
__global__ void __launch_bounds__(256) outer(T* __restrict__ gDa, const T* __restrict__ gDout, const T* __restrict__ gX, long long M, long long K) {
  let_next_stand_by();
  product<T, ROWS>(gDa, gDout, gX, M, K);
}
// Begins beside those that read, whose inputs are its own; it ends after them, so that who waits for it has waited for them.
template <typename T, int ROWS>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) outer_early(T* __restrict__ gDa, const T* __restrict__ gDout, const T* __restrict__ gX, long long M, long long K) {
  let_next_stand_by();
  product<T, ROWS>(gDa, gDout, gX, M, K);
  earlier_done();
}
