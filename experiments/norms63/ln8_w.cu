// adds: warps wait for the other blocks' numbers alone, which travel while the row before is written; clusters stay, the parameters with them
// costs: beside each row in shared memory as much for each parameter, which L2 else brings anew for every row; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/cluster.cuh"
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive, 2 at least; BLOCKS blocks a multiprocessor. A
// warp tells the sum of its columns and their squared differences from its own mean, so that one exchange does.
template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, long long M, int N, long long stride_x, float eps) {
  static_assert(STAGES >= 2, "a row waits while the next one is read");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH, SPAN = VECS * NEXT;  // elements from a vector of a thread to its next; of a warp
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[STAGES + 1][THREADS / WARP];  // the last one is the parameters'
  __shared__ Exchange<Pair, CLUSTER, THREADS, 4> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = part * SPAN + lane() * WIDTH, left = N - i_l;
  const bool none = part * SPAN >= N;  // the row ends before this warp's columns
  const unsigned zero = hidden_zero(N);
  const W* sW = reinterpret_cast<const W*>(sX + STAGES * VECS * THREADS) + warp() * SPAN + lane() * WIDTH;
  const B* sB = reinterpret_cast<const B*>(reinterpret_cast<const W*>(sX + STAGES * VECS * THREADS) + (WEIGHT ? VECS * THREADS * WIDTH : 0)) + warp() * SPAN +
                lane() * WIDTH;
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
  if ((WEIGHT || BIAS) && lane() == 0 && !none) {
    const int columns = min(SPAN, left);
    mbarrier_arrive_expect(&sFull[STAGES][warp()], columns * int((WEIGHT ? sizeof(W) : 0) + (BIAS ? sizeof(B) : 0)));
    if (WEIGHT) bulk_load(const_cast<W*>(sW), gW + i_l, columns * int(sizeof(W)), &sFull[STAGES][warp()]);
    if (BIAS) bulk_load(const_cast<B*>(sB), gB + i_l, columns * int(sizeof(B)), &sFull[STAGES][warp()]);
  }
  for (int s = 0; s < STAGES; ++s, i_next += step) fetch(s);
  const float own_columns = max(1, min(SPAN, N - part * SPAN));
  float rF[WIDTH], rW[WIDTH], rB[WIDTH];
  cluster_wait();  // nobody's shared memory is written before its block is there
  if ((WEIGHT || BIAS) && !none) mbarrier_wait(&sFull[STAGES][warp()], 0);
  // A row's numbers are told; those of the row before it, told a turn ago, are there by now, and its slot is free after it.
  int stage = 0, parity = 0, before = 0;
  for (int turn = 0;; ++turn, i_m += step) {
    if (i_m < M) {
      uint4 rX[VECS] = {};
      float sum = 0.0f, square = 0.0f;
      if (!none) mbarrier_wait(&sFull[stage][warp()], parity);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT < left) rX[v] = slot(stage)[v * WARP];
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += rF[k];
        stay_packed(rX[v], zero);
      }
      sum = warp_reduce(sum, Sum());
      const float own = sum / own_columns;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        unpack<T>(rF, rX[v]);
        if (v * NEXT < left)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) square += (rF[k] - own) * (rF[k] - own);
      }
      exchange_send(sExchange, turn, Pair{sum, warp_reduce(square, Sum())});
    }
    if (turn > 0) {
      const Pair both = exchange_moments<SPAN>(sExchange, turn - 1, N);
      const float mean = both.a, rstd = rsqrtf(both.b / N + eps);
      T* gTo = gOut + (i_m - step) * N + i_l;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        uint4 r = slot(before)[v * WARP];
        unpack<T>(rF, r);
        if (WEIGHT) kept(rW, sW + v * NEXT);
        if (BIAS) kept(rB, sB + v * NEXT);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rW[k] : rstd) + (BIAS ? rB[k] : 0.0f);
        pack<T>(r, rF);
        __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), r);
      }
      if (gRstd && part == 0 && lane() == 0) gMean[i_m - step] = mean, gRstd[i_m - step] = rstd;
      __syncwarp();  // all have read: the slot goes to the row STAGES turns on
      fetch(before);
      i_next += step;
      if (i_m >= M) break;
    }
    before = stage;
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
}

