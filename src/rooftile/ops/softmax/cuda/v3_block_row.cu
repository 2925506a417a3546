// adds: a block a row: up to 1024 threads share a wide one
// costs: 2 reductions with 2 barriers each a row, and every warp waits at them for the slowest
// loses when: N is below about 1024: a warp would do, and most of the block's time is barriers
#include "rooftile/softmax.cuh"

using namespace rooftile;

template <typename T, typename Form>
__device__ __forceinline__ void block_row(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x, Form form) {
  const T* gRow = gX + blockIdx.x * stride_x;
  T* gTo = gOut + blockIdx.x * (long long)N;
  form.open(blockIdx.x);
  const auto score = [&](int i_n) { return form.may(i_n) ? form.score(float(gRow[i_n])) : minus_infinity(); };
  float max = minus_infinity(), sum = 0.0f;
  for (int i_n = threadIdx.x; i_n < form.end(); i_n += blockDim.x) max = fmaxf(max, score(i_n));
  max = block_reduce(max, Max());
  for (int i_n = threadIdx.x; i_n < form.end(); i_n += blockDim.x) sum += exp_fast(score(i_n) - base_of(max));
  sum = block_reduce(sum, Sum());
  form.close({max, sum});
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x) gTo[i_n] = T(form.out(score(i_n)));
}

template <typename T> __global__ void softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  block_row(gOut, gX, N, stride_x, Softmax{N});
}
template <typename T> __global__ void log_softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  block_row(gOut, gX, N, stride_x, LogSoftmax{N});
}
template <typename E, bool MASK, bool CAUSAL>
__global__ void masked_softmax(E* __restrict__ gOut, const E* __restrict__ gX, const unsigned char* __restrict__ gMask, int H, int T,
                               long long mask_b, long long mask_h, long long mask_t, float scale, int N, long long stride_x) {
  block_row(gOut, gX, N, stride_x, Scores<MASK, CAUSAL>{N, H, T, gMask, mask_b, mask_h, mask_t, scale});
}

// dx = scale out (dout - sum(dout out)), or log_softmax's dout - exp(out) sum(dout)
template <typename E, typename Gradient, bool CAUSAL>
__global__ void softmax_backward(E* __restrict__ gDx, const E* __restrict__ gDout, const E* __restrict__ gOut, int N, long long stride_dout,
                                 long long stride_out, int T, float scale) {
  const E *gG = gDout + blockIdx.x * stride_dout, *gY = gOut + blockIdx.x * stride_out;
  E* gTo = gDx + blockIdx.x * (long long)N;
  const int end = reach<CAUSAL>(blockIdx.x, N, T);
  float sum = 0.0f;
  for (int i_n = threadIdx.x; i_n < end; i_n += blockDim.x) sum += Gradient::term(float(gG[i_n]), float(gY[i_n]));
  sum = block_reduce(sum, Sum());
  for (int i_n = threadIdx.x; i_n < N; i_n += blockDim.x)
    gTo[i_n] = E(Gradient::dx(i_n < end ? float(gG[i_n]) : 0.0f, i_n < end ? float(gY[i_n]) : 0.0f, sum) * scale);
}
