// adds: sums over the rows of up to three parts of gPartial, in one fixed order: parameters' gradients without atomics
// costs: one more launch, that begins while the one before it ends, and partial rows that go through memory, or L2 where they stay there
// loses when: N is small: a block takes 32 columns of 4 bytes, so that N = 1024 is 32 blocks
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// gFirst, gSecond or gThird [N], which blockIdx.y + which says, is the sum over the P rows of its part of gPartial [parts, P, N]; N is a multiple of COLUMNS.
// A lane takes COLUMNS neighbours; ACROSS lanes lie along the rows, the other ones of a warp, and the warps, down them. What a megabyte takes is its latencies,
// hence rows for all lanes at once, few shuffles and neighbouring stores. A loop that loads and adds waits for the L2 once a row, unrolled or not: its loads
// do not pass its branches. So 8 rows are asked for before one is added, and those beyond P are none; with one block a multiprocessor wanted, not eight, there are registers for them.
template <typename W, typename V, typename U, int COLUMNS, int ACROSS>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, 1)
    add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, U* __restrict__ gThird, const float* __restrict__ gPartial, int P, int N, int which) {
  constexpr int AT_ONCE = 8, WARPS = 8, STEP = WARP / ACROSS * WARPS, SPAN = ACROSS * COLUMNS;  // rows of a block at a time, its columns
  __shared__ float sSum[WARPS][SPAN];
  const int part = blockIdx.y + which, first = blockIdx.x * SPAN, i_l = lane() % ACROSS * COLUMNS, i_r = warp() * (WARP / ACROSS) + lane() / ACROSS;
  const long long step = STEP * (long long)N;
  const float* gRow = gPartial + (part * (long long)P + i_r) * N + first + i_l;
  Vec<float, COLUMNS> rSum, rRow[AT_ONCE];
  fill(rSum, 0.0f);
  earlier_done();
#pragma unroll 1
  for (int left = first + i_l < N ? P - i_r : 0; left > 0;) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j, left -= STEP, gRow += step) {
      fill(rRow[j], 0.0f);
      if (left > 0) load_global(rRow[j], gRow);
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
      for (int k = 0; k < COLUMNS; ++k) rSum[k] += rRow[j][k];
  }
#pragma unroll
  for (int distance = ACROSS; distance < WARP; distance *= 2)
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) rSum[k] += shuffle_xor(rSum[k], distance);
  if (lane() < ACROSS)
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) sSum[warp()][i_l + k] = rSum[k];
  __syncthreads();
  const int i_n = first + threadIdx.x;
  if (threadIdx.x >= SPAN || i_n >= N) return;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += sSum[w][threadIdx.x];
  if (part == 0) gFirst[i_n] = W(sum);
  else if (part == 1) gSecond[i_n] = V(sum);
  else gThird[i_n] = U(sum);
}
