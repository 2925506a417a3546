// adds: x_bias's gradient, of rows as they are written; a row's statistics and the parameters asked for ahead; reads that stay in the L2, PER blocks shared out evenly
// costs: 8 registers a vector of 16-bit elements for each of up to three sums, 8 or 4 for the weight, so 384 threads a multiprocessor of 3 vectors each
// loses when: rows are few, or so wide that the sums leave no room for the weight, which is then read again for every row
#include "rooftile/ahead.cuh"
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/sum_norm.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Of a quarter's 16384 registers what a thread has where so many warps share the four.
template <int WARPS> constexpr int REGISTERS = WARPS > 8 ? 512 / ceil_div(WARPS, 4) / 8 * 8 : 255;

template <int MOST> constexpr int upto(int n) { return n < 0 ? 0 : n < MOST ? n : MOST; }

// Of a narrow weight beside float32.
ROOFTILE_DEVICE void stay_packed(uint2& r, unsigned zero) { r.x ^= zero, r.y ^= zero; }

// A vector is 16 bytes of the stream's type R; dout and dx, which may be narrower, then move 8 bytes at a time. LANES threads hold a row, each VECS
// vectors of it, FULL: none beyond its end; STAGES times as many rows as a block holds wait or arrive. n = (s - mean) rstd, g = w dout: dr = rstd (g -
// mean(g) - n mean(g n)) + dsum, without mean(g) for RMSNorm; dx = what the branch makes of dr. Of dout n, of dout and of dr as it is written (x LACKS a
// bias) the sums over the block's rows go to gPartial [sums, blocks, N]. A thread has the same columns of every row: it keeps their sums, and of HELD
// vectors the weight, OPEN: as floats, else as it came. A row is read from its slots twice, but for KEPT vectors, which are as many as have room in
// registers in between.
template <typename Branch, typename T, typename R, typename W, bool LAYER, bool WEIGHT, bool BIAS, bool LACKS, int LANES, int VECS, int THREADS,
          int STAGES, int PER, bool FULL>
