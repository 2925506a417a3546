// adds: 16 bytes an access, the widest there is: a quarter (fp32) or an eighth (fp16) of the requests for the same bytes
// costs: every tensor must begin at a multiple of 16 bytes; the last few elements go one by one
// loses when: N is small: fewer threads have work, 16 of a warp's 32 for 128 halves
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(16) Pack {
  T at[16 / sizeof(T)];
};

// A is what the addition is done in: float for floating T, int for int
template <typename T, typename A>
__global__ void increment(T* __restrict__ gOut, const T* __restrict__ gX, A value, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N / WIDTH) {
    const Pack<T> rX = reinterpret_cast<const Pack<T>*>(gX)[i];
    Pack<T> rOut;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rOut.at[k] = T(A(rX.at[k]) + value);
    reinterpret_cast<Pack<T>*>(gOut)[i] = rOut;
  }
  const long long last = N / WIDTH * WIDTH + i;  // fewer than WIDTH are left, and the first block has more threads than that
  if (last < N) gOut[last] = T(A(gX[last]) + value);
}

template <typename T>
__global__ void copy(T* __restrict__ gDx, const T* __restrict__ gDout, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N / WIDTH) reinterpret_cast<Pack<T>*>(gDx)[i] = reinterpret_cast<const Pack<T>*>(gDout)[i];
  const long long last = N / WIDTH * WIDTH + i;
  if (last < N) gDx[last] = gDout[last];
}
