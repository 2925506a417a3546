// adds: 16 bytes an access
// costs: rows must begin at multiples of 16 bytes
// loses when: a row is under 16 bytes a thread; and the row is still read three times, the second and third from L1 or L2
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, typename W, typename B, bool WEIGHT, bool BIAS>
__global__ void layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX,
                          const W* __restrict__ gW, const B* __restrict__ gB, int N, long long stride_x, float eps) {
  constexpr int WIDTH = 16 / sizeof(T);
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + blockIdx.x * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut + blockIdx.x * (long long)N);
  float rF[WIDTH], rW[WIDTH], rB[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll 4
  for (int i_v = threadIdx.x; i_v < N / WIDTH; i_v += blockDim.x) {
    unpack<T>(rF, gRow[i_v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rF[k];
  }
  const float mean = block_reduce(sum, Sum()) / N;
#pragma unroll 4
  for (int i_v = threadIdx.x; i_v < N / WIDTH; i_v += blockDim.x) {
    unpack<T>(rF, gRow[i_v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
  }
  const float rstd = rsqrtf(block_reduce(square, Sum()) / N + eps);
#pragma unroll 2
  for (int i_v = threadIdx.x; i_v < N / WIDTH; i_v += blockDim.x) {
    unpack<T>(rF, gRow[i_v]);
    if (WEIGHT) parameters(rW, gW + i_v * WIDTH);
    if (BIAS) parameters(rB, gB + i_v * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rW[k] : rstd) + (BIAS ? rB[k] : 0.0f);
    uint4 rOut;
    pack<T>(rOut, rF);
    gTo[i_v] = rOut;
  }
  if (gRstd && threadIdx.x == 0) gMean[blockIdx.x] = mean, gRstd[blockIdx.x] = rstd;
}