__global__ void __launch_bounds__(THREADS, PER)
    backward(T* __restrict__ gDx, R* __restrict__ gDr, float* __restrict__ gPartial, const T* __restrict__ gDout, const R* __restrict__ gDsum,
             const R* __restrict__ gS, const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd,
             const void* __restrict__ gSeed, long long M, int N, long long stride_dout, long long stride_dsum, long long stride_s,
             long long threshold, float scale, float offset) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(R), ROWS = THREADS / LANES, NEXT = LANES * WIDTH;
  using Narrow = typename Raw<int(sizeof(T)) * WIDTH>::type;
  constexpr int SLOT = (2 * 16 + sizeof(Narrow)) * THREADS / 16;  // s, dsum, dout
  constexpr int PASSING = 56 + 8 * ((LANES > WARP) + (sizeof(W) < 4) + (sizeof(T) == 4) + (VECS * WIDTH > 24) + 4 * Branch::DROPS);  // else some spill
  constexpr int MOST = REGISTERS<THREADS / WARP * PER>, ROOM = MOST - PASSING - (WEIGHT + BIAS + LACKS) * VECS * WIDTH;
  // A mask leaves the weight's floats no room beside the sums; as it came it fits, since the floats of a vector are gone when its mask is drawn.
  constexpr int PACKED = WIDTH * int(sizeof(W)) / 4;  // registers of a vector of the weight
  constexpr bool OPEN = !WEIGHT || !Branch::DROPS || PACKED == WIDTH || ROOM >= VECS * WIDTH;
  constexpr int EACH = OPEN ? WIDTH : PACKED, SPARE = OPEN ? ROOM : ROOM + 16;
  constexpr int HELD = WEIGHT ? upto<VECS>(SPARE / EACH) : 0, KEPT = upto<VECS>((ROOM - HELD * EACH) / (2 * WIDTH));
  // Without a branch a vector they are worked on side by side, which takes registers.
  constexpr bool STRAIGHT = FULL && SPARE >= VECS * EACH && (VECS * WIDTH <= 16 || PASSING == 56 || (MOST == 255 && !Branch::DROPS));
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Pair sPartial[2][WARP];
  const unsigned zero = hidden_zero(N);
  const Branch branch(gSeed, threshold, scale);
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS, i_m = first + threadIdx.x / LANES;
  const Policy policy = evict_last(M * N * (long long)(2 * sizeof(R) + sizeof(T)));
  const auto inside = [&](int v, bool there) { return there && (STRAIGHT || v * NEXT < N - i_l); };
  const T* gDout_next = gDout + i_m * stride_dout + i_l;  // of the row to be asked for
  const R *gDsum_next = gDsum + i_m * stride_dsum + i_l, *gS_next = gS + i_m * stride_s + i_l;
  const auto narrow = [](uint4* sAt) { return reinterpret_cast<Narrow*>(sAt + 2 * THREADS - threadIdx.x) + threadIdx.x; };
  const auto fetch = [&](uint4* sAt, bool there) {
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if constexpr (sizeof(Narrow) == 16)
        copy_async(narrow(sAt + v * SLOT), gDout_next + v * NEXT, inside(v, there), policy);
      else
        copy_async<sizeof(Narrow)>(narrow(sAt + v * SLOT), gDout_next + v * NEXT, inside(v, there));
      copy_async(sAt + v * SLOT, gS_next + v * NEXT, inside(v, there), policy);
      copy_async(sAt + v * SLOT + THREADS, gDsum_next + v * NEXT, inside(v, there), policy);
    }
    copy_commit();
    gDout_next += step * stride_dout, gDsum_next += step * stride_dsum, gS_next += step * stride_s;
  };
  uint4 *const sFirst = sX + threadIdx.x, *sAt = sFirst;
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(sFirst + s * VECS * SLOT, i_m + s * step < M);
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rDxb[VECS][WIDTH] = {}, rG[KEPT + 1][WIDTH], rS[KEPT + 1][WIDTH];
  const float *gRstd_next = gRstd + i_m, *gMean_next = gMean + i_m;
  float rstd_next = i_m < M ? *gRstd_next : 0.0f, mean_next = LAYER && i_m < M ? *gMean_next : 0.0f;
  constexpr int SOME = HELD ? HELD : 1;
  float rW[OPEN ? SOME : 1][WIDTH];
  Parameters<W, WIDTH> rAsked[SOME];
#pragma unroll
  for (int v = 0; v < HELD; ++v)
    if (inside(v, true)) rAsked[v].ask(gW + i_l + v * NEXT);
