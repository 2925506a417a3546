// The headers for Hopper at work, one kernel a wrapper family; the same file runs on the GPU and in the simulator. Every barrier, fence and
// wait in it is needed: a test takes each away in turn and wants a finding.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/slices.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/wgmma.cuh"

using namespace rooftile;

// A block's part of gX, twice: copied to gOut and added into gSum, which all blocks share.
__global__ void bulk(float* gOut, float* gSum, const float* gX, int N) {
  __shared__ __align__(16) float sX[256];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sBarrier, N * 4);
    bulk_load(sX, gX + blockIdx.x * N, N * 4, &sBarrier);
  }
  __syncthreads();
  mbarrier_wait(&sBarrier, 0);
  if (threadIdx.x < N) sX[threadIdx.x] *= 2.0f;
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut + blockIdx.x * N, sX, N * 4);
    bulk_add(gSum, sX, N * 4);
    bulk_commit();
    bulk_wait_read<0>();
    sX[0] = 0.0f;
  }
}

// Two threads: one brings what the other waits for, and has nothing more to do.
__global__ void last(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[4];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 16);
    bulk_load(sX, gX, 16, &sBarrier);
  } else {
    mbarrier_wait(&sBarrier, 0);
    for (int i = 0; i < 4; ++i) gOut[i] = sX[i];
  }
}

// 128 numbers under a policy, three times: loaded, copied (but the last four), brought by the engine.
__global__ void policies(float* gOut, const float* gX, long long bytes) {
  __shared__ uint4 sCopied[32], sBrought[32];
  __shared__ MBarrier sBarrier;
  const Policy policy = evict_last(bytes);
  const uint4* gFrom = reinterpret_cast<const uint4*>(gX) + threadIdx.x;
  uint4* gTo = reinterpret_cast<uint4*>(gOut) + threadIdx.x;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sBarrier, 512);
    bulk_load(sBrought, gX, 512, &sBarrier, policy);
  }
  copy_async(sCopied + threadIdx.x, gFrom, threadIdx.x < 31, policy);
  copy_commit();
  gTo[0] = load_global(gFrom, policy);
  copy_wait<0>();
  gTo[32] = sCopied[threadIdx.x];
  __syncthreads();
  mbarrier_wait(&sBarrier, 0);
  gTo[64] = sBrought[threadIdx.x];
}

// What threads store to global memory a copy then brings.
__global__ void through_global(float* gOut, float* gY, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
  }
  gY[threadIdx.x] = gX[63 - threadIdx.x];
  fence_async_global();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 256);
    bulk_load(sX, gY, 256, &sBarrier);
  }
  mbarrier_wait(&sBarrier, 0);
  gOut[threadIdx.x] = sX[threadIdx.x] + sX[0];
}

// What a box looks like in shared memory, as it lies there.
template <typename T, int BYTES> __global__ void tile(T* gOut, const __grid_constant__ TensorMap tX, int x, int y) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_expect(&sBarrier, BYTES);
    tensor_load(sX, tX, &sBarrier, x, y);
    mbarrier_arrive(&sBarrier);
  }
  __syncthreads();
  while (!mbarrier_test(&sBarrier, 0)) continue;
  for (int i = threadIdx.x; i < BYTES / int(sizeof(T)); i += blockDim.x) gOut[i] = reinterpret_cast<const T*>(sX)[i];
}

// From one tensor to another, each box some places further.
__global__ void boxes(const __grid_constant__ TensorMap tOut, const __grid_constant__ TensorMap tX, int bytes, int by) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x > 0) return;
  mbarrier_init(&sBarrier, 1);
  mbarrier_fence();
  mbarrier_arrive_expect(&sBarrier, bytes);
  const int x = blockIdx.x * 16, y = blockIdx.y * 2, z = blockIdx.z;
  tensor_load(sX, tX, &sBarrier, x, y, z, 0);
  mbarrier_wait(&sBarrier, 0);
  tensor_store(tOut, sX, x + by, y, z);
  bulk_commit();
  bulk_wait<0>();
}

// 8 rows of 16 columns of one head, as many of them as a slice has.
__global__ void slices(float* gOut, const __grid_constant__ TensorMap tX, int column, int i_h, int row, int begin, int length) {
  __shared__ __align__(128) float sX[8 * 16];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sBarrier, sizeof(sX));
    slice_load(sX, tX, &sBarrier, column, i_h, row, Slice::of(begin, length));
  }
  __syncthreads();
  mbarrier_wait(&sBarrier, 0);
  for (int i = threadIdx.x; i < 8 * 16; i += blockDim.x) gOut[i] = sX[i];
}

