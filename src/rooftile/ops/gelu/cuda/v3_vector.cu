// adds: 16 bytes an access in every dtype, eight halves or four floats a thread
// costs: every tensor must begin at a multiple of 16 bytes; the last few elements go one by one
// loses when: N is small: an eighth as many threads have work
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// tanh form: 0.5 (1 + tanh z) = 1 / (1 + exp(-2 z)), z = sqrt(2/pi) (x + 0.044715 x^3)
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-1.5957691216057308f * x * (1.0f + 0.044715f * x * x))); }

__device__ __forceinline__ float phi(float x) { return 0.5f * (1.0f + erff(x * 0.7071067811865476f)); }

template <bool TANH>
__device__ __forceinline__ float value(float x) {
  return x * (TANH ? sigmoid(x) : phi(x));
}

template <bool TANH>
__device__ __forceinline__ float slope(float x) {
  if (!TANH) return phi(x) + x * 0.3989422804014327f * __expf(-0.5f * x * x);
  const float s = sigmoid(x);
  return s + x * s * (1.0f - s) * 1.5957691216057308f * (1.0f + 0.134145f * x * x);
}

template <typename T>
struct alignas(16) Pack {
  T at[16 / sizeof(T)];
};

template <typename T, bool TANH>
__global__ void gelu(T* __restrict__ gOut, const T* __restrict__ gX, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N / WIDTH) {
    const Pack<T> rX = reinterpret_cast<const Pack<T>*>(gX)[i];
    Pack<T> rOut;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rOut.at[k] = T(value<TANH>(float(rX.at[k])));
    reinterpret_cast<Pack<T>*>(gOut)[i] = rOut;
  }
  const long long last = N / WIDTH * WIDTH + i;  // fewer than WIDTH are left, and the first block has more threads than that
  if (last < N) gOut[last] = T(value<TANH>(float(gX[last])));
}

template <typename T, bool TANH>
__global__ void gelu_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gX, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N / WIDTH) {
    const Pack<T> rDout = reinterpret_cast<const Pack<T>*>(gDout)[i], rX = reinterpret_cast<const Pack<T>*>(gX)[i];
    Pack<T> rDx;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rDx.at[k] = T(float(rDout.at[k]) * slope<TANH>(float(rX.at[k])));
    reinterpret_cast<Pack<T>*>(gDx)[i] = rDx;
  }
  const long long last = N / WIDTH * WIDTH + i;
  if (last < N) gDx[last] = T(float(gDout[last]) * slope<TANH>(float(gX[last])));
}