#pragma unroll
  for (int v = 0; v < (OPEN ? HELD : 0); ++v) LAYER ? rAsked[v].open(rW[v]) : rAsked[v].open(rW[v], offset);
  const auto weight = [&](float(&rF)[WIDTH], int v) {
    if (OPEN && v < HELD) {
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rW[v % (OPEN ? SOME : 1)][k];
    } else if (v < HELD) {
      LAYER ? rAsked[v % SOME].open(rF) : rAsked[v % SOME].open(rF, offset);
    } else if (LAYER) {
      parameters(rF, gW + i_l + v * NEXT);
    } else {
      parameters(rF, gW + i_l + v * NEXT, offset);
    }
  };
  const float inverse = 1.0f / N;
  const auto mean_of = [&](float sum) {  // sum / N, rounded as a division is
    const float q = sum * inverse;
    return fmaf(fmaf(-q, float(N), sum), inverse, q);
  };
  const int turns = first < M ? int((M - 1 - first) / step) + 1 : 0;
  int rest = i_m + (turns - 1) * step < M ? turns : turns - 1, parity = 0;  // rows of these lanes: of a block's last ones some may not be there
  long long row = i_m * N + i_l;
  let_next_stand_by();  // who adds up the partial sums
  for (int i = 0; i < turns; ++i, --rest, row += step * N, parity ^= 1) {
    const bool there = ROWS == 1 || rest > 0;  // of a row that is not, all is zeros, also its rstd: it adds nothing, and only must not be written
    const float rstd = rstd_next, mean = mean_next;
    gRstd_next += step, gMean_next += step;
    // Without a mean the row's own sum needs none, and rstd has until then to come.
    rstd_next = LAYER ? ask_ahead(gRstd_next, rest > 1) : rest > 1 ? *gRstd_next : 0.0f;
    if (LAYER) mean_next = ask_ahead(gMean_next, rest > 1);
    unsigned kept[ceil_div(VECS * WIDTH, 32)] = {};
    if constexpr (Branch::DROPS) {
      const unsigned least = unsigned(branch.threshold), all = branch.threshold >> 32 ? 0u : ~0u;
#pragma unroll
      for (int v = 0; v < VECS; ++v)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4) {
          const Words w = philox((row + v * NEXT + k) / 4, branch.seed);
          const int at = (v * WIDTH + k) % 32;
          unsigned bits = (w.a >= least ? 1u << at : 0u) | (w.b >= least ? 2u << at : 0u);
          bits |= (w.c >= least ? 4u << at : 0u) | (w.d >= least ? 8u << at : 0u);
          kept[(v * WIDTH + k) / 32] |= bits & all;
        }
#ifndef ROOFTILE_SIMULATOR
#pragma unroll
      for (int k = 0; k < ceil_div(VECS * WIDTH, 32); ++k) asm volatile("" : "+r"(kept[k]));
#endif
    }
    Pair sum = {0.0f, 0.0f};  // of g, of g (s - mean)
    float rF[WIDTH];
    copy_wait<STAGES - 1>();  // this row has come, the later ones need not
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (!inside(v, STRAIGHT || there)) break;
      float(&rDout)[WIDTH] = rG[v < KEPT ? v : KEPT], (&rAway)[WIDTH] = rS[v < KEPT ? v : KEPT];
      unpack<T>(rDout, *narrow(sAt + v * SLOT)), unpack<R>(rAway, sAt[v * SLOT]);
      if (WEIGHT) weight(rF, v);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const float g = WEIGHT ? rDout[k] * rF[k] : rDout[k];
        if (LAYER) sum.a += g, rAway[k] -= mean;
        sum.b += g * rAway[k];
      }
    }
    sum = row_reduce<LANES>(sum, SumPair(), sPartial, parity);
    uint4* sAgain = sAt + zero;  // else the compiler sees what it has read there, and keeps all of it
    const float level = LAYER ? mean_of(sum.a) : 0.0f, along = mean_of(sum.b * rstd);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (!inside(v, STRAIGHT || there)) break;
      float(&rDout)[WIDTH] = rG[v < KEPT ? v : KEPT], (&rAway)[WIDTH] = rS[v < KEPT ? v : KEPT];
      if constexpr (HELD && !OPEN)
        if (v < HELD) stay_packed(rAsked[v].part[0], zero);
      if (v >= KEPT) {
        unpack<T>(rDout, *narrow(sAgain + v * SLOT)), unpack<R>(rAway, sAgain[v * SLOT]);
        if (LAYER)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) rAway[k] -= mean;
      }
      if (WEIGHT) weight(rF, v);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const float n = rAway[k] * rstd;
        if (WEIGHT) rDw[v][k] += rDout[k] * n;
        if (BIAS) rDb[v][k] += rDout[k];
        rAway[k] = (WEIGHT ? rDout[k] * rF[k] : rDout[k]) - level - n * along;
      }
      unpack<R>(rF, sAt[v * SLOT + THREADS]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rAway[k] = rstd * rAway[k] + rF[k];
      uint4 rDr;
      pack<R>(rDr, rAway);
      if (there) __stwb(reinterpret_cast<uint4*>(gDr + row + v * NEXT), rDr);
      if (Branch::DROPS) {
        if constexpr (Branch::DROPS)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) rAway[k] = kept[(v * WIDTH + k) / 32] >> (v * WIDTH + k) % 32 & 1 ? rAway[k] * branch.scale : 0.0f;
        Narrow rDx;
        pack<T>(rDx, rAway);
        if (there) __stwb(reinterpret_cast<Narrow*>(gDx + row + v * NEXT), rDx);
      }
      if (LACKS) {
        unpack<R>(rF, rDr);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rDxb[v][k] += rF[k];
      }
    }
    fetch(sAt, rest > STAGES);
    sAt = sAt == sFirst + (STAGES - 1) * VECS * SLOT ? sFirst : sAt + VECS * SLOT;
  }
  copy_wait<0>();
  constexpr int SUMS = WEIGHT + BIAS + LACKS, FOURS = WIDTH / 4;
  if constexpr (ROWS > 1 && SUMS > 0 && SUMS * WIDTH * 4 <= STAGES * SLOT * 16 / THREADS) {
    // The slots are free, and have room for all sums at once: of each a row for each row of threads, four columns beside those of the next lane.
    float4* sD = reinterpret_cast<float4*>(sX);
    int part = 0;
    const auto park = [&](const float(&rD)[VECS][WIDTH]) {
#pragma unroll
      for (int v = 0; v < VECS; ++v)
#pragma unroll
        for (int k = 0; k < FOURS; ++k)
          sD[((part * ROWS + int(threadIdx.x) / LANES) * VECS * FOURS + v * FOURS + k) * LANES + int(threadIdx.x) % LANES] = {rD[v][4 * k], rD[v][4 * k + 1], rD[v][4 * k + 2], rD[v][4 * k + 3]};
      ++part;
    };
    __syncthreads();
    if (WEIGHT) park(rDw);
    if (BIAS) park(rDb);
    if (LACKS) park(rDxb);
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS * VECS * LANES; i += THREADS) {
      const int l = i % LANES, v = i / LANES % VECS, p = i / (LANES * VECS), i_n = v * NEXT + l * WIDTH;
      if (i_n >= N) continue;
      Vec<float, 4> rTotal[FOURS] = {};
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < FOURS; ++k) {
          const float4 rPart = sD[((p * ROWS + r) * VECS * FOURS + v * FOURS + k) * LANES + l];
          rTotal[k][0] += rPart.x, rTotal[k][1] += rPart.y, rTotal[k][2] += rPart.z, rTotal[k][3] += rPart.w;
        }
