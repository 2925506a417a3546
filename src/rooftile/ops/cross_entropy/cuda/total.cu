// adds: the last step of a mean or a sum: gLoss = the sum of the rows' losses over how many count, in one fixed order; who counts is known before the losses are
// costs: one more launch of one block, 4 bytes a row and 8 of its target: 32768 rows are 384 KB
// loses when: there are so few rows that the launch is most of the time
#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"

using namespace rooftile;

__global__ void ROOFTILE_EARLY __launch_bounds__(1024) total(float* gLoss, float* gCount, const float* gRow, const long long* gTarget, long long M,
                                                             long long ignore, bool mean) {
  constexpr int AT_ONCE = 8;  // are asked for before one is added: a loop's loads do not pass its branches
  const auto added = [&](auto one) {
    float sum = 0.0f;
#pragma unroll 1
    for (long long first = threadIdx.x; first < M; first += AT_ONCE * blockDim.x) {
      float r[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) r[j] = first + j * blockDim.x < M ? one(first + j * blockDim.x) : 0.0f;
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) sum += r[j];
    }
    return sum;
  };
  // targets are of a launch before the one that makes the losses
  float count = mean ? added([&](long long i_m) { return gTarget[i_m] != ignore ? 1.0f : 0.0f; }) : 1.0f;
  if (mean) count = block_reduce(count, Sum());
  earlier_done();
  const float sum = block_reduce(added([&](long long i_m) { return gRow[i_m]; }), Sum());
  if (threadIdx.x == 0) *gLoss = sum / count, *gCount = count;
}
