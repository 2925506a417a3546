from pathlib import Path
def pair(s, drawn):
    """Two rows a turn: PAIR rows side by side in a thread, one barrier for both, one set of sums and one weight. ROWS == 1, FULL."""
    head, rest = s.split("// A vector is 16 bytes of the stream's type R;", 1)
    kernel, tail = rest.split("  copy_wait<0>();\n  float* gTo", 1)
    doc, _ = kernel.split("template <typename Branch", 1)
    body = r'''
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
constexpr bool DRAWN = @DRAWN@;

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
'''.replace("@DRAWN@", "true" if drawn else "false")
    return head + body + "  copy_wait<0>();\n  float* gTo" + tail
def weight_in_registers(s, held):
    """v8: of a thread's vectors of the weight `held` in registers as they came, the others beside the rows as before, so that a third row of each of two
    blocks has room."""
    head, back = s.split("// n = (x - mean) rstd, g = w dout: dx =", 1)
    def swap(s, *pairs):
        for a, b, n in pairs:
            assert s.count(a) == n, (s.count(a), a)
            s = s.replace(a, b)
        return s
    back = swap(back,
        ("  const W* sW = reinterpret_cast<const W*>(sX + STAGES * 2 * VECS * THREADS) + (warp() * VECS * WARP + lane()) * WIDTH;\n",
         "  constexpr int HELD = %d;\n  const unsigned zero = hidden_zero(N);\n  const W* sW = reinterpret_cast<const W*>(sX + STAGES * 2 * VECS * THREADS) + (warp() * (VECS - HELD) * WARP + lane()) * WIDTH;\n" % held, 1),
        ("""  if (WEIGHT && lane() == 0 && !none) {
    const int bytes = min(VECS * NEXT, left) * int(sizeof(W));
    mbarrier_arrive_expect(&sFull[STAGES][warp()], bytes);
    bulk_load(const_cast<W*>(sW), gW + i_l, bytes, &sFull[STAGES][warp()]);
  }
""", """  if (WEIGHT && lane() == 0 && HELD * NEXT < left && HELD < VECS) {
    const int bytes = (min(VECS * NEXT, left) - HELD * NEXT) * int(sizeof(W));
    mbarrier_arrive_expect(&sFull[STAGES][warp()], bytes);
    bulk_load(const_cast<W*>(sW), gW + i_l + HELD * NEXT, bytes, &sFull[STAGES][warp()]);
  }
  Parameters<W, WIDTH> rKeep[HELD];
#pragma unroll
  for (int v = 0; v < HELD; ++v)
    if (WEIGHT && v * NEXT < left) rKeep[v].ask(gW + i_l + v * NEXT);
""", 1),
        ("  if (WEIGHT && !none) mbarrier_wait(&sFull[STAGES][warp()], 0);\n",
         "  if (WEIGHT && part * VECS * NEXT + HELD * NEXT < N && HELD < VECS) mbarrier_wait(&sFull[STAGES][warp()], 0);\n", 1),
        ("        if (WEIGHT) kept(rW, sW + v * NEXT);\n", """        if (WEIGHT && v < HELD) {
          rKeep[v % HELD].open(rW);
#pragma unroll
          for (int p = 0; p < Parameters<W, WIDTH>::PARTS; ++p) rKeep[v % HELD].part[p].x ^= zero, rKeep[v % HELD].part[p].y ^= zero, rKeep[v % HELD].part[p].z ^= zero, rKeep[v % HELD].part[p].w ^= zero;
        } else if (WEIGHT) {
          kept(rW, sW + (v - HELD) * NEXT);
        }
""", 2))
    # lane 0's columns begin the warp's: it alone asks, of what `left` says of it
    return head + "// n = (x - mean) rstd, g = w dout: dx =" + back