// Warp 0 brings tiles of 64 floats, the others add them up. The last warp adds its own offset through a stage of stores.
__global__ void ring(float* gOut, const float* gX, int tiles) {
  __shared__ __align__(128) float sX[3][64];
  __shared__ Pipeline<3> sRing;
  __shared__ float sMore[2][64];
  __shared__ Pipeline<2> sStores;
  if (threadIdx.x == 0) {
    pipeline_init(sRing, 1, 2);
    pipeline_init(sStores, 32, 2);
  }
  __syncthreads();
  Stage<3> at;
  Stage<2> more;
  if (warp() == 0) {
    if (lane() == 0)
      for (int i = 0; i < tiles; ++i, ++at) {
        producer_acquire(sRing, at, 256);
        bulk_load(sX[at.index], gX + i * 64, 256, &sRing.full[at.index]);
      }
  } else if (warp() == 3) {
    for (int i = 0; i < tiles; ++i, ++more) {
      producer_acquire(sStores, more);
      sMore[more.index][lane()] = float(i);
      sMore[more.index][lane() + 32] = float(-i);
      producer_commit(sStores, more);
    }
  } else {
    float sum = 0.0f;
    const int t = threadIdx.x - 32;
    for (int i = 0; i < tiles; ++i, ++at, ++more) {
      consumer_wait(sRing, at);
      sum += sX[at.index][t] + sX[at.index][0];  // of one word all warps are readers
      consumer_release(sRing, at);
      consumer_wait(sStores, more);
      sum += sMore[more.index][63 - t] * float(i) + sMore[more.index][1];
      consumer_release(sStores, more);
    }
    gOut[t] = sum;
  }
}

// Two halves of a block hand one value a thread to and fro.
__global__ void ping_pong(float* gOut, const float* gX, int rounds) {
  __shared__ float sX[64];
  const int t = threadIdx.x % 64;
  if (threadIdx.x < 64) {
    sX[t] = gX[t];
    for (int i = 0; i < rounds; ++i) {
      barrier_arrive(1, 128);
      barrier_sync(2, 128);
      sX[t] += 1.0f;
    }
    gOut[t] = sX[t];
  } else {
    for (int i = 0; i < rounds; ++i) {
      barrier_sync(1, 128);
      sX[63 - t] *= 2.0f;
      barrier_arrive(2, 128);
    }
  }
}

// ---- products of 64 rows, N columns and 128 bytes of K, in every way an operand may lie ----------------------------------------

constexpr int line(int swizzle) { return swizzle ? swizzle : 16; }

// An operand of ROWS rows (or columns of B), as the tensor maps of the test bring it: panels of lines, one after the other.
template <typename T, int ROWS, int SWIZZLE, Major MAJOR> ROOFTILE_DEVICE void bring(char* sX, const TensorMap& tX, MBarrier* sBarrier) {
  constexpr int LINE = line(SWIZZLE), LINES = MAJOR == K_MAJOR ? ROWS : 64, PANELS = MAJOR == K_MAJOR ? 128 / LINE : ROWS * 2 / LINE;
  for (int p = 0; p < PANELS; ++p) tensor_load(sX + p * LINES * LINE, tX, sBarrier, p * (LINE / int(sizeof(T))), 0);
}
template <int ROWS, int SWIZZLE, Major MAJOR> ROOFTILE_DEVICE Matrix part(const char* sX, int k) {
  constexpr int LINE = line(SWIZZLE);
  if constexpr (MAJOR == MN_MAJOR) return mn_major<SWIZZLE>(sX, 64 * LINE, 8 * LINE) + k * 16 * LINE;
  if constexpr (SWIZZLE == 0) return k_major<0>(sX + 2 * k * ROWS * 16, 128, ROWS * 16);
  return k_major<SWIZZLE>(sX + k * 32 / LINE * ROWS * LINE) + k * 32 % LINE;
}
template <int N> ROOFTILE_DEVICE void write(float* gD, const float (&d)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) gD[wgmma_row(i) * N + wgmma_column(i)] = d[i];
}

