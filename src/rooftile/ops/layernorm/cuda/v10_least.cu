// adds: weight and bias asked for with the row, and little code: what a few rows wait for is memory, once for numbers and once for instructions
// costs: the parameters' registers beside the row's, of 16 KB at most
// loses when: there is more than a row a multiprocessor: others' rows hide the wait, and registers are what there is little of
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, int vectors, long long stride_x, float per_column, float eps) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const unsigned zero = hidden_zero(vectors);
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + blockIdx.x * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut) + blockIdx.x * (long long)vectors;
  uint4 rX[VECS] = {};
  Parameters<W, WIDTH> rW[VECS] = {};
  Parameters<B, WIDTH> rB[VECS] = {};
  float rF[WIDTH], rG[WIDTH], rH[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= vectors) break;
    load_now(rX[v], gRow + i_v);
    if (WEIGHT) rW[v].ask(gW + i_v * WIDTH);
    if (BIAS) rB[v].ask(gB + i_v * WIDTH);
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (WEIGHT) rX[v].x ^= rW[v].part[0].x & zero;  // to the compiler the sum needs them: else it asks for them only once the row is there
    if (BIAS) rX[v].y ^= rB[v].part[0].x & zero;
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rF[k];
  }
  sum = row_reduce<THREADS>(sum, Sum(), sPartial, 0);
  const float near = sum * per_column, mean = fmaf(fmaf(-near, float(vectors * WIDTH), sum), per_column, near);  // as a division rounds it
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (int(threadIdx.x) + v * THREADS >= vectors) break;
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
  }
  const float rstd = rsqrtf(row_reduce<THREADS>(square, Sum(), sPartial, 1) * per_column + eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= vectors) break;
    unpack<T>(rF, rX[v]);
    if (WEIGHT) rW[v].open(rG);
    if (BIAS) rB[v].open(rH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rG[k] : rstd) + (BIAS ? rH[k] : 0.0f);
    pack<T>(rX[v], rF);
    gTo[i_v] = rX[v];
  }
  if (gRstd && threadIdx.x == 0) gMean[blockIdx.x] = mean, gRstd[blockIdx.x] = rstd;
}
