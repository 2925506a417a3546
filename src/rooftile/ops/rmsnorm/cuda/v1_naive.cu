// adds: nothing, this is where the ladder begins: a block of 256 a row, two passes, partial sums in shared memory halved eight times
// costs: 9 barriers a row, with half of the threads idle after each; the row is read twice, 2 or 4 bytes at a time
// loses when: always; most where N is small, and the barriers are all there is
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float tree(float sum) {
  __shared__ float sSum[256];
  sSum[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) sSum[threadIdx.x] += sSum[threadIdx.x + half];
    __syncthreads();
  }
  return sSum[0];
}

template <typename T, typename W, bool WEIGHT>
__global__ void rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW, int N,
                        long long stride_x, float eps, float offset) {
  const T* gRow = gX + blockIdx.x * stride_x;
  float sum = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) sum += float(gRow[i_n]) * float(gRow[i_n]);
  const float rstd = rsqrtf(tree(sum) / N + eps);
  for (int i_n = threadIdx.x; i_n < N; i_n += 256)
    gOut[blockIdx.x * (long long)N + i_n] = T(float(gRow[i_n]) * rstd * (WEIGHT ? float(gW[i_n]) + offset : 1.0f));
  if (gRstd && threadIdx.x == 0) gRstd[blockIdx.x] = rstd;
}

// n = x rstd, g = w dout: dx = rstd (g - n mean(g n))
template <typename T, typename W, bool WEIGHT>
__global__ void rmsnorm_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gX, const W* __restrict__ gW,
                                 const float* __restrict__ gRstd, int N, long long stride_dout, long long stride_x, float offset) {
  const T *gG = gDout + blockIdx.x * stride_dout, *gRow = gX + blockIdx.x * stride_x;
  const float rstd = gRstd[blockIdx.x];
  float sum = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256)
    sum += float(gG[i_n]) * (WEIGHT ? float(gW[i_n]) + offset : 1.0f) * (float(gRow[i_n]) * rstd);
  const float along = tree(sum) / N;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) {
    const float g = float(gG[i_n]) * (WEIGHT ? float(gW[i_n]) + offset : 1.0f);
    gDx[blockIdx.x * (long long)N + i_n] = T(rstd * (g - float(gRow[i_n]) * rstd * along));
  }
}

// A thread a column: dweight = sum over rows of dout n
template <typename T, typename W>
__global__ void columns(W* __restrict__ gDw, const T* __restrict__ gDout, const T* __restrict__ gX, const float* __restrict__ gRstd,
                        long long M, int N, long long stride_dout, long long stride_x) {
  const int i_n = blockIdx.x * 256 + threadIdx.x;
  if (i_n >= N) return;
  float sum = 0.0f;
  for (long long first = 0; first < M; first += 32) {  // 32 rows and then their sum: M terms one after another would show
    float run = 0.0f;
    for (long long i_m = first; i_m < M && i_m < first + 32; ++i_m)
      run += float(gDout[i_m * stride_dout + i_n]) * (float(gX[i_m * stride_x + i_n]) * gRstd[i_m]);
    sum += run;
  }
  gDw[i_n] = W(sum);
}
