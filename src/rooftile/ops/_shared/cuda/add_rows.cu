// adds: gOut[N] = the sum over the rows of gPartial [P, N], in one fixed order: the last step of a parameter's gradient without atomics
// costs: one more launch, and partial rows that go through memory, or L2 where they stay there
// loses when: N is small and P large: a block takes 32 columns, so N = 1024 are 32 blocks
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename W>
__global__ void __launch_bounds__(1024) add_rows(W* __restrict__ gOut, const float* __restrict__ gPartial, int P, int N) {
  __shared__ float sSum[32][33];
  const int i_n = blockIdx.x * 32 + threadIdx.x;
  float sum = 0.0f;
  if (i_n < N) {
#pragma unroll 4
    for (int i_p = threadIdx.y; i_p < P; i_p += 32) sum += gPartial[i_p * (long long)N + i_n];
  }
  sSum[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && i_n < N) {
    for (int i = 1; i < 32; ++i) sum += sSum[i][threadIdx.x];
    gOut[i_n] = W(sum);
  }
}
