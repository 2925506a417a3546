// adds: 16 bytes an access on both sides: a thread turns WIDTH rows of 16 bytes in its registers, whole vectors cross the block
// costs: WIDTH x 16 bytes of registers a thread (128 for fp16), and rows of x and out that are whole vectors
// loses when: N or K is no multiple of 16 bytes: it refuses; and where a matrix is smaller than a tile, 32 (fp32) or 64 (fp16) square
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/policy.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// A tile is VECTORS_N x VECTORS_K squares of WIDTH x WIDTH elements; a thread turns EACH of them. It is kept as out wants it, rows of
// VECTORS_N vectors. Eight neighbouring lanes write one column of vectors and read one row of them: vector v of row r lies at
// v ^ (r / WIDTH % 8), so that either eight lie in eight different groups of 4 banks. 32 lanes of 16 bytes take 4 wavefronts, the least.
// 512 threads a multiprocessor at least: 64 KiB in flight in fp16, and 128 registers, where ptxas by itself stops at 64 and spills.
template <typename T, int VECTORS_N, int VECTORS_K, int EACH>
__global__ void __launch_bounds__(VECTORS_N * VECTORS_K / EACH, 512 * EACH / VECTORS_N / VECTORS_K)
    transpose(T* __restrict__ gOut, const T* __restrict__ gX, int N, int K, long long stride_b, long long stride_n, int group) {
  constexpr int WIDTH = 16 / sizeof(T), TILE_N = VECTORS_N * WIDTH, TILE_K = VECTORS_K * WIDTH, THREADS = VECTORS_N * VECTORS_K / EACH;
  static_assert(VECTORS_N % 8 == 0 && VECTORS_K % 8 == 0 && whole_warps(THREADS), "8 vectors or more on both sides, shared by whole warps");
  __shared__ Wide<T> sTile[TILE_K * VECTORS_N];

  // down `group` tiles, then one to the right: blocks that run together share the DRAM pages of the rows they read and of those they write
  const unsigned tiles_n = (N + TILE_N - 1u) / TILE_N, tiles_k = (K + TILE_K - 1u) / TILE_K;
  const unsigned i_b = blockIdx.x / (tiles_n * tiles_k), i_tile = blockIdx.x % (tiles_n * tiles_k);
  const unsigned first = i_tile / (group * tiles_k) * group, high = min(tiles_n - first, unsigned(group)), rest = i_tile % (group * tiles_k);
  const long long i_n = (first + rest % high) * TILE_N, i_k = rest / high * TILE_K;
  gX += i_b * stride_b + i_n * stride_n + i_k;
  gOut += i_b * (long long)N * K + i_k * N + i_n;
  const int rows = int(N - i_n), columns = int(K - i_k);  // what is left of x from here on

  const Policy policy = evict_last((long long)gridDim.x * TILE_N * TILE_K * sizeof(T));
  Wide<T> rX[EACH][WIDTH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int square = threadIdx.x + i * THREADS, n = square / VECTORS_K * WIDTH, k = square % VECTORS_K * WIDTH;
#pragma unroll
    for (int r = 0; r < WIDTH; ++r)
      if (n < rows && k < columns) rX[i][r].whole = load_global(reinterpret_cast<const uint4*>(gX + (n + r) * stride_n + k), policy);
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int square = threadIdx.x + i * THREADS, n = square / VECTORS_K, k = square % VECTORS_K;
    if (n * WIDTH < rows && k * WIDTH < columns) {
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) {
        Wide<T> rOut;
#pragma unroll
        for (int r = 0; r < WIDTH; ++r) rOut[r] = rX[i][r][c];
        store(sTile[(k * WIDTH + c) * VECTORS_N + (n ^ k % 8)].data, rOut);
      }
    }
  }
  __syncthreads();
  constexpr int STEP = THREADS / VECTORS_N;  // rows of out from one store of a thread to its next
  static_assert(THREADS % VECTORS_N == 0, "whole rows of out at a time");
  const int n = threadIdx.x % VECTORS_N, first_k = threadIdx.x / VECTORS_N;
  gOut += (long long)first_k * N + n * WIDTH;
  if (n * WIDTH >= rows) return;
  Wide<T> rOut[EACH * WIDTH];
#pragma unroll
  for (int i = 0; i < EACH * WIDTH; ++i) {
    const int k = first_k + i * STEP;
    if (k < columns) load(rOut[i], sTile[k * VECTORS_N + (n ^ k / WIDTH % 8)].data);
  }
#pragma unroll
  for (int i = 0; i < EACH * WIDTH; ++i)
    if (first_k + i * STEP < columns) store_global(gOut + i * (long long)STEP * N, rOut[i]);
}