#pragma unroll
      for (int k = 0; k < FOURS; ++k) store_global(gPartial + (p * (long long)gridDim.x + blockIdx.x) * N + i_n + 4 * k, rTotal[k]);
    }
    return;
  }
  float* gTo = gPartial + blockIdx.x * (long long)N;
  const auto write = [&](const float(&rD)[VECS][WIDTH]) {
    float* sD = reinterpret_cast<float*>(sX);  // the slots are free: a row of sums for each row of threads, LANES * VECS * WIDTH long
    float* to = ROWS == 1 ? gTo : sD + threadIdx.x / LANES * VECS * NEXT;
    if (ROWS > 1) __syncthreads();
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (v * NEXT < N - i_l)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4)
          *reinterpret_cast<float4*>(to + i_l + v * NEXT + k) = {rD[v][k], rD[v][k + 1], rD[v][k + 2], rD[v][k + 3]};
    if (ROWS > 1) {
      __syncthreads();
      for (int i_n = 4 * threadIdx.x; i_n < N; i_n += 4 * THREADS) {
        Vec<float, 4> rTotal = {};
        for (int r = 0; r < ROWS; ++r) {
          Vec<float, 4> rPart;
          load(rPart, sD + r * VECS * NEXT + i_n);
#pragma unroll
          for (int k = 0; k < 4; ++k) rTotal[k] += rPart[k];
        }
        store_global(gTo + i_n, rTotal);
      }
    }
    gTo += gridDim.x * (long long)N;
  };
  if (WEIGHT) write(rDw);
  if (BIAS) write(rDb);
  if (LACKS) write(rDxb);
}
