// adds: flat matrices: a block all rows of a slice of columns, so that x is read once
// costs: registers
// loses when: tall
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// v4_split's with ROWS rows side by side; slices are runs of `share` vectors
template <typename T, int THREADS, int ROWS, int EACH, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) flat(float* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, long long M,
                                                       long long K, long long stride_m, long long share) {
  constexpr int WIDTH = 16 / sizeof(T), WARPS = THREADS / WARP;
  __shared__ float sSum[ROWS][WARPS];
  const long long i_m = blockIdx.x * (long long)ROWS, vectors = K / WIDTH, end = min((blockIdx.y + 1) * share, vectors);
  float rSum[ROWS] = {};
  const Policy policy = evict_first(M * K * (long long)sizeof(T));
  let_next_stand_by();
  const T* gFirst = gA + i_m * stride_m;
#pragma unroll 1
  for (long long i = blockIdx.y * share + threadIdx.x; i < end; i += EACH * THREADS) {
    Wide<T> rA[EACH][ROWS], rX[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const bool in = i + j * THREADS < end;
      if (in) load(rX[j], gX + (i + j * THREADS) * WIDTH);
      else fill(rX[j], T(0.0f));
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const long long row = i_m + r < M ? r : M - 1 - i_m;
        if (in) rA[j][r].whole = load_global(reinterpret_cast<const uint4*>(gFirst + row * stride_m + (i + j * THREADS) * WIDTH), policy);
        else fill(rA[j][r], T(0.0f));
      }
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      float rF[WIDTH];
      to_float(rF, rX[j]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[r] += static_cast<float>(rA[j][r][k]) * rF[k];
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    rSum[r] = warp_reduce(rSum[r], Sum());
    if (lane() == 0) sSum[r][warp()] = rSum[r];
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r >= ROWS || i_m + r >= M) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) total += sSum[r][w];
  gOut[(i_m + r) * gridDim.y + blockIdx.y] = total;
}

// The copy engine fills a ring of stages, each VECTORS x 16 bytes of ROWS rows and of x: M is ROWS, K a multiple of a tile's columns. 256 threads use what
// the warp beside them has asked for: VECTORS of them a group of rows.
template <typename T, int ROWS, int VECTORS, int STAGES>
__global__ void __launch_bounds__(288, 1) ring(float* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, long long M, long long K,
                                              long long stride_m, long long tiles) {
  constexpr int WIDTH = 16 / sizeof(T), GROUPS = 256 / VECTORS, EACH = ROWS / GROUPS, PER = VECTORS / WARP, BYTES = (ROWS + 1) * VECTORS * 16;
  static_assert(GROUPS * EACH == ROWS && ROWS < WARP, "rows are dealt evenly, and a lane asks for one");
  extern __shared__ __align__(128) uint4 sTile[];
  __shared__ Pipeline<STAGES> sRing;
  __shared__ float sSum[ROWS][PER];
  let_next_stand_by();
  if (threadIdx.x == 0) pipeline_init(sRing, 1, 8);
  __syncthreads();
  Stage<STAGES> at;
  if (warp() == 8) {
    const Policy policy = evict_first(M * K * (long long)sizeof(T));
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x, ++at) {
      if (lane() == 0) producer_acquire(sRing, at, BYTES);
      __syncwarp();
      uint4* sTo = sTile + (at.index * (ROWS + 1) + lane()) * VECTORS;
      if (lane() < ROWS) bulk_load(sTo, gA + lane() * stride_m + i * (VECTORS * WIDTH), VECTORS * 16, &sRing.full[at.index], policy);
      else if (lane() == ROWS) bulk_load(sTo, gX + i * (VECTORS * WIDTH), VECTORS * 16, &sRing.full[at.index]);
    }
  } else {
    const int v = threadIdx.x % VECTORS, first = threadIdx.x / VECTORS * EACH;
    float rSum[EACH] = {};
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x, ++at) {
      consumer_wait(sRing, at);
      const uint4* sFrom = sTile + at.index * (ROWS + 1) * VECTORS + v;
      Wide<T> rX, rA[EACH];
      rX.whole = sFrom[ROWS * VECTORS];
#pragma unroll
      for (int r = 0; r < EACH; ++r) rA[r].whole = sFrom[(first + r) * VECTORS];
      consumer_release(sRing, at);
      float rF[WIDTH];
      to_float(rF, rX);
#pragma unroll
      for (int r = 0; r < EACH; ++r)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[r] += static_cast<float>(rA[r][k]) * rF[k];
    }
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
      rSum[r] = warp_reduce(rSum[r], Sum());
      if (lane() == 0) sSum[first + r][warp() % PER] = rSum[r];
    }
  }
  __syncthreads();
  if (threadIdx.x >= ROWS) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < PER; ++w) total += sSum[threadIdx.x][w];
  gOut[threadIdx.x * (long long)gridDim.x + blockIdx.x] = total;
}

template <typename T>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, long long M, int slices) {
  const long long i_m = blockIdx.x * 8LL + warp();
  if (i_m >= M) return;
  float rSum = 0;
  earlier_done();
#pragma unroll 4
  for (int i = lane(); i < slices; i += WARP) rSum += gPartial[i_m * slices + i];
  rSum = warp_reduce(rSum, Sum());
  if (lane() == 0) gOut[i_m] = static_cast<T>(rSum);
}

// x stays in registers, VECS vectors a thread, and a block walks down the rows, ROWS at a time: K is at most THREADS x VECS vectors, and a multiple of one.
template <typename T, int THREADS, int VECS, int ROWS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) kept(T* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, long long M, long long K,
                                                       long long stride_m) {
  constexpr int WIDTH = 16 / sizeof(T), WARPS = THREADS / WARP;
  __shared__ float sSum[2][ROWS][WARPS];
  Wide<T> rX[VECS];
  const int last = int(K / WIDTH);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (int(threadIdx.x) + v * THREADS < last) load(rX[v], gX + (threadIdx.x + v * THREADS) * WIDTH);
    else fill(rX[v], T(0.0f));
  }
  const Policy policy = evict_first(M * K * (long long)sizeof(T));
  int turn = 0;
#pragma unroll 1
  for (long long i_m = blockIdx.x * (long long)ROWS; i_m < M; i_m += gridDim.x * (long long)ROWS, turn ^= 1) {
    Wide<T> rA[ROWS][VECS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        const T* g = gA + min(i_m + r, M - 1) * stride_m + min(int(threadIdx.x) + v * THREADS, last - 1) * WIDTH;
        rA[r][v].whole = load_global(reinterpret_cast<const uint4*>(g), policy);
      }
    float rSum[ROWS] = {};
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rF[WIDTH];
      to_float(rF, rX[v]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[r] += static_cast<float>(rA[r][v][k]) * rF[k];
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      rSum[r] = warp_reduce(rSum[r], Sum());
      if (lane() == 0) sSum[turn][r][warp()] = rSum[r];
    }
    __syncthreads();
    const int r = threadIdx.x;
    if (r < ROWS && i_m + r < M) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) total += sSum[turn][r][w];
      gOut[i_m + r] = static_cast<T>(total);
    }
  }
}
