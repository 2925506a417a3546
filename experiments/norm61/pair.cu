// adds: x_bias's gradient, of rows as they are written; a row's statistics and the parameters asked for ahead; reads that stay in the L2, PER blocks shared out evenly
// costs: 8 registers a vector of 16-bit elements for each of up to three sums and for the weight, so 384 threads a multiprocessor of 3 vectors each
// loses when: rows are few, or so wide that the sums leave no room for the weight, which is then read again for every row
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/sum_norm.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Of a quarter's 16384 registers what a thread has where so many warps share the four.
template <int WARPS> constexpr int REGISTERS = WARPS > 8 ? 512 / ceil_div(WARPS, 4) / 8 * 8 : 255;

template <int MOST> constexpr int upto(int n) { return n < 0 ? 0 : n < MOST ? n : MOST; }


template <int P> struct Pairs { Pair of[P]; };
template <int P> ROOFTILE_DEVICE Pairs<P> shuffle_xor(Pairs<P> p, int distance) {
#pragma unroll
  for (int i = 0; i < P; ++i) p.of[i] = rooftile::shuffle_xor(p.of[i], distance);
  return p;
}
template <int P> struct SumPairs {
  ROOFTILE_DEVICE Pairs<P> operator()(Pairs<P> x, Pairs<P> y) const {
#pragma unroll
    for (int i = 0; i < P; ++i) x.of[i] = SumPair()(x.of[i], y.of[i]);
    return x;
  }
};
constexpr int PAIR = 2;
constexpr bool DRAWN = false;

template <typename Branch, typename T, typename R, typename W, bool LAYER, bool WEIGHT, bool BIAS, bool LACKS, int LANES, int VECS, int THREADS,
          int STAGES, int PER, bool FULL>
__global__ void __launch_bounds__(THREADS, PER)
    backward(T* __restrict__ gDx, R* __restrict__ gDr, float* __restrict__ gPartial, const T* __restrict__ gDout, const R* __restrict__ gDsum,
             const R* __restrict__ gS, const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd,
             const void* __restrict__ gSeed, long long M, int N, long long stride_dout, long long stride_dsum, long long stride_s,
             long long threshold, float scale, float offset) {
  static_assert(LANES == THREADS && FULL && !LACKS, "a row belongs to the block");
  constexpr int WIDTH = 16 / sizeof(R), ROWS = 1, NEXT = LANES * WIDTH;
  using Narrow = typename Raw<int(sizeof(T)) * WIDTH>::type;
  constexpr int SLOT = (2 * 16 + sizeof(Narrow)) * THREADS / 16;  // s, dsum, dout
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Pairs<PAIR> sPartial[2][WARP];
  const unsigned zero = hidden_zero(N);
  const Branch branch(gSeed, threshold, scale);
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long step = (long long)gridDim.x * PAIR, i_m = blockIdx.x * (long long)PAIR;
  const Policy policy = evict_last(M * N * (long long)(2 * sizeof(R) + sizeof(T)));
  const T* gDout_next = gDout + i_m * stride_dout + i_l;
  const R *gDsum_next = gDsum + i_m * stride_dsum + i_l, *gS_next = gS + i_m * stride_s + i_l;
  long long i_next = i_m;
  const auto narrow = [](uint4* sAt) { return reinterpret_cast<Narrow*>(sAt + 2 * THREADS - threadIdx.x) + threadIdx.x; };
  const auto fetch = [&](uint4* sAt) {
#pragma unroll
    for (int r = 0; r < PAIR; ++r)
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        uint4* sTo = sAt + (r * VECS + v) * SLOT;
        copy_async(narrow(sTo), gDout_next + r * stride_dout + v * NEXT, i_next + r < M, policy);
        copy_async(sTo, gS_next + r * stride_s + v * NEXT, i_next + r < M, policy);
        copy_async(sTo + THREADS, gDsum_next + r * stride_dsum + v * NEXT, i_next + r < M, policy);
      }
    copy_commit();
    gDout_next += step * stride_dout, gDsum_next += step * stride_dsum, gS_next += step * stride_s, i_next += step;
  };
  uint4 *const sFirst = sX + threadIdx.x, *sAt = sFirst;
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(sFirst + s * PAIR * VECS * SLOT);
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rDxb[VECS][WIDTH] = {};
  float rstd_next[PAIR], mean_next[PAIR];
