// adds: nothing, this is where the ladder begins: a thread an element
// costs: a thread asks for 2 or 4 bytes at a time, and every 256 elements a block is scheduled anew
// loses when: N is large: many small requests and 2^20 short blocks for 2^28 elements
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void add(T* __restrict__ gOut, const T* __restrict__ gX, const T* __restrict__ gY, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N) gOut[i] = gX[i] + gY[i];
}

template <typename T>
__global__ void copy(T* __restrict__ gDx, const T* __restrict__ gDout, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N) gDx[i] = gDout[i];
}
