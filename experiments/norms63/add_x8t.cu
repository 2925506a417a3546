#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename Give> ROOFTILE_DEVICE void add_partials(const float* gPartial, int P, int N, Give give) {
  constexpr int AT_ONCE = 4, ACROSS = 8, DOWN = WARP / ACROSS, WARPS = 8;
  __shared__ Vec<float, 4> sSum[WARPS][ACROSS];
  const int first = blockIdx.x * ACROSS * 4, i_n = first + lane() % ACROSS * 4, i_r = warp() * DOWN + lane() / ACROSS;
#pragma unroll 1
  for (int turn = 1; turn < 2; ++turn) {
    if (turn) earlier_done();
    if (turn && 1 == 0) __syncthreads();
    const float* gRow = gPartial + i_r * (long long)N + i_n;
    Vec<float, 4> rSum, rRow[AT_ONCE];
    fill(rSum, 0.0f);
    int left = turn && i_n < N ? P - i_r : 0;
#pragma unroll 1
    do {
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        fill(rRow[j], 0.0f);
        if (j * WARPS * DOWN < left) load_global(rRow[j], gRow + j * WARPS * DOWN * (long long)N);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) rSum[k] += rRow[j][k];
      gRow += AT_ONCE * WARPS * DOWN * (long long)N, left -= AT_ONCE * WARPS * DOWN;
    } while (left > 0);
#pragma unroll
    for (int distance = ACROSS; distance < WARP; distance *= 2)
#pragma unroll
      for (int k = 0; k < 4; ++k) rSum[k] += shuffle_xor(rSum[k], distance);
    if (lane() < ACROSS) sSum[warp()][lane()] = rSum;
    __syncthreads();
    if (threadIdx.x < 4 * ACROSS) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) sum += sSum[w][threadIdx.x / 4][threadIdx.x % 4];
      if (turn && first + threadIdx.x < N) give(first + threadIdx.x, sum);
    }
  }
}

template <typename W, typename V, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(32 * 8, 1)
    add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  const int i_h = blockIdx.y + half;
  add_partials(gPartial + i_h * (long long)P * N, P, N, [&](int i_n, float sum) {
    if (i_h == 0) gFirst[i_n] = W(sum);
    else gSecond[i_n] = V(sum);
  });
}
