// adds: VECS vectors of 16 bytes a thread asked for before the first is used, a large tensor's as the last to leave the L2; a polynomial for Phi
// costs: VECS x 4 registers; a block's last vectors are asked for one by one where the tensor ends inside it
// loses when: N is small: VECS times fewer threads than in v3 have work
#include "rooftile/activation.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

// As Gelu, whose polynomial is right to what float32 holds, for results of 16 bits: three terms fewer, 3e-5 of the tail, which moves one of fifty float16 by its
// last bit, one of 5000 bfloat16, and none by more.
struct GeluOf16 {
  static ROOFTILE_DEVICE float value(float x) {
    const float t = reciprocal(1.0f + 0.377f * fabsf(x));
    float p = -0.090820486f * t + 0.19666804f;
    p = p * t + 0.086261176f;
    p = p * t + 0.15796938f;
    p = p * t + 0.1499072f;
    const float tail = p * t * Gelu::bell(x);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
};

template <typename T, typename Act, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS) gelu(T* __restrict__ gOut, const T* __restrict__ gX, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i_n = blockIdx.x * (long long)(VECS * THREADS) + threadIdx.x, vectors = N / WIDTH;
  const Policy policy = evict_last(N * (long long)sizeof(T));
  uint4 rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (i_n + v * THREADS < vectors) rX[v] = load_global(reinterpret_cast<const uint4*>(gX) + i_n + v * THREADS, policy);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (i_n + v * THREADS >= vectors) break;
    float rF[WIDTH];
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = Act::value(rF[k]);
    pack<T>(rX[v], rF);
    __stwb(reinterpret_cast<uint4*>(gOut) + i_n + v * THREADS, rX[v]);
  }
  const long long last = vectors * WIDTH + i_n;  // fewer than WIDTH are left, and the first block has more threads than that
  if (last < N) gOut[last] = T(Act::value(float(gX[last])));
}

template <typename T, typename Act, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS) gelu_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gX, long long N) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i_n = blockIdx.x * (long long)(VECS * THREADS) + threadIdx.x, vectors = N / WIDTH;
  const Policy policy = evict_last(2 * N * (long long)sizeof(T));
  uint4 rDout[VECS], rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (i_n + v * THREADS >= vectors) break;
    rDout[v] = load_global(reinterpret_cast<const uint4*>(gDout) + i_n + v * THREADS, policy);
    rX[v] = load_global(reinterpret_cast<const uint4*>(gX) + i_n + v * THREADS, policy);
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (i_n + v * THREADS >= vectors) break;
    float rG[WIDTH], rF[WIDTH];
    unpack<T>(rG, rDout[v]), unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = rG[k] * Act::point(rF[k]).d;
    pack<T>(rX[v], rF);
    __stwb(reinterpret_cast<uint4*>(gDx) + i_n + v * THREADS, rX[v]);
  }
  const long long last = vectors * WIDTH + i_n;
  if (last < N) gDx[last] = T(float(gDout[last]) * Act::point(float(gX[last])).d);
}
