// adds: nothing, this is where the ladder begins: a thread a row
// costs: a warp's 32 loads go to 32 rows, a sector of 32 bytes each for 4 (fp32) or 2 (fp16) of them, and the rest must wait in the L1
// loses when: a is stored by rows; stored by columns the same loads lie side by side, and it loses only for its 2 or 4 bytes at a time
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void __launch_bounds__(256) gemv(T* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, long long M, long long K,
                                            long long stride_m, long long stride_k) {
  const long long i_m = blockIdx.x * 256LL + threadIdx.x;
  if (i_m >= M) return;
  gA += i_m * stride_m;
  float rSum = 0;
  for (long long start = 0; start < K; start += 128) {  // one chain of 20000 additions is less exact than the gate allows
    float rPart = 0;
    for (long long i_k = start; i_k < min(start + 128, K); ++i_k) rPart += static_cast<float>(gA[i_k * stride_k]) * static_cast<float>(gX[i_k]);
    rSum += rPart;
  }
  gOut[i_m] = static_cast<T>(rSum);
}