#pragma unroll
  for (int r = 0; r < PAIR; ++r) rstd_next[r] = i_m + r < M ? gRstd[i_m + r] : 0.0f, mean_next[r] = LAYER && i_m + r < M ? gMean[i_m + r] : 0.0f;
  Parameters<W, WIDTH> rAsked[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (WEIGHT) rAsked[v].ask(gW + i_l + v * NEXT);
  const float inverse = 1.0f / N;
  const auto mean_of = [&](float sum) {  // sum / N, rounded as a division is
    const float q = sum * inverse;
    return fmaf(fmaf(-q, float(N), sum), inverse, q);
  };
  int parity = 0;
  long long row = i_m * N + i_l;
  let_next_stand_by();  // who adds up the partial sums
  for (long long i = i_m; i < M; i += step, row += step * N, parity ^= 1) {
    float rstd[PAIR], mean[PAIR];
#pragma unroll
    for (int r = 0; r < PAIR; ++r) {
      rstd[r] = rstd_next[r], mean[r] = mean_next[r];
      rstd_next[r] = i + step + r < M ? gRstd[i + step + r] : 0.0f;
      mean_next[r] = LAYER && i + step + r < M ? gMean[i + step + r] : 0.0f;
    }
    unsigned mask = 0;
    if constexpr (DRAWN && Branch::DROPS) {
      static_assert(PAIR * VECS * WIDTH <= 32, "a bit an element");
#pragma unroll
      for (int r = 0; r < PAIR; ++r)
#pragma unroll
        for (int v = 0; v < VECS; ++v)
#pragma unroll
          for (int k = 0; k < WIDTH; k += 4) {
            const Words w = philox((row + r * (long long)N + v * NEXT + k) / 4, branch.seed);
            const int at = (r * VECS + v) * WIDTH + k;
            mask |= (w.a >= branch.threshold ? 1u << at : 0u) | (w.b >= branch.threshold ? 2u << at : 0u) |
                    (w.c >= branch.threshold ? 4u << at : 0u) | (w.d >= branch.threshold ? 8u << at : 0u);
          }
#ifndef ROOFTILE_SIMULATOR
      asm volatile("" : "+r"(mask));
#endif
    }
    Pairs<PAIR> sum = {};  // of g, of g (s - mean)
    copy_wait<STAGES - 1>();
#pragma unroll
    for (int r = 0; r < PAIR; ++r)
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float rDout[WIDTH], rAway[WIDTH], rF[WIDTH];
        uint4* sIs = sAt + (r * VECS + v) * SLOT;
        unpack<T>(rDout, *narrow(sIs)), unpack<R>(rAway, *sIs);
        if (WEIGHT) LAYER ? rAsked[v].open(rF) : rAsked[v].open(rF, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float g = WEIGHT ? rDout[k] * rF[k] : rDout[k];
          if (LAYER) sum.of[r].a += g, rAway[k] -= mean[r];
          sum.of[r].b += g * rAway[k];
        }
      }
    sum = row_reduce<LANES>(sum, SumPairs<PAIR>(), sPartial, parity);
    uint4* sAgain = sAt + zero;
#pragma unroll
    for (int v = 0; v < VECS; ++v)
#pragma unroll
      for (int p = 0; p < Parameters<W, WIDTH>::PARTS; ++p)
        rAsked[v].part[p].x ^= zero, rAsked[v].part[p].y ^= zero, rAsked[v].part[p].z ^= zero, rAsked[v].part[p].w ^= zero;
#pragma unroll
    for (int r = 0; r < PAIR; ++r) {
      const float level = LAYER ? mean_of(sum.of[r].a) : 0.0f, along = mean_of(sum.of[r].b * rstd[r]);
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float rDout[WIDTH], rAway[WIDTH], rF[WIDTH];
        uint4* sIs = sAgain + (r * VECS + v) * SLOT;
        const long long at = row + r * (long long)N + v * NEXT;
        unpack<T>(rDout, *narrow(sIs)), unpack<R>(rAway, *sIs);
        if (WEIGHT) LAYER ? rAsked[v].open(rF) : rAsked[v].open(rF, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          if (LAYER) rAway[k] -= mean[r];
          const float n = rAway[k] * rstd[r];
          if (WEIGHT) rDw[v][k] += rDout[k] * n;
          if (BIAS) rDb[v][k] += rDout[k];
          rAway[k] = (WEIGHT ? rDout[k] * rF[k] : rDout[k]) - level - n * along;
        }
        unpack<R>(rF, sIs[THREADS]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rAway[k] = rstd[r] * rAway[k] + rF[k];
        uint4 rDr;
        pack<R>(rDr, rAway);
        if (i + r < M) __stwb(reinterpret_cast<uint4*>(gDr + at), rDr);
        if constexpr (Branch::DROPS) {
          if constexpr (DRAWN) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) rAway[k] = mask >> ((r * VECS + v) * WIDTH + k) & 1 ? rAway[k] * branch.scale : 0.0f;
          } else {
            branch(rAway, at);
          }
          Narrow rDx;
          pack<T>(rDx, rAway);
          if (i + r < M) __stwb(reinterpret_cast<Narrow*>(gDx + at), rDx);
        }
      }
    }
    fetch(sAt);
    sAt = sAt == sFirst + (STAGES - 1) * PAIR * VECS * SLOT ? sFirst : sAt + PAIR * VECS * SLOT;
  }
  copy_wait<0>();
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

// gDw[N], gDb[N] and gDxb[N] = sums over the rows of three thirds of gPartial [3, P, N], as add_rows makes two of two halves, in the same order:
// blockIdx.y says which. A lane takes COLUMNS neighbours of N, a multiple of them, a warp every WARPSth row, 8 of them asked for at once.
template <typename W, typename B, typename X, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(1024)
    add_three(W* __restrict__ gDw, B* __restrict__ gDb, X* __restrict__ gDxb, const float* __restrict__ gPartial, int P, int N) {
  __shared__ alignas(16) float sSum[WARP][WARP * COLUMNS];
  const int first = blockIdx.x * WARP * COLUMNS, i_n = first + lane() * COLUMNS;
  const float* gFrom = gPartial + blockIdx.y * (long long)P * N + i_n;
  Vec<float, COLUMNS> rSum = {};
  earlier_done();
  if (i_n < N) {
#pragma unroll 8
    for (int i_p = warp(); i_p < P; i_p += warps()) {
      Vec<float, COLUMNS> r;
      load_global(r, gFrom + i_p * (long long)N);
#pragma unroll
      for (int k = 0; k < COLUMNS; ++k) rSum[k] += r[k];
    }
  }
  reinterpret_cast<Vec<float, COLUMNS>*>(sSum[warp()])[lane()] = rSum;
  __syncthreads();
  for (int i = threadIdx.x; i < WARP * COLUMNS && first + i < N; i += blockDim.x) {
    float sum = 0.0f;
    for (int w = 0; w < warps(); ++w) sum += sSum[w][i];
    if (blockIdx.y == 0) gDw[first + i] = W(sum);
    else if (blockIdx.y == 1) gDb[first + i] = B(sum);
    else gDxb[first + i] = X(sum);
  }
}
