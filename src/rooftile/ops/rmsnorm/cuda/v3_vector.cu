// adds: 16 bytes an access
// costs: rows must begin at multiples of 16 bytes
// loses when: a row is under 16 bytes a thread; and the row is still read twice, the second time from L1 or L2
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, typename W, bool WEIGHT>
__global__ void rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW, int N,
                        long long stride_x, float eps, float offset) {
  constexpr int WIDTH = 16 / sizeof(T);
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + blockIdx.x * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut + blockIdx.x * (long long)N);
  float rF[WIDTH], rW[WIDTH], sum = 0.0f;
#pragma unroll 4
  for (int i_v = threadIdx.x; i_v < N / WIDTH; i_v += blockDim.x) {
    unpack<T>(rF, gRow[i_v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rF[k];
  }
  const float rstd = rsqrtf(block_reduce(sum, Sum()) / N + eps);
#pragma unroll 2
  for (int i_v = threadIdx.x; i_v < N / WIDTH; i_v += blockDim.x) {
    unpack<T>(rF, gRow[i_v]);
    if (WEIGHT) parameters(rW, gW + i_v * WIDTH, offset);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] *= WEIGHT ? rstd * rW[k] : rstd;
    uint4 rOut;
    pack<T>(rOut, rF);
    gTo[i_v] = rOut;
  }
  if (gRstd && threadIdx.x == 0) gRstd[blockIdx.x] = rstd;
}
