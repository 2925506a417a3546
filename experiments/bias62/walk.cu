// lab: v2's walk with a block's groups of rows summed in it, reads that stay in the L2; DIRECT: loads, 2 x ROWS ahead in registers where AHEAD
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T, int ROWS, int THREADS, int PER, int POLICY>
__global__ void __launch_bounds__(THREADS, PER)
    backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask,
             long long M, int N, float scale, long long stride_dout, long long stride_mask) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(128) float sSum[];
  const int lanes = blockDim.x, groups = blockDim.y, i_t = threadIdx.y * lanes + threadIdx.x, strip = blockIdx.x * lanes * WIDTH;
  const int i_n = strip + threadIdx.x * WIDTH;
  const int step = gridDim.y * groups * ROWS;
  const long long i_m = blockIdx.y * (long long)groups * ROWS + threadIdx.y;
  const Policy policy = evict_last(POLICY ? M * N * (long long)(sizeof(T) + 1) : 0);
  const int left = i_n < N && i_m < M ? int(M - i_m) : 0;
  const T* gFrom = gDout + i_m * stride_dout + i_n;
  const unsigned char* gKeep = gMask + i_m * stride_mask + i_n;
  T* gTo = gDx + i_m * N + i_n;
  float rSum[WIDTH] = {};
  let_next_stand_by();
  for (int at = 0; at < left; at += step) {
    uint4 rDout[ROWS];
    Vec<unsigned char, WIDTH> rMask[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (at + r * groups >= left) break;
      rDout[r] = POLICY ? load_global(reinterpret_cast<const uint4*>(gFrom + r * groups * stride_dout), policy) : __ldca(reinterpret_cast<const uint4*>(gFrom + r * groups * stride_dout));
      load_global(rMask[r], gKeep + r * groups * stride_mask);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (at + r * groups >= left) break;
      float rF[WIDTH];
      unpack<T>(rF, rDout[r]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rMask[r][k] ? rF[k] * scale : 0.0f, rSum[k] += rF[k];
      pack<T>(rDout[r], rF);
      __stwb(reinterpret_cast<uint4*>(gTo + r * groups * (long long)N), rDout[r]);
    }
    gFrom += step * stride_dout, gKeep += step * stride_mask, gTo += step * (long long)N;
  }
  const int columns = lanes * WIDTH, threads = lanes * groups;
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4)
    *reinterpret_cast<float4*>(sSum + threadIdx.y * columns + threadIdx.x * WIDTH + k) = {rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]};
  __syncthreads();
  for (int i = i_t; i < columns && strip + i < N; i += threads) {
    float sum = 0.0f;
#pragma unroll 4
    for (int g = 0; g < groups; ++g) sum += sSum[g * columns + i];
    gPartial[blockIdx.y * (long long)N + strip + i] = sum;
  }
}
