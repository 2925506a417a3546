// adds: the sum goes through shuffles: a warp first, then the block's warps, 2 barriers instead of 9
// costs: nothing
// loses when: N is below about 256: a block's other warps have nothing to add
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

template <typename T, typename W, bool WEIGHT>
__global__ void rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW, int N,
                        long long stride_x, float eps, float offset) {
  const T* gRow = gX + blockIdx.x * stride_x;
  float sum = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) sum += float(gRow[i_n]) * float(gRow[i_n]);
  const float rstd = rsqrtf(block_reduce(sum, Sum()) / N + eps);
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x)
    gOut[blockIdx.x * (long long)N + i_n] = T(float(gRow[i_n]) * rstd * (WEIGHT ? float(gW[i_n]) + offset : 1.0f));
  if (gRstd && threadIdx.x == 0) gRstd[blockIdx.x] = rstd;
}
