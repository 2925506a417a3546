// adds: nothing, this is where the ladder begins: a block a row, 256 elements at a time, every sum doubled in reach 8 times
// costs: 8 additions and 8 barriers for an element of a tile, where a sum in one thread has 1 and none
// loses when: rows are few (a block each: 1 row is 1 of 132 multiprocessors) or long (a tile waits for the tile before)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BLOCK = 256;

// S is float, or unsigned where T is int: it wraps, and is allowed to
template <typename T, typename S, bool EXCLUSIVE, bool REVERSE>
__global__ void __launch_bounds__(BLOCK) scan(T* __restrict__ gOut, const T* __restrict__ gX, long long N, long long stride) {
  __shared__ S sSum[2][BLOCK];
  gX += blockIdx.x * stride, gOut += blockIdx.x * N;
  const int t = int(threadIdx.x);
  S before = 0;
  for (long long start = 0; start < N; start += BLOCK) {
    const long long i = start + t, i_n = REVERSE ? N - 1 - i : i;
    int from = 0;
    sSum[0][t] = i < N ? S(gX[i_n]) : S(0);
    __syncthreads();
    for (int reach = 1; reach < BLOCK; reach *= 2, from ^= 1) {
      sSum[from ^ 1][t] = t >= reach ? sSum[from][t] + sSum[from][t - reach] : sSum[from][t];
      __syncthreads();
    }
    S sum = sSum[from][t];
    if (EXCLUSIVE) sum = t > 0 ? sSum[from][t - 1] : S(0);
    if (i < N) gOut[i_n] = T(before + sum);
    before += sSum[from][BLOCK - 1];
    __syncthreads();
  }
}