template <typename T, int N, int SWIZZLE, int A, int B>
__global__ void __launch_bounds__(128) product(float* gD, const __grid_constant__ TensorMap tA, const __grid_constant__ TensorMap tB) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ MBarrier sBarrier;
  char *sA = sX, *sB = sX + 64 * 128;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sBarrier, (64 + N) * 128);
    bring<T, 64, SWIZZLE, Major(A)>(sA, tA, &sBarrier);
    bring<T, N, SWIZZLE, Major(B)>(sB, tB, &sBarrier);
  }
  __syncthreads();
  mbarrier_wait(&sBarrier, 0);
  float d[N / 2];
  wgmma_fence(d);
  for (int k = 0; k < 4; ++k) wgmma<T, N, Major(A), Major(B)>(d, part<64, SWIZZLE, Major(A)>(sA, k), part<N, SWIZZLE, Major(B)>(sB, k), k > 0);
  wgmma_commit();
  wgmma_wait<0>(d);
  write<N>(gD, d);
}

// A from registers, and D begins as what gD holds. The tiles are written by the threads themselves.
template <typename T, int N, int B>
__global__ void __launch_bounds__(128) product_registers(float* gD, const T* gA, const __grid_constant__ TensorMap tB) {
  extern __shared__ __align__(1024) char sB[];
  __shared__ MBarrier sBarrier;
  constexpr int K = 128 / int(sizeof(T)), WORD = 4 / int(sizeof(T));
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sBarrier, N * 128);
    bring<T, N, 128, Major(B)>(sB, tB, &sBarrier);
  }
  float d[N / 2];
  unsigned a[4][4];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[i] = gD[wgmma_row(i) * N + wgmma_column(i)];
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i) {
      const T* word = gA + (wgmma_row(0) + i % 2 * 8) * K + (k * 8 + i / 2 * 4 + lane() % 4) * WORD;
      a[k][i] = *reinterpret_cast<const unsigned*>(word);
    }
  __syncthreads();
  mbarrier_wait(&sBarrier, 0);
  wgmma_fence(d, a[0], a[1], a[2], a[3]);
  for (int k = 0; k < 4; ++k) wgmma<T, N, Major(B)>(d, a[k], part<N, 128, Major(B)>(sB, k));
  wgmma_commit();
  wgmma_wait<0>(d);
  write<N>(gD, d);
}

// D = A B^T, A and B of 64 x 64 stored by the threads, swizzled as they like it, in two halves of K that follow one another.
__global__ void __launch_bounds__(128) product_stored(float* gD, const __nv_bfloat16* gA, const __nv_bfloat16* gB) {
  __shared__ __align__(1024) char sA[64 * 64];
  __shared__ __align__(1024) char sB[64 * 64];
  float d[32];
  for (int half = 0; half < 2; ++half) {
    for (int i = threadIdx.x; i < 64 * 32; i += 128) {
      const int at = swizzled<64>(i * 2), from = i / 32 * 64 + half * 32 + i % 32;
      *reinterpret_cast<__nv_bfloat16*>(sA + at) = gA[from];
      *reinterpret_cast<__nv_bfloat16*>(sB + at) = gB[from];
    }
    fence_async();
    __syncthreads();
    wgmma_fence(d);
    for (int k = 0; k < 2; ++k) wgmma<__nv_bfloat16, 64>(d, k_major<64>(sA) + 32 * k, k_major<64>(sB) + 32 * k, half + k > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
    __syncthreads();
  }
  write<64>(gD, d);
}

// Scores to weights, and what came before to the new maximum's scale.
ROOFTILE_DEVICE void soften(float (&s)[32], float (&o)[32], float (&most)[2], float (&sum)[2], float scale) {
  float before[2] = {most[0], most[1]}, shrink[2];
#pragma unroll
  for (int j = 0; j < 32; ++j) most[j / 2 % 2] = fmaxf(most[j / 2 % 2], s[j] *= scale);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = fmaxf(most[h], __shfl_xor_sync(ALL_LANES, most[h], 1));
    most[h] = fmaxf(most[h], __shfl_xor_sync(ALL_LANES, most[h], 2));
    shrink[h] = __expf(before[h] - most[h]), sum[h] *= shrink[h];
  }
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    s[j] = __expf(s[j] - most[j / 2 % 2]), sum[j / 2 % 2] += s[j];
    o[j] *= shrink[j / 2 % 2];
  }
}

