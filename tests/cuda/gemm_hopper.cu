// C[M,N] = A[M,K] B[N,K]^T, bfloat16 with float sums: the headers for Hopper together. One thread of a producer warpgroup brings tiles of A
// and B through a ring of STAGES; two consumer warpgroups each multiply 64 x 128 of a 128 x 128 tile and store it through shared memory.
// Edges are the copy engine's: what lies outside is zero when loaded and left out when stored.
#include <cuda_bf16.h>

#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/wgmma.cuh"

using namespace rooftile;

constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 64;
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2, PANEL = 64 * 128;  // 64 rows of 64 elements

template <int STAGES>
ROOFTILE_DEVICE void produce(char* sA, char* sB, Pipeline<STAGES>& sRing, const TensorMap& tA, const TensorMap& tB, int tiles_m, int tiles, int steps) {
  Stage<STAGES> at;
  for (int i_tile = blockIdx.x; i_tile < tiles; i_tile += gridDim.x)
    for (int k = 0; k < steps; ++k, ++at) {
      producer_acquire(sRing, at, A_BYTES + B_BYTES);
      tensor_load(sA + at.index * A_BYTES, tA, &sRing.full[at.index], k * BLOCK_K, i_tile % tiles_m * BLOCK_M);
      tensor_load(sB + at.index * B_BYTES, tB, &sRing.full[at.index], k * BLOCK_K, i_tile / tiles_m * BLOCK_N);
    }
}

// One warpgroup's 64 x 128: rows `half` * 64 of the tile. A stage is given back when the products after it have been issued.
template <int STAGES>
ROOFTILE_DEVICE void multiply(float (&d)[64], const char* sA, const char* sB, Pipeline<STAGES>& sRing, Stage<STAGES>& at, int half, int steps) {
  Stage<STAGES> before = at;
  for (int k = 0; k < steps; ++k, ++at) {
    consumer_wait(sRing, at);
    const Matrix a = k_major<128>(sA + at.index * A_BYTES + half * PANEL), b = k_major<128>(sB + at.index * B_BYTES);
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < BLOCK_K / 16; ++i) wgmma<__nv_bfloat16, BLOCK_N>(d, a + 32 * i, b + 32 * i, k > 0 || i > 0);
    wgmma_commit();
    if (k == 0) continue;
    wgmma_wait<1>();
    consumer_release(sRing, before);
    ++before;
  }
  wgmma_wait<0>(d);
  consumer_release(sRing, before);
}

// To shared memory, two panels of 64 columns, swizzled as the tensor map says; then one thread stores them.
ROOFTILE_DEVICE void store_tile(const TensorMap& tC, char* sC, const float (&d)[64], int half, int column, int row) {
  const int t = threadIdx.x % 128;
  if (t == 0) bulk_wait_read<0>();
  barrier_sync(1 + half, 128);
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const int column = wgmma_column(i);
    char* two = sC + column / 64 * PANEL + swizzled<128>(wgmma_row(i) * 128 + column % 64 * 2);
    *reinterpret_cast<__nv_bfloat162*>(two) = __floats2bfloat162_rn(d[i], d[i + 1]);
  }
  fence_async();
  barrier_sync(1 + half, 128);
  if (t == 0) {
    tensor_store(tC, sC, column, row);
    tensor_store(tC, sC + PANEL, column + 64, row);
    bulk_commit();
  }
}

template <int STAGES>
__global__ void __launch_bounds__(384, 1)
    gemm(const __grid_constant__ TensorMap tC, const __grid_constant__ TensorMap tA, const __grid_constant__ TensorMap tB, int M, int N, int K) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ Pipeline<STAGES> sRing;
  char *sA = sX, *sB = sA + STAGES * A_BYTES, *sC = sB + STAGES * B_BYTES;
  const int tiles_m = ceil_div(M, BLOCK_M), tiles = tiles_m * ceil_div(N, BLOCK_N), steps = ceil_div(K, BLOCK_K);
  if (threadIdx.x == 0) pipeline_init(sRing, 1, 8);
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_lower<40>();
    if (threadIdx.x == 256) produce(sA, sB, sRing, tA, tB, tiles_m, tiles, steps);
  } else {
    registers_raise<232>();
    const int half = threadIdx.x / 128;
    Stage<STAGES> at;
    for (int i_tile = blockIdx.x; i_tile < tiles; i_tile += gridDim.x) {
      float d[64];
      multiply(d, sA, sB, sRing, at, half, steps);
      store_tile(tC, sC + half * 2 * PANEL, d, half, i_tile / tiles_m * BLOCK_N, i_tile % tiles_m * BLOCK_M + half * 64);
    }
    if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
  }
}
