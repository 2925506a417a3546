// adds: nothing, this is where the ladder begins: a warp a row, forward and backward, 16 bytes a lane and up to 4 of them, 4 tokens at a time
// costs: backward a sort by torch of M keys, log2 M loads for each of V + 1 borders, and three loads in a chain: border, token, gradient
// loses when: a token is frequent: its row is one warp's, and 32768 tokens 4 at a time are 8192 round trips to memory of 600 ns and more
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/policy.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// out[i_m] = weight[indices[i_m]]: ROWS rows and VECTORS vectors of each in flight. A row outside the weight is NaN.
template <typename T, int WIDTH, int VECTORS, int ROWS>
__global__ void __launch_bounds__(256) gather(T* __restrict__ gOut, const long long* __restrict__ gIndices, const T* __restrict__ gW, long long M,
                                              long long V, long long N, long long stride, int strips) {
  const long long i_w = blockIdx.x * 8ll + warp(), i_m = i_w / strips * ROWS, i_n = (i_w % strips * VECTORS * WARP + lane()) * WIDTH;
  if (i_m >= M) return;
  long long i_v[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) i_v[r] = i_m + r < M ? gIndices[i_m + r] : 0;
  const Policy policy = evict_last(M * N * (long long)sizeof(T));  // a row may be asked for again, what is written is not
  Vec<T, WIDTH> rW[ROWS][VECTORS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      const long long at = i_n + k * WARP * WIDTH;
      if (!(0 <= i_v[r] && i_v[r] < V && at < N)) fill(rW[r][k], T(__int_as_float(0x7fc00000)));
      else if constexpr (WIDTH * sizeof(T) == 16) rW[r][k].whole = load_global(reinterpret_cast<const uint4*>(gW + i_v[r] * stride + at), policy);
      else load(rW[r][k], gW + i_v[r] * stride + at);
    }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      const long long at = i_n + k * WARP * WIDTH;
      if (i_m + r < M && at < N) store_global(gOut + (i_m + r) * N + at, rW[r][k]);
    }
}

// Indices as the narrowest integers that hold them, from `base` up; those whose gradient goes nowhere, padding or outside the weight, become V.
template <typename Key>
__global__ void __launch_bounds__(256) keys(Key* __restrict__ gKeys, const long long* __restrict__ gIndices, int M, int V, int padding, int base) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= M) return;
  const long long i_v = gIndices[i];
  gKeys[i] = Key((0 <= i_v && i_v < V && i_v != padding ? int(i_v) : V) + base);
}

// Where the tokens of row i_v begin in sorted order; of V, how many tokens there are.
template <typename Key>
__global__ void __launch_bounds__(256) search(int* __restrict__ gBorders, const Key* __restrict__ gKeys, int M, int V, int base) {
  const int i_v = blockIdx.x * 256 + threadIdx.x;
  if (i_v > V) return;
  int low = 0, high = M;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (int(gKeys[middle]) - base < i_v) low = middle + 1;
    else high = middle;
  }
  gBorders[i_v] = low;
}

template <typename T, int WIDTH, int VECTORS>
__global__ void __launch_bounds__(256) sums(T* __restrict__ gDw, const T* __restrict__ gDout, const long long* __restrict__ gOrder,
                                            const int* __restrict__ gBorders, int V, long long N, long long stride, int strips) {
  constexpr int TOKENS = 4;
  const long long i_w = blockIdx.x * 8ll + warp(), i_v = i_w / strips, i_n = (i_w % strips * VECTORS * WARP + lane()) * WIDTH;
  if (i_v >= V) return;
  const int end = gBorders[i_v + 1];
  float rSum[VECTORS][WIDTH] = {};
  for (int i = gBorders[i_v]; i < end; i += TOKENS) {
    long long i_m[TOKENS];
    Vec<T, WIDTH> rX[TOKENS][VECTORS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) i_m[t] = gOrder[i + t < end ? i + t : i];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
        if (i + t < end && i_n + k * WARP * WIDTH < N) load_global(rX[t][k], gDout + i_m[t] * stride + i_n + k * WARP * WIDTH);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (i + t >= end) break;
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
    }
  }
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    Vec<T, WIDTH> rOut;
    from_float(rOut, rSum[k]);
    if (i_n + k * WARP * WIDTH < N) store_global(gDw + i_v * N + i_n + k * WARP * WIDTH, rOut);
  }
}
