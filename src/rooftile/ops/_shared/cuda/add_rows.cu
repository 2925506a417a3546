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
// warp every warps()-th row, EACH of them asked for at once, whether there are as many or not: rows that come one by one take as long each.
template <typename W, typename V, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(1024) add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  constexpr int EACH = 8, WIDE = WARP * COLUMNS;
  __shared__ alignas(16) float sSum[WARP][WIDE + 1];
  const int i_h = blockIdx.y + half, first = blockIdx.x * WIDE, i_n = first + lane() * COLUMNS;
  const float* gFrom = gPartial + i_h * (long long)P * N + i_n;
  float rSum[COLUMNS] = {};
  earlier_done();
  for (int begin = warp(); begin < P; begin += EACH * warps()) {
    Vec<float, COLUMNS> r[EACH] = {};
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (i_n < N && begin + e * warps() < P) load_global(r[e], gFrom + (begin + e * warps()) * (long long)N);
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int k = 0; k < COLUMNS; ++k) rSum[k] += r[e][k];
  }
#pragma unroll
  for (int k = 0; k < COLUMNS; ++k) sSum[warp()][lane() * COLUMNS + k] = rSum[k];
  __syncthreads();
  for (int i = warp(); i < WIDE && first + i < N; i += warps()) {  // a warp a column, a lane a warp's sum
    const float sum = warp_reduce(lane() < warps() ? sSum[lane()][i] : 0.0f, Sum());
    if (lane() != 0) continue;
    if (i_h == 0) gFirst[first + i] = W(sum);
    else gSecond[first + i] = V(sum);
  }
}
