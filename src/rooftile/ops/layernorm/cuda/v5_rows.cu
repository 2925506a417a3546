// adds: a block of two dimensions: LANES threads take EACH rows at once, which meet by shuffles alone, and the parameters serve all of them
// costs: no barrier; a row belongs to at most a warp, with up to 8 vectors a lane: to 2048 columns of 16 bits; 4 registers a vector of each row
// loses when: rows are longer than that, or too few to keep all warps of a device busy
#include "rooftile/rows.cuh"

using namespace rooftile;

// AHEAD: the parameters are asked for while the rows arrive, not when they are written.
template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int VECS, int LANES, int ROWS, int EACH, bool AHEAD>
__global__ void __launch_bounds__(LANES * ROWS)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, long long M, int N, long long stride_x, float eps) {
  static_assert(LANES <= WARP && LANES * ROWS % WARP == 0, "a row is a part of a warp, and warps are whole");
  constexpr int WIDTH = 16 / sizeof(T);
  const unsigned zero = hidden_zero(N);
  const long long i_m = (blockIdx.x * (long long)ROWS + threadIdx.y) * EACH;
  const int V = N / WIDTH;  // the lanes of rows that are not there come along for the shuffles
  uint4 rX[EACH][VECS] = {};
  float rF[WIDTH], rW[WIDTH], rB[WIDTH], rMean[EACH], rRstd[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const int i_v = threadIdx.x + v * LANES;
      if (i_v < V && i_m + e < M) rX[e][v] = reinterpret_cast<const uint4*>(gX + (i_m + e) * stride_x)[i_v];
    }
  Parameters<W, WIDTH> rWeight[VECS];
  Parameters<B, WIDTH> rBias[VECS];
  if (AHEAD)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const int i_v = threadIdx.x + v * LANES;
      if (WEIGHT && i_v < V) rWeight[v].ask(gW + i_v * WIDTH);
      if (BIAS && i_v < V) rBias[v].ask(gB + i_v * WIDTH);
    }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[e][v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rF[k];
      stay_packed(rX[e][v], zero);
    }
    rMean[e] = warp_reduce<LANES>(sum, Sum()) / N;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[e][v]);
      if (int(threadIdx.x) + v * LANES < V)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) square += (rF[k] - rMean[e]) * (rF[k] - rMean[e]);
      stay_packed(rX[e][v], zero);
    }
    rRstd[e] = rsqrtf(warp_reduce<LANES>(square, Sum()) / N + eps);
    if (gRstd && threadIdx.x == 0 && i_m + e < M) gMean[i_m + e] = rMean[e], gRstd[i_m + e] = rRstd[e];
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * LANES;
    if (i_v >= V) break;
    if (WEIGHT && !AHEAD) rWeight[v].load(gW + i_v * WIDTH);
    if (BIAS && !AHEAD) rBias[v].load(gB + i_v * WIDTH);
    if (WEIGHT) rWeight[v].open(rW);
    if (BIAS) rBias[v].open(rB);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (i_m + e >= M) break;
      unpack<T>(rF, rX[e][v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - rMean[e]) * (WEIGHT ? rRstd[e] * rW[k] : rRstd[e]) + (BIAS ? rB[k] : 0.0f);
      pack<T>(rX[e][v], rF);
      __stwb(reinterpret_cast<uint4*>(gOut + (i_m + e) * N) + i_v, rX[e][v]);
    }
  }
}
