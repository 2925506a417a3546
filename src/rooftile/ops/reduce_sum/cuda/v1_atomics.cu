// adds: nothing, this is where the ladder begins: a thread an element, an atomic addition each into one number
// costs: N atomics on one address, which one slice of the L2 does one after another; their order is the device's, and so are the last bits
// loses when: N is over some thousands: at one atomic a cycle 2^28 of them take 600 times as long as reading x
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// One chain of N additions: in float it would lose N 2^-24 of the sum, all of it at 2^24 ones; so the number is a double.
__device__ double wide(double x) { return x; }
__device__ double wide(float x) { return x; }
__device__ double wide(__half x) { return static_cast<float>(x); }
__device__ double wide(__nv_bfloat16 x) { return static_cast<float>(x); }

__global__ void clear(double* gSum) { *gSum = 0; }

template <typename T>
__global__ void __launch_bounds__(256) sum(double* gSum, const T* __restrict__ gX, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N) atomicAdd(gSum, wide(gX[i]));
}

template <typename T>
__global__ void finish(T* gOut, const double* gSum) { *gOut = static_cast<T>(*gSum); }
