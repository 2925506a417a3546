// adds: nothing, this is where the ladder begins: a thread an element of the result, each tensor with a row stride of its own
// costs: a thread asks for 2 or 4 bytes at a time
// loses when: N is large: a warp's request is 64 bytes of halves, and the requests, not the bytes, fill the memory pipe
#include "rooftile/activation.cuh"

using namespace rooftile;

// A row is `tiles` blocks.
template <typename T, typename Act>
__global__ void gated(T* __restrict__ gOut, const T* __restrict__ gGate, const T* __restrict__ gUp, long long N, int tiles,
                      long long stride_gate, long long stride_up) {
  const long long i_m = blockIdx.x / tiles, i_n = blockIdx.x % tiles * (long long)blockDim.x + threadIdx.x;
  if (i_n < N) gOut[i_m * N + i_n] = T(Act::value(float(gGate[i_m * stride_gate + i_n])) * float(gUp[i_m * stride_up + i_n]));
}

// AGAIN: and the result itself, over dout.
template <typename T, typename Act, bool AGAIN>
__global__ void gated_backward(T* __restrict__ gDgate, T* __restrict__ gDup, T* __restrict__ gDout, const T* __restrict__ gGate,
                               const T* __restrict__ gUp, long long N, int tiles, long long stride_dout, long long stride_gate,
                               long long stride_up, long long stride_dgate, long long stride_dup) {
  const long long i_m = blockIdx.x / tiles, i_n = blockIdx.x % tiles * (long long)blockDim.x + threadIdx.x;
  if (i_n >= N) return;
  const float dout = float(gDout[i_m * stride_dout + i_n]);
  const Point at = Act::point(float(gGate[i_m * stride_gate + i_n]));
  gDgate[i_m * stride_dgate + i_n] = T(dout * float(gUp[i_m * stride_up + i_n]) * at.d);
  gDup[i_m * stride_dup + i_n] = T(dout * at.y);
  if (AGAIN) gDout[i_m * stride_dout + i_n] = T(at.y * float(gUp[i_m * stride_up + i_n]));
}
