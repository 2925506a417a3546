// adds: gFirst[N] and gSecond[N] = sums over the rows of two halves of gPartial, in one fixed order: parameters' gradients without atomics
// costs: one more launch, that begins while the one before it ends, and partial rows that go through memory, or L2 where they stay there
// loses when: N is small and P large: a block takes 32 columns, so that N = 1024 is 32 blocks
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// blockIdx.y + half: which half; of one tensor alone gPartial is [P, N] and half 0. A lane takes COLUMNS neighbours of N, a multiple of them, a
// warp every WARPSth row, 8 of them asked for at once.
constexpr int AT_ONCE = 8;
template <typename W, typename V, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(1024) add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  __shared__ alignas(16) float sSum[WARP][WARP * COLUMNS];
  const int i_h = blockIdx.y + half, first = blockIdx.x * WARP * COLUMNS, i_n = first + lane() * COLUMNS;
  const float* gFrom = gPartial + i_h * (long long)P * N + i_n;
  Vec<float, COLUMNS> rSum = {};
  earlier_done();
  if (i_n < N) {
    for (int i_p = warp(); i_p < P; i_p += AT_ONCE * warps()) {
      Vec<float, COLUMNS> r[AT_ONCE] = {};
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
        if (i_p + j * warps() < P) load_global(r[j], gFrom + (i_p + j * warps()) * (long long)N);
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) rSum[k] += r[j][k];
    }
  }
  reinterpret_cast<Vec<float, COLUMNS>*>(sSum[warp()])[lane()] = rSum;
  __syncthreads();
  for (int i = threadIdx.x; i < WARP * COLUMNS && first + i < N; i += blockDim.x) {
    float sum = 0.0f;
    for (int w = 0; w < warps(); ++w) sum += sSum[w][i];
    if (i_h == 0) gFirst[first + i] = W(sum);
    else gSecond[first + i] = V(sum);
  }
}
