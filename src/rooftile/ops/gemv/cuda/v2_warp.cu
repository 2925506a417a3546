// adds: a warp a row: its loads lie side by side, 128 bytes (fp32) or 64 (fp16) a request, and meet in 5 shuffles at the end of the row
// costs: nothing but the shuffles; in a row of fewer than 32 columns lanes have nothing to do
// loses when: a is stored by columns (32 sectors a request); and to wide loads in fp16: 16 KiB in flight a multiprocessor, of 22 needed
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

template <typename T>
__global__ void __launch_bounds__(256) gemv(T* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, long long M, long long K,
                                            long long stride_m, long long stride_k) {
  const long long i_m = blockIdx.x * 8LL + warp();
  if (i_m >= M) return;
  gA += i_m * stride_m;
  float rSum[4] = {};  // four loads in flight, and chains of additions a quarter as long
  for (long long i_k = lane(); i_k < K; i_k += 4 * WARP) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const long long i = i_k + j * WARP;
      if (i < K) rSum[j] += static_cast<float>(gA[i * stride_k]) * static_cast<float>(gX[i]);
    }
  }
  const float total = warp_reduce((rSum[0] + rSum[1]) + (rSum[2] + rSum[3]), Sum());
  if (lane() == 0) gOut[i_m] = static_cast<T>(total);
}
