// adds: a block a query and head; a thread scores a key, then sums a dimension
// costs: the keys of a group are read once for each of its heads; a thread reads a key 1 element at a time, 32 threads 32 distant rows
// loses when: always; with few sequences most multiprocessors are idle as well, for nothing is split
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/float8.cuh"
#include "rooftile/reduce.cuh"

using namespace rooftile;

template <typename E> __device__ __forceinline__ float number(E x) { return float(x); }
template <> __device__ __forceinline__ float number<unsigned char>(unsigned char x) { return widen<E4M3>(x).x; }  // a cache of 8 bits

// Blocks of 128 threads, D up to 256. A page of 0: the cache is contiguous. What a length or a page that does not exist gives is NaN.
template <typename E, typename C, typename W>
__global__ void attention_decode(E* gOut, float* gLse, const E* gQ, const C* gK, const C* gV, const int* gLengths, const int* gTable,
                                 const W* gSinks, const float* gKs, const float* gVs, int T, int H, int G, int D, int room, int pages,
                                 int page, int window, int sinks, int k_scaled, int v_scaled, float scale, float softcap, long long q_b,
                                 long long q_t, long long q_h, long long k_m, long long k_s, long long k_g, long long v_m, long long v_s,
                                 long long v_g, long long stride_length, long long stride_row, long long stride_page,
                                 long long stride_sink, long long stride_ks, long long stride_vs) {
  __shared__ float sQ[256], sP[128];
  const int i_h = blockIdx.x % H, i_t = blockIdx.x / H % T, i_g = i_h / (H / G);
  const long long i_b = blockIdx.x / H / T;
  const float nothing = -__int_as_float(0x7f800000), nan = __int_as_float(0x7fffffff);
  const int length = gLengths[i_b * stride_length];
  const bool wrong = length < 0 || length > room;
  const int end = wrong ? 0 : max(0, length - T + i_t + 1), begin = window ? max(0, end - window) : 0;
  if (k_scaled) scale *= gKs[i_g * stride_ks];
  for (int d = threadIdx.x; d < D; d += blockDim.x) sQ[d] = float(gQ[i_b * q_b + i_t * q_t + i_h * q_h + d]);
  __syncthreads();
  float most = nothing, sum = 0.0f, rAcc[2] = {0.0f, 0.0f};
  for (int first = begin; first < end; first += blockDim.x) {
    const int i_n = first + threadIdx.x;
    float score = nothing;
    if (i_n < end) {
      const long long m = page ? gTable[i_b * stride_row + i_n / page * stride_page] : i_b;
      score = nan;
      if (!page || (m >= 0 && m < pages)) {
        const C* gRow = gK + m * k_m + (page ? i_n % page : i_n) * k_s + i_g * k_g;
        score = 0.0f;
        for (int d = 0; d < D; ++d) score += sQ[d] * number(gRow[d]);
        score = softcap > 0.0f ? softcap * tanhf(score * scale / softcap) : score * scale;
      }
    }
    const float next = Max()(most, block_reduce(score, Max()));
    const float p = i_n < end ? expf(score - next) : 0.0f, shrink = most == nothing ? 0.0f : expf(most - next);
    sP[threadIdx.x] = p;
    sum = sum * shrink + block_reduce(p, Sum());
    most = next;
    __syncthreads();
    for (int k = 0; k < 2; ++k) {
      const int d = threadIdx.x + k * blockDim.x;
      if (d >= D) break;
      rAcc[k] *= shrink;
      for (int i = 0; i < min(int(blockDim.x), end - first); ++i) {
        const long long m = page ? gTable[i_b * stride_row + (first + i) / page * stride_page] : i_b;
        if (page && (m < 0 || m >= pages)) continue;  // its p is NaN, and so is the sum
        rAcc[k] += sP[i] * number(gV[m * v_m + (page ? (first + i) % page : first + i) * v_s + i_g * v_g + d]);
      }
    }
    __syncthreads();
  }
  if (sinks) {
    const float sink = float(gSinks[i_h * stride_sink]), next = Max()(most, sink);
    const float shrink = most == nothing ? 0.0f : expf(most - next);
    sum = sum * shrink + (sink == nothing ? 0.0f : expf(sink - next));
    rAcc[0] *= shrink;
    rAcc[1] *= shrink;
    most = next;
  }
  const float share = (v_scaled ? gVs[i_g * stride_vs] : 1.0f) / (sum == 0.0f ? 1.0f : sum);
  for (int k = 0; k < 2; ++k) {
    const int d = threadIdx.x + k * blockDim.x;
    if (d < D) gOut[((i_b * T + i_t) * H + i_h) * D + d] = E(wrong || sum != sum ? nan : rAcc[k] * share);
  }
  if (threadIdx.x == 0) gLse[(i_b * H + i_h) * T + i_t] = wrong ? nan : most + logf(sum);
}
