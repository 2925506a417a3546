// adds: rows in registers, 16 bytes an access, all four words of a Philox call; backward row after row a block, the next one in flight
// costs: rows must be whole vectors; forward 2 vectors each for 1024 threads at most, backward 3 slots of 16 bytes a vector and a stage
// loses when: rows are wider than that, or the stream is of another type than x
#include "rooftile/async.cuh"
#include "rooftile/philox.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

typedef unsigned long long Seed;

template <typename T, typename W, typename B, bool LAYER, bool WEIGHT, bool BIAS, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    forward(T* __restrict__ gOut, T* __restrict__ gSum, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX,
            const T* __restrict__ gR, const W* __restrict__ gW, const B* __restrict__ gB, const long long* __restrict__ gSeed, int N,
            long long stride_x, long long stride_r, long long threshold, float scale, float eps) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const unsigned zero = hidden_zero(N);
  const long long row = blockIdx.x * (long long)N;
  const uint4 *gRow = reinterpret_cast<const uint4*>(gX + blockIdx.x * stride_x), *gAdd = reinterpret_cast<const uint4*>(gR + blockIdx.x * stride_r);
  uint4 rX[VECS] = {}, rR[VECS] = {};
  float rF[WIDTH], rA[WIDTH], rW[WIDTH], rB[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v < N / WIDTH) rX[v] = __ldcs(gRow + i_v), rR[v] = __ldcs(gAdd + i_v);
  }
  const Dropout drop = {Seed(*gSeed), Seed(threshold), scale};
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= N / WIDTH) break;
    unpack<T>(rF, rX[v]), unpack<T>(rA, rR[v]);
    drop(rF, row + i_v * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] += rA[k];
    pack<T>(rX[v], rF);
    __stcs(reinterpret_cast<uint4*>(gSum + row) + i_v, rX[v]);
    unpack<T>(rF, rX[v]);  // of the rounded sum
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) LAYER ? sum += rF[k] : square += rF[k] * rF[k];
    stay_packed(rX[v], zero);
  }
  const float mean = LAYER ? row_reduce<THREADS>(sum, Sum(), sPartial, 0) / N : 0.0f;
  if (LAYER)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
      if (int(threadIdx.x) + v * THREADS < N / WIDTH)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
      stay_packed(rX[v], zero);
    }
  const float rstd = rsqrtf(row_reduce<THREADS>(square, Sum(), sPartial, 1) / N + eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= N / WIDTH) break;
    unpack<T>(rF, rX[v]);
    if (WEIGHT) parameters(rW, gW + i_v * WIDTH);
    if (BIAS) parameters(rB, gB + i_v * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rW[k] : rstd) + (BIAS ? rB[k] : 0.0f);
    pack<T>(rX[v], rF);
    __stcs(reinterpret_cast<uint4*>(gOut + row) + i_v, rX[v]);
  }
  if (threadIdx.x == 0) gMean[blockIdx.x] = mean, gRstd[blockIdx.x] = rstd;
}

// LANES threads a row, each VECS vectors of it; a block of THREADS holds THREADS / LANES rows, and STAGES times as many wait or arrive.
// n = (s - mean) rstd, g = w dout: dr = rstd (g - mean(g) - n mean(g n)) + dsum, without mean(g) for RMSNorm; dx = what dropout makes of dr;
// of dout n and dout the sums over the block's rows go to gPartial [2, blocks, N].
template <typename T, typename W, bool LAYER, bool WEIGHT, bool BIAS, int LANES, int VECS, int THREADS, int STAGES>
__global__ void __launch_bounds__(THREADS, THREADS < 512 ? 512 / THREADS : 1)
    backward(T* __restrict__ gDx, T* __restrict__ gDr, float* __restrict__ gPartial, const T* __restrict__ gDout, const T* __restrict__ gDsum,
             const T* __restrict__ gS, const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd,
             const long long* __restrict__ gSeed, long long M, int N, long long stride_dout, long long stride_dsum, long long stride_s,
             long long threshold, float scale) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), ROWS = THREADS / LANES, NEXT = LANES * WIDTH;
  extern __shared__ uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Pair sPartial[2][WARP];
  const Dropout drop = {Seed(*gSeed), Seed(threshold), scale};
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS;
  long long i_m = first + threadIdx.x / LANES, i_next = i_m;  // the row worked on, the row to be asked for
  const auto slot = [&](int stage, int v) { return sX + (stage * VECS + v) * 3 * THREADS + threadIdx.x; };
  const auto fetch = [&](int stage, int v) {
    const bool there = v * NEXT < (i_next < M ? N - i_l : 0);
    copy_async<16>(slot(stage, v), gDout + i_next * stride_dout + i_l + v * NEXT, there);
    copy_async<16>(slot(stage, v) + THREADS, gS + i_next * stride_s + i_l + v * NEXT, there);
    copy_async<16>(slot(stage, v) + 2 * THREADS, gDsum + i_next * stride_dsum + i_l + v * NEXT, there);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rG[WIDTH], rS[WIDTH], rW[WIDTH];
  int stage = 0, parity = 0;
  for (long long i = first; i < M; i += step, i_m += step, i_next += step, parity ^= 1) {
    const int left = i_m < M ? N - i_l : 0;
    const float rstd = i_m < M ? gRstd[i_m] : 0.0f;
    const float mean = LAYER && i_m < M ? gMean[i_m] : 0.0f;
    Pair sum = {0.0f, 0.0f};  // of g, of g (s - mean)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not
      if (v * NEXT >= left) break;
      unpack<T>(rG, *slot(stage, v)), unpack<T>(rS, slot(stage, v)[THREADS]);
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const float g = WEIGHT ? rG[k] * rW[k] : rG[k];
        sum.a += g, sum.b += g * (rS[k] - mean);
      }
    }
    sum = row_reduce<LANES>(sum, SumPair(), sPartial, parity);
    const float level = LAYER ? sum.a / N : 0.0f, along = sum.b * rstd / N;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT < left) {
        unpack<T>(rG, *slot(stage, v)), unpack<T>(rS, slot(stage, v)[THREADS]);
        if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = (rS[k] - mean) * rstd;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          if (BIAS) rDb[v][k] += rG[k];
          rS[k] = rstd * ((WEIGHT ? rG[k] * rW[k] : rG[k]) - level - n * along);
        }
        unpack<T>(rG, slot(stage, v)[2 * THREADS]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS[k] += rG[k];
        const long long at = i_m * N + i_l + v * NEXT;
        uint4 rOut;
        pack<T>(rOut, rS);
        __stcs(reinterpret_cast<uint4*>(gDr + at), rOut);
        drop(rS, at);
        pack<T>(rOut, rS);
        __stcs(reinterpret_cast<uint4*>(gDx + at), rOut);
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
