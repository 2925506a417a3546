// adds: 16 bytes a store, whatever the rows' length: a thread finds the row of its first element and walks from there
// costs: a length looked up again where a row ends inside a vector; the last few elements go one by one
// loses when: the mask is a few thousand elements: a sixteenth as many threads have work
#include "rooftile/vec.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using namespace rooftile;

template <typename T> __device__ __forceinline__ T entry(bool allowed) { return T(allowed ? 0.0f : -__int_as_float(0x7f800000)); }
template <> __device__ __forceinline__ unsigned char entry<unsigned char>(bool allowed) { return allowed; }

// The first key that row i_m, counted through (b, h, t), may not see.
template <typename L, bool CAUSAL>
__device__ __forceinline__ long long bound(const L* gLengths, long long i_m, int queries, int keys, int G, int repeats, long long stride_b,
                                           long long stride_g) {
  const int i_t = int(i_m % queries), i_h = int(i_m / queries % (G * repeats));
  const long long length = gLengths[i_m / queries / (G * repeats) * stride_b + i_h / repeats * stride_g], last = i_t + (keys - queries) + 1;
  return CAUSAL && length > last ? last : length;
}

template <typename T, typename L, bool CAUSAL>
__global__ void attention_mask(T* gMask, const L* __restrict__ gLengths, long long total, int queries, int keys, int G, int repeats,
                               long long stride_b, long long stride_g) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * WIDTH;
  if (i >= total) return;
  long long i_m = i / keys;
  int i_s = int(i % keys);
  long long end = bound<L, CAUSAL>(gLengths, i_m, queries, keys, G, repeats, stride_b, stride_g);
  Wide<T> rOut;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) {
    rOut[k] = entry<T>(i_s < end);
    if (++i_s == keys && i + k + 1 < total) {
      i_s = 0;
      end = bound<L, CAUSAL>(gLengths, ++i_m, queries, keys, G, repeats, stride_b, stride_g);
    }
  }
  if (i + WIDTH <= total) {
    store(gMask + i, rOut);
  } else {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k)
      if (i + k < total) gMask[i + k] = rOut[k];
  }
}
