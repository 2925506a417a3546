// adds: a tree, up and down again: 2 additions an element instead of 8, and 512 elements a tile, so half as many tiles wait for each other
// costs: 18 barriers a tile, and in the middle of the tree few threads work; a word of padding every 32, or their banks would be the same
// loses when: rows are few or long, as before: still a block a row
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BLOCK = 256, TILE = 2 * BLOCK;

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
template <typename T, typename S, bool EXCLUSIVE, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) scan(T* __restrict__ gOut, const T* __restrict__ gX, long long N, long long stride) {
  __shared__ S sSum[TILE + TILE / 32];
  gX += blockIdx.x * stride, gOut += blockIdx.x * N;
  S before = 0;
  for (long long start = 0; start < N; start += TILE) {
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
