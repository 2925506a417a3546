// adds: warps wait for the other blocks' numbers alone, which travel while the row before is written; clusters stay, the parameters with them
// costs: beside each row in shared memory as much for each parameter, which L2 else brings anew for every row; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/cluster.cuh"
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive, 2 at least; BLOCKS blocks a multiprocessor.
template <typename T, typename W, bool WEIGHT, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW, long long M, int N, long long stride_x,
            float eps, float offset) {
  static_assert(STAGES >= 2, "a row waits while the next one is read");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH, SPAN = VECS * NEXT;  // elements from a vector of a thread to its next; of a warp
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[STAGES + 1][THREADS / WARP];  // the last one is the weight's
  __shared__ Exchange<float, CLUSTER, THREADS, 4> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = part * SPAN + lane() * WIDTH, left = N - i_l;
  const bool none = part * SPAN >= N;  // the row ends before this warp's columns
  const W* sW = reinterpret_cast<const W*>(sX + STAGES * VECS * THREADS) + warp() * SPAN + lane() * WIDTH;
  const long long step = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
  long long i_m = first, i_next = first;
  const auto slot = [&](int stage) { return sX + (stage * THREADS + warp() * WARP) * VECS + lane(); };
  const Policy policy = evict_last(M * N * (long long)sizeof(T));
  const auto fetch = [&](int stage) {
    if (lane() == 0 && !none && i_next < M) {
      const int bytes = min(SPAN, left) * int(sizeof(T));
      mbarrier_arrive_expect(&sFull[stage][warp()], bytes);
      bulk_load(slot(stage), gX + i_next * stride_x + i_l, bytes, &sFull[stage][warp()], policy);
    }
  };
  if (lane() == 0) {
    for (int s = 0; s <= STAGES; ++s) mbarrier_init(&sFull[s][warp()], 1);
    mbarrier_fence();
  }
  exchange_open(sExchange);
  if (WEIGHT && lane() == 0 && !none) {
    const int bytes = min(SPAN, left) * int(sizeof(W));
    mbarrier_arrive_expect(&sFull[STAGES][warp()], bytes);
    bulk_load(const_cast<W*>(sW), gW + i_l, bytes, &sFull[STAGES][warp()]);
  }
  for (int s = 0; s < STAGES; ++s, i_next += step) fetch(s);
  float rF[WIDTH], rW[WIDTH];
  cluster_wait();  // nobody's shared memory is written before its block is there
  if (WEIGHT && !none) mbarrier_wait(&sFull[STAGES][warp()], 0);
  // A row's numbers are told; those of the row before it, told a turn ago, are there by now, and its slot is free after it.
  int stage = 0, parity = 0, before = 0;
  for (int turn = 0;; ++turn, i_m += step) {
    if (i_m < M) {
      float sum = 0.0f;
      if (!none) mbarrier_wait(&sFull[stage][warp()], parity);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        unpack<T>(rF, slot(stage)[v * WARP]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rF[k];
      }
      exchange_send(sExchange, turn, warp_reduce(sum, Sum()));
    }
    if (turn > 0) {
      const float rstd = rsqrtf(exchange_reduce(sExchange, turn - 1, Sum()) / N + eps);
      T* gTo = gOut + (i_m - step) * N + i_l;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        uint4 r = slot(before)[v * WARP];
        unpack<T>(rF, r);
        if (WEIGHT) kept(rW, sW + v * NEXT, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rF[k] *= WEIGHT ? rstd * rW[k] : rstd;
        pack<T>(r, rF);
        __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), r);
      }
      if (gRstd && part == 0 && lane() == 0) gRstd[i_m - step] = rstd;
      __syncwarp();  // all have read: the slot goes to the row STAGES turns on
      fetch(before);
      i_next += step;
      if (i_m >= M) break;
    }
    before = stage;
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
}

