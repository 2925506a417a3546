// lab: add_rows with AT rows asked for at once whatever is left, sums over warps by shuffles; WARM: its code runs once on nothing while it stands by
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename W, typename V, int COLUMNS, int WARPS, int AT, bool WARM>
__global__ void ROOFTILE_EARLY __launch_bounds__(WARPS * WARP) add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  __shared__ float sSum[WARPS][WARP * COLUMNS + 1];
  const int i_h = blockIdx.y + half, first = blockIdx.x * WARP * COLUMNS, i_n = first + lane() * COLUMNS;
  const long long step = (long long)WARPS * N;
  const float* gFrom = gPartial + (i_h * (long long)P + warp()) * N + i_n;
  const int i_c = threadIdx.x / WARPS, i_w = threadIdx.x % WARPS;
#pragma unroll 1
  for (int turn = WARM ? 0 : 1; turn < 2; ++turn) {
    if (turn) earlier_done();
    int left = turn && i_n < N ? P - int(warp()) : 0;
    Vec<float, COLUMNS> rSum;
    fill(rSum, 0.0f);
    const float* g = gFrom;
#pragma unroll 1
    do {
      Vec<float, COLUMNS> r[AT];
#pragma unroll
      for (int j = 0; j < AT; ++j) {
        fill(r[j], 0.0f);
        if (j * WARPS < left) load_global(r[j], g + j * step);
      }
#pragma unroll
      for (int j = 0; j < AT; ++j)
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) rSum[k] += r[j][k];
      g += AT * step, left -= AT * WARPS;
    } while (left > 0);
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) sSum[warp()][lane() * COLUMNS + k] = rSum[k];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
      const float sum = warp_reduce<WARPS>(sSum[i_w][i_c + i * WARP], Sum());
      const int to = first + i_c + i * WARP;
      if (turn && i_w == 0 && to < N) {
        if (i_h == 0) gFirst[to] = W(sum);
        else gSecond[to] = V(sum);
      }
    }
    if (WARM) __syncthreads();
  }
}
