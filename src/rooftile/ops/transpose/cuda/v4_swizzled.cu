// adds: the column is xored with the row instead: 1 wavefront again, and nothing is wasted
// costs: one xor an access
// loses when: never to the padded tile; to 16-byte accesses everywhere: a thread still asks for 2 or 4 bytes at a time
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

  // alignas: banks are of 4 bytes, and a tile of 16-bit elements might begin in the middle of one
  __shared__ alignas(4) T sTile[TILE][TILE];
#pragma unroll
  for (int y = threadIdx.y; y < TILE; y += ROWS)
    if (i_n + y < N && i_k + x < K) sTile[y][x ^ y] = gX[(i_n + y) * stride_n + (i_k + x) * stride_k];
  __syncthreads();
#pragma unroll
  for (int y = threadIdx.y; y < TILE; y += ROWS)
    if (i_k + y < K && i_n + x < N) gOut[(i_k + y) * N + i_n + x] = sTile[x][y ^ x];
}
