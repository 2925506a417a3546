// adds: a warp a row: neighbouring lanes read neighbouring elements, and the lanes meet by shuffles
// costs: 2 reductions of 5 shuffles a row; a lane asks for 2 or 4 bytes at a time
// loses when: rows are few and wide: 1024 rows are 1024 warps, an eighth of what the device holds
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

template <typename T>
__global__ void softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x) {
  const long long i_m = blockIdx.x * (long long)warps() + warp();
  if (i_m >= M) return;  // all lanes of the warp or none
  const T* gRow = gX + i_m * stride_x;
  T* gTo = gOut + i_m * N;
  float max = -__int_as_float(0x7f800000), sum = 0.0f;
  for (int i_n = lane(); i_n < N; i_n += WARP) max = fmaxf(max, float(gRow[i_n]));
  max = warp_reduce(max, Max());
  for (int i_n = lane(); i_n < N; i_n += WARP) sum += __expf(float(gRow[i_n]) - max);
  sum = warp_reduce(sum, Sum());
  for (int i_n = lane(); i_n < N; i_n += WARP) gTo[i_n] = T(__expf(float(gRow[i_n]) - max) / sum);
}
