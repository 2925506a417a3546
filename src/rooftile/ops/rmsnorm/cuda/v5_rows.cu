// adds: a block of two dimensions: ROWS rows of LANES threads each, which meet by shuffles alone
// costs: no barrier; a row belongs to at most a warp, with up to 8 vectors a lane: to 2048 columns of 16 bits
// loses when: rows are longer than that
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, typename W, bool WEIGHT, int VECS, int LANES, int ROWS>
__global__ void __launch_bounds__(LANES * ROWS) rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX,
                                                        const W* __restrict__ gW, long long M, int N, long long stride_x, float eps, float offset) {
  static_assert(LANES <= WARP && LANES * ROWS % WARP == 0, "a row is a part of a warp, and warps are whole");
  constexpr int WIDTH = 16 / sizeof(T);
  const unsigned zero = hidden_zero(N);
  const long long i_m = blockIdx.x * (long long)ROWS + threadIdx.y;
  const int V = i_m < M ? N / WIDTH : 0;  // the lanes of a row that is not there come along for the shuffles
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + i_m * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut + i_m * N);
  uint4 rX[VECS] = {};
  float rF[WIDTH], rW[WIDTH], sum = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (int(threadIdx.x) + v * LANES < V) rX[v] = gRow[threadIdx.x + v * LANES];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rF[k];
    stay_packed(rX[v], zero);
  }
  const float rstd = rsqrtf(warp_reduce<LANES>(sum, Sum()) / N + eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * LANES;
    if (i_v >= V) break;
    unpack<T>(rF, rX[v]);
    if (WEIGHT) parameters(rW, gW + i_v * WIDTH, offset);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] *= WEIGHT ? rstd * rW[k] : rstd;
    pack<T>(rX[v], rF);
    __stwb(gTo + i_v, rX[v]);
  }
  if (threadIdx.x == 0 && i_m < M) gRstd[i_m] = rstd;
}
