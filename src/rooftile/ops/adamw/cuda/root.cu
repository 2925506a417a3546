// adds: the last step of a norm: the root of the sum of gPartial [parts], in one fixed order
// costs: one more launch of one block
// loses when: there are so few gradients that the launch is most of the time
#include "rooftile/reduce.cuh"

using namespace rooftile;

__global__ void __launch_bounds__(1024) root(float* gNorm, const float* gPartial, int parts) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < parts; i += blockDim.x) sum += gPartial[i];
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) *gNorm = sqrtf(sum);
}
