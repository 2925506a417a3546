// adds: one read: the row stays in registers, packed, through both sums, and up to 4 vectors a thread leave room for as many threads as there may be
// costs: 4 registers a vector of 16 bytes, up to 8 vectors a thread: rows to 65536 columns of 16 bits
// loses when: rows are short: below 32 vectors of 16 bytes some of the warp has none
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, VECS > 4 || sizeof(T) + sizeof(W) + sizeof(B) > 6 ? 1 : THREADS > 64 ? 2048 / THREADS : 32)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, int N, long long stride_x, float eps) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const unsigned zero = hidden_zero(N);
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + blockIdx.x * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut + blockIdx.x * (long long)N);
  const Policy policy = evict_last(gridDim.x * (long long)N * sizeof(T));
  uint4 rX[VECS] = {};
  float rF[WIDTH], rW[WIDTH], rB[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (int(threadIdx.x) + v * THREADS < N / WIDTH) rX[v] = load_global(gRow + threadIdx.x + v * THREADS, policy);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rF[k];
    stay_packed(rX[v], zero);
  }
  const float mean = row_reduce<THREADS>(sum, Sum(), sPartial, 0) / N;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF, rX[v]);
    if (int(threadIdx.x) + v * THREADS < N / WIDTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
    stay_packed(rX[v], zero);
  }
  const float rstd = rsqrtf(row_reduce<THREADS>(square, Sum(), sPartial, 1) / N + eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= N / WIDTH) break;
    unpack<T>(rF, rX[v]);
    if (WEIGHT) parameters(rW, gW + i_v * WIDTH);
    if (BIAS) parameters(rB, gB + i_v * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rW[k] : rstd) + (BIAS ? rB[k] : 0.0f);
    pack<T>(rX[v], rF);
    __stwb(gTo + i_v, rX[v]);
  }
  if (gRstd && threadIdx.x == 0) gMean[blockIdx.x] = mean, gRstd[blockIdx.x] = rstd;
}
