// adds: two 16-bit elements an access and a conversion: half2 and bfloat162
// costs: every tensor must begin at a multiple of 4 bytes; an odd last element goes alone; float32 has nothing to pair
// loses when: N is small: half as many threads have work
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

__device__ __forceinline__ float2 wide(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ float2 wide(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ void narrow(__half2& rOut, float2 x) { rOut = __float22half2_rn(x); }
__device__ __forceinline__ void narrow(__nv_bfloat162& rOut, float2 x) { rOut = __float22bfloat162_rn(x); }

template <typename T> struct Pair;
template <> struct Pair<__half> { using type = __half2; };
template <> struct Pair<__nv_bfloat16> { using type = __nv_bfloat162; };

template <typename T, bool TANH>
__global__ void gelu(T* __restrict__ gOut, const T* __restrict__ gX, long long N) {
  using T2 = typename Pair<T>::type;
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N / 2) {
    const float2 rX = wide(reinterpret_cast<const T2*>(gX)[i]);
    T2 rOut;
    narrow(rOut, make_float2(value<TANH>(rX.x), value<TANH>(rX.y)));
    reinterpret_cast<T2*>(gOut)[i] = rOut;
  } else if (2 * i < N) {
    gOut[N - 1] = T(value<TANH>(float(gX[N - 1])));
  }
}

template <typename T, bool TANH>
__global__ void gelu_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gX, long long N) {
  using T2 = typename Pair<T>::type;
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < N / 2) {
    const float2 rX = wide(reinterpret_cast<const T2*>(gX)[i]), rDout = wide(reinterpret_cast<const T2*>(gDout)[i]);
    T2 rDx;
    narrow(rDx, make_float2(rDout.x * slope<TANH>(rX.x), rDout.y * slope<TANH>(rX.y)));
    reinterpret_cast<T2*>(gDx)[i] = rDx;
  } else if (2 * i < N) {
    gDx[N - 1] = T(float(gDout[N - 1]) * slope<TANH>(float(gX[N - 1])));
  }
}
