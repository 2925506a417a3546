// adds: the last step of a mean or a sum: gLoss = the sum of the rows' losses over how many count, in one fixed order
// costs: one more launch of one block, 4 bytes a row and 8 of its target: 32768 rows are 384 KB
// loses when: there are so few rows that the launch is most of the time
#include "rooftile/reduce.cuh"

using namespace rooftile;

__global__ void __launch_bounds__(1024) total(float* gLoss, float* gCount, const float* gRow, const long long* gTarget, long long M,
                                              long long ignore, bool mean) {
  float sum = 0.0f, count = 0.0f;
#pragma unroll 8
  for (long long i_m = threadIdx.x; i_m < M; i_m += blockDim.x) {
    sum += gRow[i_m];
    if (mean) count += gTarget[i_m] != ignore;
  }
  sum = block_reduce(sum, Sum());
  count = mean ? block_reduce(count, Sum()) : 1.0f;
  if (threadIdx.x == 0) *gLoss = sum / count, *gCount = count;
}
