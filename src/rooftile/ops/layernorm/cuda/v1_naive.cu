// adds: nothing, this is where the ladder begins: a block of 256 a row, three passes, partial sums in shared memory halved eight times
// costs: 20 barriers a row, with half of the threads idle after each; the row is read three times, 2 or 4 bytes at a time
// loses when: always; most where N is small, and the barriers are all there is
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float tree(float sum) {
  __shared__ float sSum[256];
  __syncthreads();  // the sum before this one has been read
  sSum[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) sSum[threadIdx.x] += sSum[threadIdx.x + half];
    __syncthreads();
  }
  return sSum[0];
}

template <typename T, typename W, typename B, bool WEIGHT, bool BIAS>
__global__ void layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX,
                          const W* __restrict__ gW, const B* __restrict__ gB, int N, long long stride_x, float eps) {
  const T* gRow = gX + blockIdx.x * stride_x;
  float sum = 0.0f, square = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) sum += float(gRow[i_n]);
  const float mean = tree(sum) / N;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) square += (float(gRow[i_n]) - mean) * (float(gRow[i_n]) - mean);
  const float rstd = rsqrtf(tree(square) / N + eps);
  for (int i_n = threadIdx.x; i_n < N; i_n += 256)
    gOut[blockIdx.x * (long long)N + i_n] =
        T((float(gRow[i_n]) - mean) * rstd * (WEIGHT ? float(gW[i_n]) : 1.0f) + (BIAS ? float(gB[i_n]) : 0.0f));
  if (gRstd && threadIdx.x == 0) gMean[blockIdx.x] = mean, gRstd[blockIdx.x] = rstd;
}

// n = (x - mean) rstd, g = w dout: dx = rstd (g - mean(g) - n mean(g n))
template <typename T, typename W, bool WEIGHT>
__global__ void layernorm_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gX, const W* __restrict__ gW,
                                   const float* __restrict__ gMean, const float* __restrict__ gRstd, int N, long long stride_dout,
                                   long long stride_x) {
  const T *gG = gDout + blockIdx.x * stride_dout, *gRow = gX + blockIdx.x * stride_x;
  const float mean = gMean[blockIdx.x], rstd = gRstd[blockIdx.x];
  float sum = 0.0f, dot = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) {
    const float g = float(gG[i_n]) * (WEIGHT ? float(gW[i_n]) : 1.0f);
    sum += g;
    dot += g * ((float(gRow[i_n]) - mean) * rstd);
  }
  const float level = tree(sum) / N, along = tree(dot) / N;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) {
    const float g = float(gG[i_n]) * (WEIGHT ? float(gW[i_n]) : 1.0f);
    gDx[blockIdx.x * (long long)N + i_n] = T(rstd * (g - level - (float(gRow[i_n]) - mean) * rstd * along));
  }
}

// A thread a column: dweight = sum over rows of dout n, dbias = sum over rows of dout
template <typename T, typename W, typename B, bool WEIGHT, bool BIAS>
__global__ void columns(W* __restrict__ gDw, B* __restrict__ gDb, const T* __restrict__ gDout, const T* __restrict__ gX,
                        const float* __restrict__ gMean, const float* __restrict__ gRstd, long long M, int N, long long stride_dout,
                        long long stride_x) {
  const int i_n = blockIdx.x * 256 + threadIdx.x;
  if (i_n >= N) return;
  float dot = 0.0f, sum = 0.0f;
  for (long long first = 0; first < M; first += 32) {  // 32 rows and then their sum: M terms one after another would show
    float run_dot = 0.0f, run_sum = 0.0f;
    for (long long i_m = first; i_m < M && i_m < first + 32; ++i_m) {
      const float g = float(gDout[i_m * stride_dout + i_n]);
      run_dot += g * ((float(gX[i_m * stride_x + i_n]) - gMean[i_m]) * gRstd[i_m]);
      run_sum += g;
    }
    dot += run_dot;
    sum += run_sum;
  }
  if (WEIGHT) gDw[i_n] = W(dot);
  if (BIAS) gDb[i_n] = B(sum);
}
