// adds: gFirst[N] and gSecond[N] = sums over the rows of two halves of gPartial, in one fixed order: parameters' gradients without atomics
// costs: one more launch, and partial rows that go through memory, or L2 where they stay there
// loses when: N is small and P large: a block takes 16 columns, 64 bytes a row, with 64 rows asked for at once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

// blockIdx.y + half: which half; of one tensor alone gPartial is [P, N] and half 0.
template <typename W, typename V>
__global__ void __launch_bounds__(1024) add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  __shared__ float sSum[WARP][17];
  const int i_h = blockIdx.y + half, i_n = blockIdx.x * 16 + threadIdx.x % 16;
  const float* gFrom = gPartial + i_h * (long long)P * N;
  float sum = 0.0f;
  if (i_n < N) {
#pragma unroll 4
    for (int i_p = threadIdx.x / 16; i_p < P; i_p += 64) sum += gFrom[i_p * (long long)N + i_n];
  }
  sum += shuffle_xor(sum, 16);
  if (lane() < 16) sSum[warp()][lane()] = sum;
  __syncthreads();
  if (warp() >= 16) return;
  sum = warp_reduce(sSum[lane()][warp()], Sum());  // a warp a column
  const int to = blockIdx.x * 16 + warp();
  if (lane() > 0 || to >= N) return;
  if (i_h == 0) gFirst[to] = W(sum);
  else gSecond[to] = V(sum);
}
