// adds: nothing, this is where the ladder begins: a block of 256 a row, partial sums in shared memory halved eight times
// costs: 20 barriers a row; the sum is read again twice, 2 or 4 bytes at a time; under dropout three of four random words are thrown away
// loses when: always; most where N is small, and the barriers are all there is
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/sum_norm.cuh"

using namespace rooftile;

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

// s = residual + what the branch makes of x, out = its norm
template <typename Branch, typename T, typename R, typename W, typename B, bool LAYER, bool WEIGHT, bool BIAS>
__global__ void forward(T* __restrict__ gOut, R* __restrict__ gSum, float* __restrict__ gMean, float* __restrict__ gRstd,
                        const T* __restrict__ gX, const R* __restrict__ gR, const W* __restrict__ gW, const B* __restrict__ gB,
                        const void* __restrict__ gSeed, int N, long long stride_x, long long stride_r, long long threshold, float scale,
                        float eps, float offset) {
  const Branch branch(gSeed, threshold, scale);
  const long long row = blockIdx.x * (long long)N;
  float sum = 0.0f, square = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) {
    const R s = R(branch(float(gX[blockIdx.x * stride_x + i_n]), row + i_n) + float(gR[blockIdx.x * stride_r + i_n]));
    gSum[row + i_n] = s;
    sum += float(s);
  }
  const float mean = LAYER ? tree(sum) / N : 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) square += (float(gSum[row + i_n]) - mean) * (float(gSum[row + i_n]) - mean);
  const float rstd = rsqrtf(tree(square) / N + eps);
  for (int i_n = threadIdx.x; i_n < N; i_n += 256)
    gOut[row + i_n] = T((float(gSum[row + i_n]) - mean) * rstd * (WEIGHT ? float(gW[i_n]) + offset : 1.0f) + (BIAS ? float(gB[i_n]) : 0.0f));
  if (gRstd && threadIdx.x == 0) {
    if (LAYER || Branch::DROPS) gMean[blockIdx.x] = mean;
    gRstd[blockIdx.x] = rstd;
  }
}

// n = (s - mean) rstd, g = w dout: dr = rstd (g - mean(g) - n mean(g n)) + dsum, without mean(g) for RMSNorm; dx = what the branch makes of dr
template <typename Branch, typename T, typename R, typename W, bool LAYER, bool WEIGHT>
__global__ void backward(T* __restrict__ gDx, R* __restrict__ gDr, const T* __restrict__ gDout, const R* __restrict__ gDsum,
                         const R* __restrict__ gS, const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd,
                         const void* __restrict__ gSeed, int N, long long stride_dout, long long stride_dsum, long long stride_s,
                         long long threshold, float scale, float offset) {
  const Branch branch(gSeed, threshold, scale);
  const T* gG = gDout + blockIdx.x * stride_dout;
  const R *gRow = gS + blockIdx.x * stride_s, *gMore = gDsum + blockIdx.x * stride_dsum;
  const float mean = LAYER ? gMean[blockIdx.x] : 0.0f, rstd = gRstd[blockIdx.x];
  const long long row = blockIdx.x * (long long)N;
  float sum = 0.0f, dot = 0.0f;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) {
    const float g = float(gG[i_n]) * (WEIGHT ? float(gW[i_n]) + offset : 1.0f);
    sum += g;
    dot += g * ((float(gRow[i_n]) - mean) * rstd);
  }
  const float level = LAYER ? tree(sum) / N : 0.0f, along = tree(dot) / N;
  for (int i_n = threadIdx.x; i_n < N; i_n += 256) {
    const float g = float(gG[i_n]) * (WEIGHT ? float(gW[i_n]) + offset : 1.0f);
    const float dr = rstd * (g - level - (float(gRow[i_n]) - mean) * rstd * along) + float(gMore[i_n]);
    gDr[row + i_n] = R(dr);
    if (Branch::DROPS) gDx[row + i_n] = T(branch(dr, row + i_n));
  }
}

// A thread a column: dweight = sum over rows of dout n, dbias = sum over rows of dout
template <typename T, typename R, typename W, typename B, bool LAYER, bool WEIGHT, bool BIAS>
__global__ void columns(W* __restrict__ gDw, B* __restrict__ gDb, const T* __restrict__ gDout, const R* __restrict__ gS,
                        const float* __restrict__ gMean, const float* __restrict__ gRstd, long long M, int N, long long stride_dout,
                        long long stride_s) {
  const int i_n = blockIdx.x * 256 + threadIdx.x;
  if (i_n >= N) return;
  float dot = 0.0f, sum = 0.0f;
  for (long long first = 0; first < M; first += 32) {  // 32 rows and then their sum: M terms one after another would show
    float run_dot = 0.0f, run_sum = 0.0f;
    for (long long i_m = first; i_m < M && i_m < first + 32; ++i_m) {
      const float g = float(gDout[i_m * stride_dout + i_n]);
      run_dot += g * ((float(gS[i_m * stride_s + i_n]) - (LAYER ? gMean[i_m] : 0.0f)) * gRstd[i_m]);
      run_sum += g;
    }
    dot += run_dot;
    sum += run_sum;
  }
  if (WEIGHT) gDw[i_n] = W(dot);
  if (BIAS) gDb[i_n] = B(sum);
}