// n = (x - mean) rstd, g = w dout: dx = rstd (g - mean(g) - n mean(g n)), and of dout n and dout the sums over the cluster's rows to
// gPartial [2, clusters, N]. A thread has the same columns of every row, so its share of both stays in registers; the rows are read from
// their slots twice. The weight stays beside the rows, but for HELD of a thread's vectors of it, whose room is a third row's of two blocks a multiprocessor.
// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive, 2 at least; BLOCKS blocks a multiprocessor.
template <typename T, typename W, bool WEIGHT, bool BIAS, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    layernorm_backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const T* __restrict__ gX,
                       const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd, long long M, int N,
                       long long stride_dout, long long stride_x) {
  static_assert(STAGES >= 2, "a row waits while the next one is read");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH, HELD = WEIGHT && VECS > 2 && sizeof(T) + sizeof(W) == 4, STAY = VECS - HELD;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[STAGES + 1][THREADS / WARP];  // the last one is the weight's
  __shared__ Exchange<Pair, CLUSTER, THREADS, 4> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = (part * VECS * WARP + lane()) * WIDTH, left = N - i_l;
  const unsigned zero = hidden_zero(N);
  const bool none = part * VECS * NEXT >= N;  // the row ends before this warp's columns
  const W* sW = reinterpret_cast<const W*>(sX + STAGES * 2 * VECS * THREADS) + (warp() * STAY * WARP + lane()) * WIDTH - HELD * NEXT;
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
  Parameters<W, WIDTH> rHeld;
  if (HELD && left > 0) rHeld.ask(gW + i_l);
  const bool stays = WEIGHT && (part * VECS + HELD) * NEXT < N;
  if (stays && lane() == 0) {
    const int bytes = min(STAY * NEXT, left - HELD * NEXT) * int(sizeof(W));
    mbarrier_arrive_expect(&sFull[STAGES][warp()], bytes);
    bulk_load(const_cast<W*>(sW) + HELD * NEXT, gW + i_l + HELD * NEXT, bytes, &sFull[STAGES][warp()]);
  }
  const auto weight = [&](float(&rF)[WIDTH], int v) {
    if constexpr (HELD > 0)
      if (v < HELD) {
        rHeld.open(rF);
        return stay_packed(rHeld.part[0], zero);
      }
    kept(rF, sW + v * NEXT);
  };
  for (int s = 0; s < STAGES; ++s, i_next += step) fetch(s);
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rG[WIDTH], rX[WIDTH], rW[WIDTH];
  float mean = 0.0f, rstd = 0.0f, mean_next = gMean[first], rstd_next = gRstd[first];  // asked for a row ahead: they would be waited for
  cluster_wait();  // nobody's shared memory is written before its block is there
  if (stays) mbarrier_wait(&sFull[STAGES][warp()], 0);
  // A row's numbers are told; those of the row before it, told a turn ago, are there by now, and its slots are free after it.
  int stage = 0, parity = 0, before = 0;
  let_next_stand_by();  // who adds up the partial sums
  for (int turn = 0;; ++turn, i_m += step) {
    const float mean_before = mean, rstd_before = rstd;
    if (i_m < M) {
      mean = mean_next, rstd = rstd_next;
      if (i_m + step < M) mean_next = gMean[i_m + step], rstd_next = gRstd[i_m + step];
      Pair sum = {0.0f, 0.0f};  // of g, of g (x - mean)
      if (!none) mbarrier_wait(&sFull[stage][warp()], parity);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        unpack<T>(rG, slot(stage)[v * WARP]), unpack<T>(rX, slot(stage)[(VECS + v) * WARP]);
        if (WEIGHT) weight(rW, v);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float g = WEIGHT ? rG[k] * rW[k] : rG[k];
          sum.a += g, sum.b += g * (rX[k] - mean);
        }
      }
      exchange_send(sExchange, turn, group_reduce<WARP>(sum, SumPair()));
    }
    if (turn > 0) {
      const Pair sum = exchange_reduce(sExchange, turn - 1, SumPair());
      const float level = sum.a / N, along = sum.b * rstd_before / N;
      T* gTo = gDx + (i_m - step) * N + i_l;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (v * NEXT >= left) break;
        unpack<T>(rG, slot(before)[v * WARP]), unpack<T>(rX, slot(before)[(VECS + v) * WARP]);
        if (WEIGHT) weight(rW, v);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = (rX[k] - mean_before) * rstd_before;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          if (BIAS) rDb[v][k] += rG[k];
          rX[k] = rstd_before * ((WEIGHT ? rG[k] * rW[k] : rG[k]) - level - n * along);
        }
        uint4 rDx;
        pack<T>(rDx, rX);
        __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rDx);
      }
      __syncwarp();  // all have read: the slots go to the row STAGES turns on
      fetch(before);
      i_next += step;
      if (i_m >= M) break;
    }
    before = stage;
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  const auto write = [&](float* gTo, const float(&rD)[VECS][WIDTH]) {
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4)
          *reinterpret_cast<float4*>(gTo + i_l + v * NEXT + k) = {rD[v][k], rD[v][k + 1], rD[v][k + 2], rD[v][k + 3]};
  };
  if (WEIGHT) write(gPartial + first * N, rDw);
  if (BIAS) write(gPartial + (step + first) * N, rDb);
}
