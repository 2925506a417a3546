// adds: many blocks a row: sums of segments of 8192, sums of those, then each segment scanned from its start; blocks no longer wait
// costs: x is read twice: 12 bytes a float32 element move instead of 8, so two thirds of the ceiling at best; three launches
// loses when: there are as many rows as blocks fit the device, where a block a row reads once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

constexpr int BLOCK = 256, TILE = 2 * BLOCK, SEGMENT = 16 * TILE;

__device__ __forceinline__ int padded(int i) { return i + i / 32; }

// sSum becomes what lies before each of its elements; the sum of all is returned. Begins and ends with a barrier.
template <typename S>
__device__ __forceinline__ S sums_before(S* sSum) {
  const int t = int(threadIdx.x);
#pragma unroll 1
  for (int half = 1; half < TILE; half *= 2) {
    __syncthreads();
    const int right = (2 * t + 2) * half - 1;
    if (right < TILE) sSum[padded(right)] += sSum[padded(right - half)];
  }
  __syncthreads();
  const S sum = sSum[padded(TILE - 1)];
  __syncthreads();
  if (t == 0) sSum[padded(TILE - 1)] = 0;
#pragma unroll 1
  for (int half = TILE / 2; half > 0; half /= 2) {
    __syncthreads();
    const int right = (2 * t + 2) * half - 1;
    if (right < TILE) {
      const S left = sSum[padded(right - half)], before = sSum[padded(right)];
      sSum[padded(right - half)] = before;
      sSum[padded(right)] = before + left;
    }
  }
  __syncthreads();
  return sum;
}

// S is float, or unsigned where T is int: it wraps, and is allowed to
template <typename T, typename S, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) segment_sums(S* __restrict__ gSums, const T* __restrict__ gX, long long N, long long stride,
                                                      int segments) {
  gX += blockIdx.x / segments * stride;
  const long long begin = blockIdx.x % segments * (long long)SEGMENT;
  S sum = 0;
  for (int t = int(threadIdx.x); t < SEGMENT; t += BLOCK) {
    const long long i = begin + t;
    if (i < N) sum += S(gX[REVERSE ? N - 1 - i : i]);
  }
  sum = rooftile::block_reduce(sum, rooftile::Sum());
  if (threadIdx.x == 0) gSums[blockIdx.x] = sum;
}

// In place: of each segment the sum of those before it in its row. A block a row.
template <typename S>
__global__ void __launch_bounds__(BLOCK) segment_starts(S* __restrict__ gSums, int segments) {
  __shared__ S sSum[TILE + TILE / 32];
  gSums += blockIdx.x * (long long)segments;
  S before = 0;
  for (int start = 0; start < segments; start += TILE) {
    for (int t = int(threadIdx.x); t < TILE; t += BLOCK) sSum[padded(t)] = start + t < segments ? gSums[start + t] : S(0);
    const S sum = sums_before(sSum);
    for (int t = int(threadIdx.x); t < TILE; t += BLOCK)
      if (start + t < segments) gSums[start + t] = before + sSum[padded(t)];
    before += sum;
  }
}

template <typename T, typename S, bool EXCLUSIVE, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) scan(T* __restrict__ gOut, const T* __restrict__ gX, const S* __restrict__ gStarts, long long N,
                                              long long stride, int segments) {
  __shared__ S sSum[TILE + TILE / 32];
  gX += blockIdx.x / segments * stride, gOut += blockIdx.x / segments * N;
  const long long begin = blockIdx.x % segments * (long long)SEGMENT, end = begin + SEGMENT < N ? begin + SEGMENT : N;
  S before = gStarts[blockIdx.x];
  for (long long start = begin; start < end; start += TILE) {
    S rX[2];
    for (int k = 0; k < 2; ++k) {
      const int t = int(threadIdx.x) + k * BLOCK;
      const long long i = start + t;
      rX[k] = i < N ? S(gX[REVERSE ? N - 1 - i : i]) : S(0);
      sSum[padded(t)] = rX[k];
    }
    const S sum = sums_before(sSum);
    for (int k = 0; k < 2; ++k) {
      const int t = int(threadIdx.x) + k * BLOCK;
      const long long i = start + t;
      if (i < N) gOut[REVERSE ? N - 1 - i : i] = T(before + (EXCLUSIVE ? sSum[padded(t)] : sSum[padded(t)] + rX[k]));
    }
    before += sum;
  }
}
