// adds: a block a row: up to 1024 threads share a wide one
// costs: 2 reductions with 2 barriers each a row, and every warp waits at them for the slowest
// loses when: N is below about 1024: a warp would do, and most of the block's time is barriers
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

template <typename T>
__global__ void softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  const T* gRow = gX + blockIdx.x * stride_x;
  T* gTo = gOut + blockIdx.x * (long long)N;
  float max = -__int_as_float(0x7f800000), sum = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) max = fmaxf(max, float(gRow[i_n]));
  max = block_reduce(max, Max());
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) sum += __expf(float(gRow[i_n]) - max);
  sum = block_reduce(sum, Sum());
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) gTo[i_n] = T(__expf(float(gRow[i_n]) - max) / sum);
}

// dx = out (dout - sum(dout out))
template <typename T>
__global__ void softmax_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gOut, int N, long long stride_dout,
                                 long long stride_out) {
  const T *gG = gDout + blockIdx.x * stride_dout, *gY = gOut + blockIdx.x * stride_out;
  T* gTo = gDx + blockIdx.x * (long long)N;
  float dot = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) dot += float(gG[i_n]) * float(gY[i_n]);
  dot = block_reduce(dot, Sum());
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) gTo[i_n] = T(float(gY[i_n]) * (float(gG[i_n]) - dot));
}