// n = x rstd, g = w dout: dx = rstd (g - n mean(g n)), and of dout n the sum over the cluster's rows to gPartial [clusters, N].
// A thread has the same columns of every row, so its share of dweight stays in registers; both rows are read from their slots twice.
// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive, 2 at least; BLOCKS blocks a multiprocessor.
template <typename T, typename W, bool WEIGHT, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    rmsnorm_backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const T* __restrict__ gX,
                     const W* __restrict__ gW, const float* __restrict__ gRstd, long long M, int N, long long stride_dout, long long stride_x,
                     float offset) {
  static_assert(STAGES >= 2, "a row waits while the next one is read");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[STAGES + 1][THREADS / WARP];  // the last one is the weight's
  __shared__ Exchange<float, CLUSTER, THREADS, 4> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = (part * VECS * WARP + lane()) * WIDTH, left = N - i_l;
  const bool none = part * VECS * NEXT >= N;  // the row ends before this warp's columns
  const W* sW = reinterpret_cast<const W*>(sX + STAGES * 2 * VECS * THREADS) + (warp() * VECS * WARP + lane()) * WIDTH;
  const long long step = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
  long long i_m = first, i_next = first;
  const auto slot = [&](int stage) { return sX + (stage * THREADS + warp() * WARP) * 2 * VECS + lane(); };  // dout's vectors, then x's
  const Policy policy = evict_last(2 * M * N * (long long)sizeof(T));
  const auto fetch = [&](int stage) {
    if (lane() == 0 && !none && i_next < M) {
      const int bytes = min(VECS * NEXT, left) * int(sizeof(T));
      mbarrier_arrive_expect(&sFull[stage][warp()], 2 * bytes);
      bulk_load(slot(stage), gDout + i_next * stride_dout + i_l, bytes, &sFull[stage][warp()], policy);
      bulk_load(slot(stage) + VECS * WARP, gX + i_next * stride_x + i_l, bytes, &sFull[stage][warp()], policy);
    }
  };
  if (lane() == 0) {
    for (int s = 0; s <= STAGES; ++s) mbarrier_init(&sFull[s][warp()], 1);
    mbarrier_fence();
  }
  exchange_open(sExchange);
  if (WEIGHT && lane() == 0 && !none) {
    const int bytes = min(VECS * NEXT, left) * int(sizeof(W));
    mbarrier_arrive_expect(&sFull[STAGES][warp()], bytes);
    bulk_load(const_cast<W*>(sW), gW + i_l, bytes, &sFull[STAGES][warp()]);
  }
  for (int s = 0; s < STAGES; ++s, i_next += step) fetch(s);
  float rDw[VECS][WIDTH] = {}, rG[WIDTH], rX[WIDTH], rW[WIDTH];
  float rstd = 0.0f, rstd_next = gRstd[first];  // asked for a row ahead: it would be waited for
  cluster_wait();  // nobody's shared memory is written before its block is there
  if (WEIGHT && !none) mbarrier_wait(&sFull[STAGES][warp()], 0);
  // A row's numbers are told; those of the row before it, told a turn ago, are there by now, and its slots are free after it.
  int stage = 0, parity = 0, before = 0;
  let_next_stand_by();  // who adds up the partial sums
  for (int turn = 0;; ++turn, i_m += step) {
    const float rstd_before = rstd;
    if (i_m < M) {
      rstd = rstd_next;
      if (i_m + step < M) rstd_next = gRstd[i_m + step];
      float sum = 0.0f;
      if (!none) mbarrier_wait(&sFull[stage][warp()], parity);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        unpack<T>(rG, slot(stage)[v * WARP]), unpack<T>(rX, slot(stage)[(VECS + v) * WARP]);
        if (WEIGHT) kept(rW, sW + v * NEXT, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += (WEIGHT ? rG[k] * rW[k] : rG[k]) * rX[k];
      }
      exchange_send(sExchange, turn, group_reduce<WARP>(sum * rstd, Sum()));
    }
    if (turn > 0) {
      const float along = exchange_reduce(sExchange, turn - 1, Sum()) / N;
      T* gTo = gDx + (i_m - step) * N + i_l;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        unpack<T>(rG, slot(before)[v * WARP]), unpack<T>(rX, slot(before)[(VECS + v) * WARP]);
        if (WEIGHT) kept(rW, sW + v * NEXT, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = rX[k] * rstd_before;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          rX[k] = rstd_before * ((WEIGHT ? rG[k] * rW[k] : rG[k]) - n * along);
        }
        uint4 rDx;
        pack<T>(rDx, rX);
        __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rDx);
      }
      __syncwarp();  // all have read: the slots go to the row STAGES turns on
      fetch(before);
      i_next += step;
      if (i_m >= M) break;
    }
    before = stage;
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  if (!WEIGHT) return;
  float* gTo = gPartial + first * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < left)
#pragma unroll
      for (int k = 0; k < WIDTH; k += 4)
        *reinterpret_cast<float4*>(gTo + v * NEXT + k) = {rDw[v][k], rDw[v][k + 1], rDw[v][k + 2], rDw[v][k + 3]};
}
