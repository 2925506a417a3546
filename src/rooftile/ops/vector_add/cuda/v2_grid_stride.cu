// adds: a grid of no more blocks than the device holds; every thread strides through the array
// costs: a loop with 64-bit arithmetic, and the loads of one turn wait for the turn before
// loses when: N is below one full grid (270336 elements on 132 multiprocessors), where no thread takes a second turn
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// __launch_bounds__: the grid counts on 8 blocks a multiprocessor
template <typename T>
__global__ void __launch_bounds__(256, 8) add(T* __restrict__ gOut, const T* __restrict__ gX, const T* __restrict__ gY, long long N) {
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < N; i += step) gOut[i] = gX[i] + gY[i];
}

template <typename T>
__global__ void __launch_bounds__(256, 8) copy(T* __restrict__ gDx, const T* __restrict__ gDout, long long N) {
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < N; i += step) gDx[i] = gDout[i];
}
