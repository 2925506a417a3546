// adds: nothing, this is where the ladder begins: a thread an element; backward a thread a column for the bias, in a launch of its own
// costs: a thread asks for 2 or 4 bytes at a time, and for one of the mask; backward dout and mask are read twice
// loses when: always; most where N is small and M large: N threads add M rows
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A row is `tiles` blocks.
template <typename T, typename B>
__global__ void forward(T* __restrict__ gOut, const T* __restrict__ gX, const B* __restrict__ gBias, const unsigned char* __restrict__ gMask,
                        const T* __restrict__ gResidual, int N, int tiles, float scale, long long stride_x, long long stride_mask,
                        long long stride_residual) {
  const long long i_m = blockIdx.x / tiles;
  const int i_n = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  if (i_n >= N) return;
  const float kept = gMask[i_m * stride_mask + i_n] ? (float(gX[i_m * stride_x + i_n]) + float(gBias[i_n])) * scale : 0.0f;
  gOut[i_m * N + i_n] = T(kept + float(gResidual[i_m * stride_residual + i_n]));
}

template <typename T>
__global__ void backward(T* __restrict__ gDx, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask, int N, int tiles,
                         float scale, long long stride_dout, long long stride_mask) {
  const long long i_m = blockIdx.x / tiles;
  const int i_n = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  if (i_n < N) gDx[i_m * N + i_n] = T(gMask[i_m * stride_mask + i_n] ? float(gDout[i_m * stride_dout + i_n]) * scale : 0.0f);
}

// A thread a column: dbias = sum over rows of dx
template <typename T, typename B>
__global__ void columns(B* __restrict__ gDbias, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask, long long M, int N,
                        float scale, long long stride_dout, long long stride_mask) {
  const int i_n = blockIdx.x * blockDim.x + threadIdx.x;
  if (i_n >= N) return;
  float sum = 0.0f;
  for (long long first = 0; first < M; first += 32) {  // 32 rows and then their sum: M terms one after another would show
    float run = 0.0f;
    for (long long i_m = first; i_m < M && i_m < first + 32; ++i_m)
      if (gMask[i_m * stride_mask + i_n]) run += float(gDout[i_m * stride_dout + i_n]) * scale;
    sum += run;
  }
  gDbias[i_n] = B(sum);
}
