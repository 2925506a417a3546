// adds: rows in registers, 16 bytes an access of the stream; backward row after row a block, the next one in flight, the weight beside its gradient
// costs: rows must be whole vectors; forward 4 registers a vector, up to 8 a thread, backward 3 slots of up to 16 bytes a vector and a stage
// loses when: rows are wider than that; forward one block of a wide row fills a multiprocessor, and nothing is asked for while it reduces
#include "rooftile/async.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/sum_norm.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// A vector is 16 bytes of the stream's type R; x and out, which may be narrower, then move 8 bytes at a time. LANES threads hold a row, each VECS
// vectors of it, all asked for in groups of 4 before the first is used.
template <typename Branch, typename T, typename R, typename W, typename B, bool LAYER, bool WEIGHT, bool BIAS, int LANES, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    forward(T* __restrict__ gOut, R* __restrict__ gSum, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX,
            const R* __restrict__ gR, const W* __restrict__ gW, const B* __restrict__ gB, const void* __restrict__ gSeed, long long M, int N,
            long long stride_x, long long stride_r, long long threshold, float scale, float eps, float offset) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(R), ROWS = THREADS / LANES, NEXT = LANES * WIDTH, GROUP = VECS < 4 ? VECS : 4;
  using Narrow = typename Raw<int(sizeof(T)) * WIDTH>::type;
  __shared__ float sPartial[2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const unsigned zero = hidden_zero(N);
  const long long i_m = blockIdx.x * (long long)ROWS + threadIdx.x / LANES, row = i_m * N + i_l;
  const int left = i_m < M ? N - i_l : 0;  // the lanes of a row that is not there come along for the shuffles
  const T* gFrom = gX + i_m * stride_x + i_l;
  const R* gAdd = gR + i_m * stride_r + i_l;
  const Branch branch(gSeed, threshold, scale);
  uint4 rS[VECS] = {};
  float rF[WIDTH], rA[WIDTH], rB[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll
  for (int first = 0; first < VECS; first += GROUP) {
    Narrow rX[GROUP];
#pragma unroll
    for (int v = first; v < first + GROUP && v < VECS; ++v)
      if (v * NEXT < left) {
        rX[v - first] = __ldca(reinterpret_cast<const Narrow*>(gFrom + v * NEXT));
        rS[v] = __ldca(reinterpret_cast<const uint4*>(gAdd + v * NEXT));
      }
#pragma unroll
    for (int v = first; v < first + GROUP && v < VECS; ++v) {
      if (v * NEXT >= left) break;
      unpack<T>(rF, rX[v - first]), unpack<R>(rA, rS[v]);
      branch(rF, row + v * NEXT);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] += rA[k];
      pack<R>(rS[v], rF);
      __stwb(reinterpret_cast<uint4*>(gSum + row + v * NEXT), rS[v]);
      unpack<R>(rF, rS[v]);  // of the rounded sum
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) LAYER ? sum += rF[k] : square += rF[k] * rF[k];
      stay_packed(rS[v], zero);
    }
  }
  const float mean = LAYER ? row_reduce<LANES>(sum, Sum(), sPartial, 0) / N : 0.0f;
  if (LAYER)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<R>(rF, rS[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
      stay_packed(rS[v], zero);
    }
  const float rstd = rsqrtf(row_reduce<LANES>(square, Sum(), sPartial, 1) / N + eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
    unpack<R>(rF, rS[v]);
    if (WEIGHT) parameters(rA, gW + i_l + v * NEXT, offset);
    if (BIAS) parameters(rB, gB + i_l + v * NEXT);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rA[k] : rstd) + (BIAS ? rB[k] : 0.0f);
    Narrow rOut;
    pack<T>(rOut, rF);
    __stwb(reinterpret_cast<Narrow*>(gOut + row + v * NEXT), rOut);
  }
  if (gRstd && i_l == 0 && i_m < M) {
    if (LAYER || Branch::DROPS) gMean[i_m] = mean;
    gRstd[i_m] = rstd;
  }
}

// A thread has the same columns of every row: up to 2 vectors of them it keeps the weight, and its share of the parameters' gradients.
template <bool MANY, int THREADS> constexpr int BLOCKS = THREADS < 512 ? (MANY ? 512 : 640) / THREADS : 1;

