// adds: nothing, this is where the ladder begins: a thread an element, read along the rows of x, written where it belongs
// costs: a warp's 32 stores go to 32 rows of out, a sector of 32 bytes each of which 4 (fp32) or 2 (fp16) are written
// loses when: N is large: it asks the L2 for 8 (fp32) or 16 (fp16) times the bytes that it writes; in a matrix of a few rows it does not
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 32, ROWS = 8;

template <typename T>
__global__ void __launch_bounds__(TILE * ROWS) transpose(T* __restrict__ gOut, const T* __restrict__ gX, int N, int K, long long stride_b,
                                                         long long stride_n, long long stride_k) {
  const unsigned tiles_n = (N + TILE - 1u) / TILE, tiles_k = (K + TILE - 1u) / TILE;
  const unsigned i_b = blockIdx.x / (tiles_n * tiles_k), i_tile = blockIdx.x % (tiles_n * tiles_k);
  const long long i_n = i_tile / tiles_k * TILE, i_k = i_tile % tiles_k * TILE;
  const int x = threadIdx.x;
  gX += i_b * stride_b;
  gOut += i_b * (long long)N * K;

#pragma unroll
  for (int y = threadIdx.y; y < TILE; y += ROWS)
    if (i_n + y < N && i_k + x < K) gOut[(i_k + x) * N + i_n + y] = gX[(i_n + y) * stride_n + (i_k + x) * stride_k];
}
