// adds: the last step of a norm: the root of the sum of gPartial [parts], in one fixed order; of many parts first their shares' sums, a block each
// costs: one more launch of one block, two where there are many parts; its start is hidden where the launch before it lets it stand by
// loses when: there are so few gradients that the launch is most of the time
#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"

using namespace rooftile;

// The block's sum of `count` numbers from 16 bytes' border on, 32 of a thread on their way.
ROOFTILE_DEVICE float sum_of(const float* gX, int count) {
  float sum = 0.0f;
  const int fours = count / 4;
#pragma unroll 8
  for (int i = threadIdx.x; i < fours; i += blockDim.x) {
    const float4 four = reinterpret_cast<const float4*>(gX)[i];
    sum += (four.x + four.y) + (four.z + four.w);
  }
  for (int i = 4 * fours + threadIdx.x; i < count; i += blockDim.x) sum += gX[i];
  return block_reduce(sum, Sum());
}

__global__ void __launch_bounds__(256) shares(float* gShare, const float* gPartial, int parts, int share) {
  const int first = blockIdx.x * share;
  const float sum = sum_of(gPartial + first, min(share, parts - first));
  if (threadIdx.x == 0) gShare[blockIdx.x] = sum;
}

__global__ void ROOFTILE_EARLY __launch_bounds__(512) root(float* gNorm, const float* gPartial, int parts) {
  earlier_done();
  const float sum = sum_of(gPartial, parts);
  if (threadIdx.x == 0) *gNorm = sqrtf(sum);
}
