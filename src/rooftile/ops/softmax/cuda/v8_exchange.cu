// adds: a warp waits for the numbers of the other blocks alone, counted in by an mbarrier; each exponential once; clusters come as others leave
// costs: forward a register an element of the row in work, twice v7's; nothing arrives behind the row in work but another block's; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/activation.cuh"
#include "rooftile/cluster.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/softmax.cuh"

using namespace rooftile;
constexpr float LOG2E = 1.4426950408889634f;

// All in powers of two: e = 2^(x log2 e - own) with own = max log2 e as it was rounded, so that what warps tell each other of it is exact.
// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; BLOCKS blocks a multiprocessor.
template <typename T, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;  // elements from a vector of a thread to its next
  using Parts = Exchange<Online, CLUSTER, THREADS, 1>;
  __shared__ Parts sExchange;
  exchange_open(sExchange);  // before the loads: the others wait for it
  const long long i_m = blockIdx.x / CLUSTER;
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH, left = N - i_l;
  const T* gFrom = gX + i_m * stride_x + i_l;
  const Policy policy = evict_last((long long)sizeof(T) * N * (gridDim.x / CLUSTER));
  uint4 rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) rX[v] = v * NEXT < left ? load_global(reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy) : nothing<T>();
  float rE[VECS][WIDTH], max = online_start().max, sum = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rE[v], rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rE[v][k]);
  }
  max = warp_reduce(max, Max()) * LOG2E;
  const float own = base_of(max);
#pragma unroll
  for (int v = 0; v < VECS; ++v)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rE[v][k] = exp2_fast(fmaf(rE[v][k], LOG2E, -own));
  sum = warp_reduce(sum, Sum());
  cluster_wait();  // nobody's shared memory is written before its block is there
  exchange_send(sExchange, 0, Online{max, sum});
  exchange_wait(sExchange, 0);
  float top = online_start().max, total = 0.0f;
  for (int i = lane(); i < Parts::PARTS; i += WARP) top = fmaxf(top, sExchange.part[0][i].max);
  const float base = base_of(warp_reduce(top, Max()));
  for (int i = lane(); i < Parts::PARTS; i += WARP) total += sExchange.part[0][i].sum * exp2_fast(sExchange.part[0][i].max - base);
  // elements of a warp that has -inf alone are 0 whatever the base; of a row of -inf 0 * inf = NaN, as PyTorch has it
  const float scale = (max < own ? 1.0f : exp2_fast(own - base)) / warp_reduce(total, Sum());
  T* gTo = gOut + i_m * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rE[v][k] *= scale;
    uint4 rOut;
    pack<T>(rOut, rE[v]);
    __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rOut);
  }
}

// (x - max) - log(sum): the row waits, and no exponential is needed again.
template <typename T, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    log_softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  using Parts = Exchange<Online, CLUSTER, THREADS, 1>;
  __shared__ Parts sExchange;
  exchange_open(sExchange);
  const long long i_m = blockIdx.x / CLUSTER;
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH, left = N - i_l;
  const T* gFrom = gX + i_m * stride_x + i_l;
  const Policy policy = evict_last((long long)sizeof(T) * N * (gridDim.x / CLUSTER));
  uint4 rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) rX[v] = v * NEXT < left ? load_global(reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy) : nothing<T>();
  float rF[VECS][WIDTH];
  Online rS = online_start();
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF[v], rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rS.max = fmaxf(rS.max, rF[v][k]);
  }
  rS.max = warp_reduce(rS.max, Max());
  const float own = base_of(rS.max);
#pragma unroll
  for (int v = 0; v < VECS; ++v)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(rF[v][k] - own);
  rS.sum = warp_reduce(rS.sum, Sum());
  cluster_wait();
  exchange_send(sExchange, 0, rS);
  LogSoftmax form{{N}};
  form.close(exchange_reduce(sExchange, 0, Combine()));
  T* gTo = gOut + i_m * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
    uint4 rOut;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[v][k] = form.out(rF[v][k]);
    pack<T>(rOut, rF[v]);
    __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rOut);
  }
}

// dx = out (dout - sum(dout out)), or log_softmax's dout - exp(out) sum(dout), both as they came in registers
template <typename T, typename Gradient, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gOut, int N, long long stride_dout, long long stride_out) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  __shared__ Exchange<float, CLUSTER, THREADS, 1> sExchange;
  exchange_open(sExchange);  // before the loads: the others wait for it
  const long long i_m = blockIdx.x / CLUSTER;
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH, left = N - i_l;
  const unsigned zero = hidden_zero(N);
  const T *gG = gDout + i_m * stride_dout + i_l, *gY = gOut + i_m * stride_out + i_l;
  const Policy policy = evict_last(2ll * sizeof(T) * N * (gridDim.x / CLUSTER));
  uint4 rG[VECS] = {}, rY[VECS] = {};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < left) {
      rG[v] = load_global(reinterpret_cast<const uint4*>(gG + v * NEXT), policy);
      rY[v] = load_global(reinterpret_cast<const uint4*>(gY + v * NEXT), policy);
    }
  float rFG[WIDTH], rFY[WIDTH], dot = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) dot += Gradient::term(rFG[k], rFY[k]);
    stay_packed(rG[v], zero), stay_packed(rY[v], zero);
  }
  dot = warp_reduce(dot, Sum());
  cluster_wait();
  exchange_send(sExchange, 0, dot);
  dot = exchange_reduce(sExchange, 0, Sum());
  T* gTo = gDx + i_m * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
    unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rFY[k] = Gradient::dx(rFG[k], rFY[k], dot);
    pack<T>(rY[v], rFY);
    __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rY[v]);
  }
}
