// adds: gFirst[N] and gSecond[N] = sums over the rows of two halves of gPartial, in one fixed order: parameters' gradients without atomics
// costs: one more launch, that begins while the one before it ends, and partial rows that go through memory, or L2 where they stay there
// loses when: N is small and P large: a block takes 32 columns, so that N = 1024 is 32 blocks
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

// give(i_n, the sum over the P rows of gPartial [P, N]) for the block's WARP * COLUMNS columns; N is a multiple of COLUMNS. A lane takes COLUMNS
// neighbours, a warp every WARPSth row. Of a loop that loads and adds the compiler makes one wait for the L2 a row, unrolled or not: 8 rows are asked
// for here before one is added, and those beyond P are none. The kernel is launched early, and what a launch costs that no cache holds the code of is
// its code: it runs once on no rows while it stands by.
template <int COLUMNS, int WARPS, typename Give> ROOFTILE_DEVICE void add_partials(const float* gPartial, int P, int N, Give give) {
  constexpr int AT_ONCE = 4;
  __shared__ float sSum[WARPS][WARP * COLUMNS + 1];
  const int first = blockIdx.x * WARP * COLUMNS, i_n = first + lane() * COLUMNS, i_c = threadIdx.x / WARPS, i_w = threadIdx.x % WARPS;
  const long long step = (long long)WARPS * N;
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn) {
      earlier_done();
      __syncthreads();
    }
    const float* gRow = gPartial + warp() * (long long)N + i_n;
    int left = turn && i_n < N ? P - warp() : 0;
    Vec<float, COLUMNS> rSum, rRow[AT_ONCE];
    fill(rSum, 0.0f);
#pragma unroll 1
    do {
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        fill(rRow[j], 0.0f);
        if (j * WARPS < left) load_global(rRow[j], gRow + j * step);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) rSum[k] += rRow[j][k];
      gRow += AT_ONCE * step, left -= AT_ONCE * WARPS;
    } while (left > 0);
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) sSum[warp()][lane() * COLUMNS + k] = rSum[k];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARP * COLUMNS; i += WARP) {
      const float sum = warp_reduce<WARPS>(sSum[i_w][i + i_c], Sum());
      if (turn && i_w == 0 && first + i + i_c < N) give(first + i + i_c, sum);
    }
  }
}

}  // namespace rooftile

using namespace rooftile;

// blockIdx.y + half: which half; of one tensor alone gPartial is [P, N] and half 0. A block of WARPS warps.
template <typename W, typename V, int COLUMNS, int WARPS>
__global__ void ROOFTILE_EARLY __launch_bounds__(WARPS* WARP, 1) add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  const int i_h = blockIdx.y + half;
  add_partials<COLUMNS, WARPS>(gPartial + i_h * (long long)P * N, P, N, [&](int i_n, float sum) {
    if (i_h == 0) gFirst[i_n] = W(sum);
    else gSecond[i_n] = V(sum);
  });
}
