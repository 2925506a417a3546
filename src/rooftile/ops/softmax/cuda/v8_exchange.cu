// adds: warps wait for the other blocks' numbers alone, which travel while the row before is written; rows by the copy engine to clusters that stay
// costs: a second exponential an element, two rows in shared memory at least; backward clusters come and go with a row; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/activation.cuh"
#include "rooftile/cluster.cuh"
#include "rooftile/tma.cuh"

using namespace rooftile;
constexpr float LOG2E = 1.4426950408889634f;

// All in powers of two: e = 2^(x log2 e - own) with own = max log2 e as it was rounded, so that what warps tell each other of it is exact.
// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive, 2 at least; BLOCKS blocks a multiprocessor.
template <typename T, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x) {
  static_assert(STAGES >= 2, "a row waits while the next one is read");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH, SPAN = VECS * NEXT;  // elements from a vector of a thread to its next; of a warp
  using Parts = Exchange<Online, CLUSTER, THREADS, 4>;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[STAGES][THREADS / WARP];
  __shared__ Parts sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = part * SPAN + lane() * WIDTH, left = N - i_l;
  const bool none = part * SPAN >= N;  // the row ends before this warp's columns
  const unsigned zero = hidden_zero(N);
  const long long step = gridDim.x / CLUSTER;
  long long i_m = blockIdx.x / CLUSTER, i_next = i_m;
  const auto slot = [&](int stage) { return sX + (stage * THREADS + warp() * WARP) * VECS + lane(); };
  const auto fetch = [&](int stage) {
    if (lane() == 0 && !none && i_next < M) {
      const int bytes = min(SPAN, left) * int(sizeof(T));
      mbarrier_arrive_expect(&sFull[stage][warp()], bytes);
      bulk_load(slot(stage), gX + i_next * stride_x + i_l, bytes, &sFull[stage][warp()]);
    }
  };
  if (lane() == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(&sFull[s][warp()], 1);
    mbarrier_fence();
  }
  exchange_open(sExchange);
  for (int s = 0; s < STAGES; ++s, i_next += step) fetch(s);
  float rF[WIDTH];
  cluster_wait();  // nobody's shared memory is written before its block is there
  // A row's numbers are told; those of the row before it, told a turn ago, are there by now, and its slot is free after it.
  int stage = 0, parity = 0, before = 0;
  for (int turn = 0;; ++turn, i_m += step) {
    if (i_m < M) {
      uint4 rX[VECS];
      float max = online_start().max, sum = 0.0f;
      if (!none) mbarrier_wait(&sFull[stage][warp()], parity);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        rX[v] = v * NEXT < left ? slot(stage)[v * WARP] : nothing<T>();
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rF[k]);
        stay_packed(rX[v], zero);
      }
      max = warp_reduce(max, Max()) * LOG2E;
      const float own = base_of(max);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += exp2_fast(fmaf(rF[k], LOG2E, -own));
      }
      exchange_send(sExchange, turn, Online{max, warp_reduce(sum, Sum())});
    }
    if (turn > 0) {
      exchange_wait(sExchange, turn - 1);
      const Online* sPart = sExchange.part[(turn - 1) % 4];
      float top = online_start().max, total = 0.0f;
      for (int i = lane(); i < Parts::PARTS; i += WARP) top = fmaxf(top, sPart[i].max);
      const float base = base_of(warp_reduce(top, Max()));
      for (int i = lane(); i < Parts::PARTS; i += WARP) total += sPart[i].sum * exp2_fast(sPart[i].max - base);
      const float scale = 1.0f / warp_reduce(total, Sum());  // of a row of -inf 0 * inf = NaN, as PyTorch has it
      T* gTo = gOut + (i_m - step) * N + i_l;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        uint4 r = slot(before)[v * WARP];
        unpack<T>(rF, r);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rF[k] = exp2_fast(fmaf(rF[k], LOG2E, -base)) * scale;
        pack<T>(r, rF);
        __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), r);
      }
      __syncwarp();  // all have read: the slot goes to the row STAGES turns on
      fetch(before);
      i_next += step;
      if (i_m >= M) break;
    }
    before = stage;
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
}

// dx = out (dout - sum(dout out)), both as they came in registers; BLOCKS blocks a multiprocessor
template <typename T, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gOut, int N, long long stride_dout, long long stride_out) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  __shared__ Exchange<float, CLUSTER, THREADS, 1> sExchange;
  exchange_open(sExchange);  // before the loads: the others wait for it
  const long long i_m = blockIdx.x / CLUSTER;
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH, left = N - i_l;
  const unsigned zero = hidden_zero(N);
  const T *gG = gDout + i_m * stride_dout + i_l, *gY = gOut + i_m * stride_out + i_l;
  uint4 rG[VECS] = {}, rY[VECS] = {};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < left) rG[v] = __ldcs(reinterpret_cast<const uint4*>(gG + v * NEXT)), rY[v] = __ldcs(reinterpret_cast<const uint4*>(gY + v * NEXT));
  float rFG[WIDTH], rFY[WIDTH], dot = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) dot += rFG[k] * rFY[k];
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
    for (int k = 0; k < WIDTH; ++k) rFY[k] *= rFG[k] - dot;
    pack<T>(rY[v], rFY);
    __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rY[v]);
  }
}
