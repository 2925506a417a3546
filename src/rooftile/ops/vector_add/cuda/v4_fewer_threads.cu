// adds: 1280 threads a multiprocessor instead of 2048, a vector each: fewer requests under way, and those of one tensor closer together
// costs: registers, which are what keeps other blocks out: 41 to 48 of them leave room for 10 blocks of 128
// loses when: sums are not what is waited for: a kernel that computes would miss the threads
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int BLOCK = 128, AT_ONCE = 15;  // of a ragged block's elements, a thread's: more than it has, for the registers that they take

template <typename T>
__global__ void __launch_bounds__(BLOCK) add(T* gOut, const T* gX, const T* gY, long long N) {
  constexpr int WIDTH = 16 / sizeof(T), ALL = BLOCK * WIDTH;
  const long long first = blockIdx.x * (long long)ALL;
  if (first + ALL <= N) {
    const long long i = first + threadIdx.x * WIDTH;
    Wide<T> x, y;
    load(x, gX + i);
    load(y, gY + i);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) x[k] = x[k] + y[k];
    store(gOut + i, x);
    return;
  }
  T x[AT_ONCE], y[AT_ONCE];
#pragma unroll
  for (int k = 0; k < AT_ONCE; ++k) {
    const long long i = first + k * BLOCK + threadIdx.x;
    x[k] = y[k] = T(0.0f);
    if (i < N) x[k] = gX[i], y[k] = gY[i];
  }
#pragma unroll
  for (int k = 0; k < AT_ONCE; ++k) {
    const long long i = first + k * BLOCK + threadIdx.x;
    if (i < N) gOut[i] = x[k] + y[k];
  }
}
