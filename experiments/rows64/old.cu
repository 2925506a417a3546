// adds: gFirst[N] and gSecond[N] = sums over the rows of two halves of gPartial, in one fixed order: parameters' gradients without atomics
// costs: one more launch, that begins while the one before it ends, and partial rows that go through memory, or L2 where they stay there
// loses when: N is small and P large: a block takes 32 columns, so that N = 1024 is 32 blocks
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// give(i_n, the sum over the P rows of gPartial [P, N]) for the WARP * COLUMNS columns of a block of 8, 16 or 32 warps; N is a multiple of COLUMNS. A
// lane takes COLUMNS neighbours, a warp every warps()th row. A loop that loads and adds waits for the L2 once a row, unrolled or not: its loads do not
// pass its branches. So 8 rows are asked for before one is added, and those beyond P are none; of 4 columns they take 56 registers, for one block a
// multiprocessor.
template <int COLUMNS, typename Give> ROOFTILE_DEVICE void add_partials(const float* gPartial, int P, int N, Give give) {
  constexpr int AT_ONCE = 8;
  __shared__ float sSum[WARP][WARP * COLUMNS + 1];
  const int first = blockIdx.x * WARP * COLUMNS, i_n = first + lane() * COLUMNS;
  const long long step = warps() * (long long)N;
  const float* gRow = gPartial + warp() * (long long)N + i_n;
  Vec<float, COLUMNS> rSum, rRow[AT_ONCE];
  fill(rSum, 0.0f);
#pragma unroll 1
  for (int left = i_n < N ? P - warp() : 0; left > 0;) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j, left -= warps(), gRow += step) {
      fill(rRow[j], 0.0f);
      if (left > 0) load_global(rRow[j], gRow);
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
      for (int k = 0; k < COLUMNS; ++k) rSum[k] += rRow[j][k];
  }
#pragma unroll
  for (int k = 0; k < COLUMNS; ++k) sSum[warp()][lane() * COLUMNS + k] = rSum[k];
  __syncthreads();
  const int i_w = threadIdx.x & (warps() - 1), i_c = threadIdx.x >> (__ffs(warps()) - 1);  // 32 columns at a time, a lane for each warp's sum
#pragma unroll
  for (int i = 0; i < WARP * COLUMNS; i += WARP) {
    float sum = sSum[i_w][i + i_c];
#pragma unroll 1
    for (int distance = warps() / 2; distance; distance /= 2) sum += shuffle_xor(sum, distance);
    if (i_w == 0 && first + i + i_c < N) give(first + i + i_c, sum);
  }
}

// blockIdx.y + half: which half; of one tensor alone gPartial is [P, N] and half 0.
template <typename W, typename V, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(1024, 1)
    add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  const int i_h = blockIdx.y + half;
  earlier_done();
  add_partials<COLUMNS>(gPartial + i_h * (long long)P * N, P, N, [&](int i_n, float sum) {
    if (i_h == 0) gFirst[i_n] = W(sum);
    else gSecond[i_n] = V(sum);
  });
}

// The same of three thirds of gPartial [3, P, N]: blockIdx.y says which.
template <typename W, typename V, typename U, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(1024, 1)
    add_three(W* __restrict__ gFirst, V* __restrict__ gSecond, U* __restrict__ gThird, const float* __restrict__ gPartial, int P, int N) {
  earlier_done();
  add_partials<COLUMNS>(gPartial + blockIdx.y * (long long)P * N, P, N, [&](int i_n, float sum) {
    if (blockIdx.y == 0) gFirst[i_n] = W(sum);
    else if (blockIdx.y == 1) gSecond[i_n] = V(sum);
    else gThird[i_n] = U(sum);
  });
}
