// adds: the last step of a norm: the root of the sum of gPartial [parts], in one fixed order, 32 numbers a thread on their way
// costs: one more launch of one block, for which one multiprocessor reads them all
// loses when: there are so few gradients that the launch is most of the time
#include "rooftile/reduce.cuh"

using namespace rooftile;

__global__ void __launch_bounds__(1024) root(float* gNorm, const float* gPartial, int parts) {
  float sum = 0.0f;
  const int fours = parts / 4;
#pragma unroll 8
  for (int i = threadIdx.x; i < fours; i += blockDim.x) {
    const float4 four = reinterpret_cast<const float4*>(gPartial)[i];
    sum += (four.x + four.y) + (four.z + four.w);
  }
  for (int i = 4 * fours + threadIdx.x; i < parts; i += blockDim.x) sum += gPartial[i];
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) *gNorm = sqrtf(sum);
}
