// lab: rows that lie one behind the other brought by the copy engine, TILE = groups x ROWS of them a stage
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T, int ROWS, int STAGES, int THREADS, int PER, int POLICY>
__global__ void __launch_bounds__(THREADS, PER)
    backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask,
             long long M, int N, float scale) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(128) unsigned char sX[];
  __shared__ MBarrier sFull[STAGES];
  const int lanes = blockDim.x, groups = blockDim.y, i_t = threadIdx.y * lanes + threadIdx.x, i_n = threadIdx.x * WIDTH;
  const int tile = groups * ROWS, most = tile * N;  // elements
  const int tiles = int((M + tile - 1) / tile);
  const Policy policy = evict_last(POLICY ? M * N * (long long)(sizeof(T) + 1) : 0);
  const auto dout = [&](int stage) { return sX + stage * most * (sizeof(T) + 1); };
  const auto fetch = [&](int stage, int i) {
    const long long from = i * (long long)most, rest = M * N - from;
    const int n = int(rest < most ? rest : most);
    mbarrier_arrive_expect(&sFull[stage], n * int(sizeof(T) + 1));
    bulk_load(dout(stage), gDout + from, n * int(sizeof(T)), &sFull[stage], policy);
    bulk_load(dout(stage) + most * sizeof(T), gMask + from, n, &sFull[stage], policy);
  };
  if (i_t == 0) {
#pragma unroll
    for (int s = 0; s < STAGES; ++s) mbarrier_init(&sFull[s], 1);
    mbarrier_fence();
    for (int s = 0; s < STAGES; ++s)
      if (int(blockIdx.x) + s * int(gridDim.x) < tiles) fetch(s, blockIdx.x + s * gridDim.x);
  }
  __syncthreads();
  float rSum[WIDTH] = {};
  int stage = 0, parity = 0;
  let_next_stand_by();
  for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
    mbarrier_wait(&sFull[stage], parity);
    uint4 rDout[ROWS];
    Vec<unsigned char, WIDTH> rMask[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int at = (threadIdx.y + r * groups) * N + i_n;
      rDout[r] = *reinterpret_cast<const uint4*>(dout(stage) + at * sizeof(T));
      load(rMask[r], dout(stage) + most * sizeof(T) + at);
    }
    __syncthreads();
    if (i_t == 0 && i + STAGES * int(gridDim.x) < tiles) fetch(stage, i + STAGES * gridDim.x);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const long long i_m = i * (long long)tile + threadIdx.y + r * groups;
      if (i_m >= M) break;
      float rF[WIDTH];
      unpack<T>(rF, rDout[r]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rMask[r][k] ? rF[k] * scale : 0.0f, rSum[k] += rF[k];
      pack<T>(rDout[r], rF);
      __stwb(reinterpret_cast<uint4*>(gDx + i_m * N + i_n), rDout[r]);
    }
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __syncthreads();
  const int threads = lanes * groups;
  float* sSum = reinterpret_cast<float*>(sX);
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4) *reinterpret_cast<float4*>(sSum + threadIdx.y * N + i_n + k) = {rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]};
  __syncthreads();
  for (int i = i_t; i < N; i += threads) {
    float sum = 0.0f;
#pragma unroll 4
    for (int g = 0; g < groups; ++g) sum += sSum[g * N + i];
    gPartial[blockIdx.x * (long long)N + i] = sum;
  }
}
