// adds: nothing, this is where the ladder begins: a thread an element, arithmetic in float, tanh as one exponential
// costs: a thread asks for 2 or 4 bytes at a time
// loses when: N is large: a warp's request is 64 bytes of halves, and the requests, not the bytes, fill the memory pipe
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

template <typename T, bool TANH>
__global__ void gelu(T* __restrict__ gOut, const T* __restrict__ gX, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N) gOut[i] = T(value<TANH>(float(gX[i])));
}

template <typename T, bool TANH>
__global__ void gelu_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gX, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N) gDx[i] = T(float(gDout[i]) * slope<TANH>(float(gX[i])));
}