// Attention of 64 queries over T keys, heads of 64, softmax online: the first product's D is the second's A, V is read along its rows.
// The next keys are under way while these are used, and the second product while the next first one is computed and waited for.
__global__ void __launch_bounds__(160) attend(float* gO, const __grid_constant__ TensorMap tQ, const __grid_constant__ TensorMap tK,
                                              const __grid_constant__ TensorMap tV, int tiles, float scale) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ Pipeline<2> sKeys, sValues;
  __shared__ MBarrier sQuery;
  constexpr int TILE = 64 * 128;
  char *sQ = sX, *sK = sX + TILE, *sV = sX + 3 * TILE;
  if (threadIdx.x == 0) {
    mbarrier_init(&sQuery, 1);
    pipeline_init(sKeys, 1, 4);
    pipeline_init(sValues, 1, 4);
  }
  __syncthreads();
  Stage<2> k, v;
  if (threadIdx.x == 128) {
    mbarrier_arrive_expect(&sQuery, TILE);
    tensor_load(sQ, tQ, &sQuery, 0, 0);
    for (int i = 0; i < tiles; ++i, ++k) {
      producer_acquire(sKeys, k, TILE);
      tensor_load(sK + k.index * TILE, tK, &sKeys.full[k.index], 0, i * 64);
      producer_acquire(sValues, k, TILE);
      tensor_load(sV + k.index * TILE, tV, &sValues.full[k.index], 0, i * 64);
    }
  }
  if (threadIdx.x >= 128) return;
  float o[32] = {}, most[2] = {-1e30f, -1e30f}, sum[2] = {};
  pin(o);  // zeros made inside the loop would be made while products are under way, and the assembler then runs all of them one by one
  mbarrier_wait(&sQuery, 0);
  for (int i = 0; i < tiles; ++i, ++k, ++v) {
    float s[32];
    consumer_wait(sKeys, k);
    wgmma_fence(s);
#pragma unroll
    for (int j = 0; j < 4; ++j) wgmma<__nv_bfloat16, 64>(s, k_major<128>(sQ) + 32 * j, k_major<128>(sK + k.index * TILE) + 32 * j, j > 0);
    wgmma_commit();
    wgmma_wait<0>(s, o);
    consumer_release(sKeys, k);
    if (i > 0) consumer_release(sValues, Stage<2>{v.index ^ 1, 0});
    unsigned p[4][4];
    soften(s, o, most, sum, scale);
#pragma unroll
    for (int j = 0; j < 4; ++j) wgmma_operand<__nv_bfloat16>(p[j], s, j);
    consumer_wait(sValues, v);
    wgmma_fence(o, p[0], p[1], p[2], p[3]);
#pragma unroll
    for (int j = 0; j < 4; ++j) wgmma<__nv_bfloat16, 64, MN_MAJOR>(o, p[j], mn_major<128>(sV + v.index * TILE, 0) + j * 16 * 128);
    wgmma_commit();
  }
  wgmma_wait<0>(o);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
    sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
  }
#pragma unroll
  for (int j = 0; j < 32; ++j) gO[wgmma_row(j) * 64 + wgmma_column(j)] = o[j] / sum[j / 2 % 2];
}

// A warp's 16 rows of 128 numbers: 2 to the x as operands, into two panels of a tile with 24 rows, from row 8 on, and out again with what unpack_pair makes of them.
__global__ void operand_stored(float* gOut, float* gUnpacked, const float* gX) {
  constexpr int PANEL = 24 * 128;
  __shared__ __align__(1024) char sX[2 * PANEL];
  float d[64];
  unsigned a[8][4];
  for (int i = 0; i < 64; ++i) d[i] = exp2_fast(gX[wgmma_row(i) * 128 + wgmma_column(i)]);
  for (int k = 0; k < 8; ++k) wgmma_operand<__nv_bfloat16>(a[k], d, k);
  store_operand(sX, PANEL, 8, a);
  __syncwarp();
  for (int i = 0; i < 64; i += 2) {
    const int row = wgmma_row(i), column = wgmma_column(i);
    const float2 both = unpack_pair(__nv_bfloat16(), a[i / 8][i / 2 % 4]);
    gUnpacked[row * 128 + column] = both.x, gUnpacked[row * 128 + column + 1] = both.y;
  }
  for (int i = threadIdx.x; i < 16 * 128; i += 32) {
    const int row = i / 128, column = i % 128;
    gOut[i] = float(*reinterpret_cast<const __nv_bfloat16*>(sX + column / 64 * PANEL + swizzled<128>((8 + row) * 128 + column % 64 * 2)));
  }
}
