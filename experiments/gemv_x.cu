// A block takes ROWS rows of a matrix as wide as its threads' vectors; each thread keeps its share of x.
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
using namespace rooftile;

// Sums of R values over the warp: lane l ends with the sum of value (l >> (5 - log2 R)).
template <int R> ROOFTILE_DEVICE float sum_many(float (&rS)[R]) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = R / 2, d = 16; n >= 1; n /= 2, d /= 2) {
    const bool up = lane & d;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float give = up ? rS[i] : rS[i + n], keep = up ? rS[i + n] : rS[i];
      rS[i] = keep + __shfl_xor_sync(0xffffffffu, give, d);
    }
  }
  float s = rS[0];
#pragma unroll
  for (int d = 16 / R; d >= 1; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
  return s;
}
template <int LOG> struct Log {};

template <typename T, int ROWS, int THREADS, int VECS, int BLOCKS, int TURNS>
__global__ void __launch_bounds__(THREADS, BLOCKS) gemv(T* __restrict__ gOut, const T* __restrict__ gA, const T* __restrict__ gX, int M, int K) {
  constexpr int WIDTH = 16 / sizeof(T), WARPS = THREADS / 32;
  __shared__ float sSum[2][WARPS][ROWS];
  const uint4* gV = reinterpret_cast<const uint4*>(gX);
  const long long first = blockIdx.x * (long long)(ROWS * TURNS);
  const int wide = K / WIDTH;
  uint4 rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) load_now(rX[v], gV + threadIdx.x + v * THREADS);
#pragma unroll 1
  for (int t = 0; t < TURNS; ++t) {
    const long long i_m = first + t * ROWS;
    uint4 rA[ROWS][VECS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int v = 0; v < VECS; ++v) load_now(rA[r][v], reinterpret_cast<const uint4*>(gA) + (i_m + r) * wide + threadIdx.x + v * THREADS);
    float rS[ROWS] = {};
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rW[WIDTH];
      unpack<T>(rW, rX[v]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float rF[WIDTH];
        unpack<T>(rF, rA[r][v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS[r] += rF[k] * rW[k];
      }
    }
    const float s = sum_many<ROWS>(rS);
    if (threadIdx.x % (32 / ROWS) == 0) sSum[t & 1][threadIdx.x / 32][(threadIdx.x % 32) / (32 / ROWS)] = s;
    __syncthreads();
    if (int(threadIdx.x) < ROWS) {
      float all = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) all += sSum[t & 1][w][threadIdx.x];
      gOut[i_m + threadIdx.x] = T(all);
    }
  }
}