// STAGES times as many rows as a block holds wait or arrive. n = (s - mean) rstd, g = w dout: dr = rstd (g - mean(g) - n mean(g n)) + dsum, without
// mean(g) for RMSNorm; dx = what the branch makes of dr; of dout n and dout the sums over the block's rows go to gPartial [2, blocks, N].
template <typename Branch, typename T, typename R, typename W, bool LAYER, bool WEIGHT, bool BIAS, int LANES, int VECS, int THREADS, int STAGES>
__global__ void __launch_bounds__(THREADS, BLOCKS<LAYER || BIAS || Branch::DROPS, THREADS>)
    backward(T* __restrict__ gDx, R* __restrict__ gDr, float* __restrict__ gPartial, const T* __restrict__ gDout, const R* __restrict__ gDsum,
             const R* __restrict__ gS, const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd,
             const void* __restrict__ gSeed, long long M, int N, long long stride_dout, long long stride_dsum, long long stride_s,
             long long threshold, float scale, float offset) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(R), ROWS = THREADS / LANES, NEXT = LANES * WIDTH;
  using Narrow = typename Raw<int(sizeof(T)) * WIDTH>::type;
  constexpr int SLOT = (2 * 16 + sizeof(Narrow)) * THREADS / 16;  // s, dsum, dout
  constexpr bool KEPT = WEIGHT && VECS <= 2;
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Pair sPartial[2][WARP];
  const Branch branch(gSeed, threshold, scale);
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS;
  long long i_m = first + threadIdx.x / LANES, i_next = i_m;  // the row worked on, the row to be asked for
  const auto slot = [&](int stage, int v) { return sX + (stage * VECS + v) * SLOT + threadIdx.x; };
  const auto narrow = [&](int stage, int v) { return reinterpret_cast<Narrow*>(sX + (stage * VECS + v) * SLOT + 2 * THREADS) + threadIdx.x; };
  const auto fetch = [&](int stage, int v) {
    const bool there = v * NEXT < (i_next < M ? N - i_l : 0);
    copy_async<sizeof(Narrow)>(narrow(stage, v), gDout + i_next * stride_dout + i_l + v * NEXT, there);
    copy_async<16>(slot(stage, v), gS + i_next * stride_s + i_l + v * NEXT, there);
    copy_async<16>(slot(stage, v) + THREADS, gDsum + i_next * stride_dsum + i_l + v * NEXT, there);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rW[KEPT ? VECS : 1][WIDTH], rG[WIDTH], rS[WIDTH];
  if (KEPT)
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (v * NEXT < N - i_l) parameters(rW[v], gW + i_l + v * NEXT, offset);
  int stage = 0, parity = 0;
  for (long long i = first; i < M; i += step, i_m += step, i_next += step, parity ^= 1) {
    const int left = i_m < M ? N - i_l : 0;
    const float rstd = i_m < M ? gRstd[i_m] : 0.0f, mean = LAYER && i_m < M ? gMean[i_m] : 0.0f;
    Pair sum = {0.0f, 0.0f};  // of g, of g (s - mean)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not
      if (v * NEXT >= left) break;
      unpack<T>(rG, *narrow(stage, v)), unpack<R>(rS, *slot(stage, v));
      float(&rWeight)[WIDTH] = rW[KEPT ? v : 0];
      if (WEIGHT && !KEPT) parameters(rWeight, gW + i_l + v * NEXT, offset);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const float g = WEIGHT ? rG[k] * rWeight[k] : rG[k];
        if (LAYER) sum.a += g;
        sum.b += g * (rS[k] - mean);
      }
    }
    sum = row_reduce<LANES>(sum, SumPair(), sPartial, parity);
    const float level = LAYER ? sum.a / N : 0.0f, along = sum.b * rstd / N;
    const long long row = i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT < left) {
        unpack<T>(rG, *narrow(stage, v)), unpack<R>(rS, *slot(stage, v));
        float(&rWeight)[WIDTH] = rW[KEPT ? v : 0];
        if (WEIGHT && !KEPT) parameters(rWeight, gW + i_l + v * NEXT, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = (rS[k] - mean) * rstd;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          if (BIAS) rDb[v][k] += rG[k];
          rS[k] = rstd * ((WEIGHT ? rG[k] * rWeight[k] : rG[k]) - level - n * along);
        }
        unpack<R>(rG, slot(stage, v)[THREADS]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS[k] += rG[k];
        uint4 rDr;
        pack<R>(rDr, rS);
        __stcs(reinterpret_cast<uint4*>(gDr + row + v * NEXT), rDr);
        if (Branch::DROPS) {
          branch(rS, row + v * NEXT);
          Narrow rDx;
          pack<T>(rDx, rS);
          __stcs(reinterpret_cast<Narrow*>(gDx + row + v * NEXT), rDx);
        }
      }
      fetch(stage, v);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
  const auto write = [&](float* gTo, const float(&rD)[VECS][WIDTH]) {
    if (ROWS == 1) {
#pragma unroll
      for (int v = 0; v < VECS; ++v)
        if (v * NEXT < N - i_l)
#pragma unroll
          for (int k = 0; k < WIDTH; k += 4)
            *reinterpret_cast<float4*>(gTo + i_l + v * NEXT + k) = {rD[v][k], rD[v][k + 1], rD[v][k + 2], rD[v][k + 3]};
      return;
    }
    float* sD = reinterpret_cast<float*>(sX);  // the slots are free: a row of sums for each row of threads, LANES * VECS * WIDTH long
    __syncthreads();
#pragma unroll
    for (int v = 0; v < VECS; ++v)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sD[(threadIdx.x / LANES * VECS + v) * NEXT + i_l + k] = rD[v][k];
    __syncthreads();
    for (int i_n = threadIdx.x; i_n < N; i_n += THREADS) {
      float total = 0.0f;
      for (int r = 0; r < ROWS; ++r) total += sD[r * VECS * NEXT + i_n];
      gTo[i_n] = total;
    }
  };
  if (WEIGHT) write(gPartial + blockIdx.x * (long long)N, rDw);
  if (BIAS) write(gPartial + (gridDim.x + blockIdx.x) * (long long)N, rDb);
}
