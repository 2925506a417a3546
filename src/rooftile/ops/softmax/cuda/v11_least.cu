// adds: little code: what a few rows wait for is memory, once for numbers and once for instructions; the row stays in registers
// costs: a block a row, whose threads hold 16 or 32 bytes each: rows of 16 KB at most
// loses when: there is more than a row a multiprocessor: others' rows hide the wait
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS) softmax(T* __restrict__ gOut, const T* __restrict__ gX, int vectors, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ Online sPartial[2][WARP];
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + blockIdx.x * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut) + blockIdx.x * (long long)vectors;
  float rF[VECS][WIDTH];
  Online rS = online_start();
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    uint4 rX = nothing<T>();
    if (i_v < vectors) load_now(rX, gRow + i_v);
    unpack<T>(rF[v], rX);
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rS.max = fmaxf(rS.max, rF[v][k]);
  const float base = base_of(rS.max);
#pragma unroll
  for (int v = 0; v < VECS; ++v)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
      rF[v][k] = exp_fast(rF[v][k] - base);
      rS.sum += rF[v][k];
    }
  const Online all = row_reduce<THREADS>(rS, Combine(), sPartial, 0);
  const float scale = exp_fast(base - all.max) * reciprocal(all.sum);  // of a row of -inf infinite, and its numbers NaN, as PyTorch has it
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= vectors) break;
    uint4 rTo;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[v][k] *= scale;
    pack<T>(rTo, rF[v]);
    gTo[i_v] = rTo;
  }
}
