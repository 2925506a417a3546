// adds: 16 bytes an access, the widest there is: a quarter (fp32) or an eighth (fp16) of the requests for the same bytes
// costs: every tensor must begin at a multiple of 16 bytes; the last few elements go one by one
// loses when: N is small: fewer threads have work, 16 of a warp's 32 for 128 halves
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(16) Pack {
  T at[16 / sizeof(T)];
};

// __launch_bounds__: the grid counts on 8 blocks a multiprocessor; unrolled without the bound, 40 registers leave room for 6
template <typename T>
__global__ void __launch_bounds__(256, 8) add(T* __restrict__ gOut, const T* __restrict__ gX, const T* __restrict__ gY, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
  for (long long i = first; i < N / WIDTH; i += step) {
    const Pack<T> rX = reinterpret_cast<const Pack<T>*>(gX)[i], rY = reinterpret_cast<const Pack<T>*>(gY)[i];
    Pack<T> rOut;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rOut.at[k] = rX.at[k] + rY.at[k];
    reinterpret_cast<Pack<T>*>(gOut)[i] = rOut;
  }
  const long long i = N / WIDTH * WIDTH + first;  // fewer than WIDTH are left, and the first block has more threads than that
  if (i < N) gOut[i] = gX[i] + gY[i];
}

template <typename T>
__global__ void __launch_bounds__(256, 8) copy(T* __restrict__ gDx, const T* __restrict__ gDout, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
  for (long long i = first; i < N / WIDTH; i += step) reinterpret_cast<Pack<T>*>(gDx)[i] = reinterpret_cast<const Pack<T>*>(gDout)[i];
  const long long i = N / WIDTH * WIDTH + first;
  if (i < N) gDx[i] = gDout[i];
}
