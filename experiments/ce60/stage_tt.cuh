// A thread's part of a row that comes in stages: VECS vectors of 16 bytes each, NEXT elements apart, into a running maximum and sum.
#pragma once
#include "capped_t.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/cross_entropy.cuh"

namespace rooftile {

template <typename T, int VECS, int NEXT, bool SMOOTH, bool CAP> struct Summed {
  static constexpr int WIDTH = 16 / sizeof(T);
  static constexpr bool QUICK = CAP && !SMOOTH && sizeof(T) == 2;
  static_assert(((VECS - 1) & VECS) == 0 && ((NEXT - 1) & NEXT) == 0, "a target is looked for by bits");
  const SoftCap cap;
  const NearCap near;
  RunningSum<T, QUICK> sum;  // without the target
  float spread, level;  // with smoothing: the sum of what logits lie beyond the target's, where that is finite
  ROOFTILE_DEVICE explicit Summed(float softcap) : cap(softcap), near(cap) {}

  // A row whose target's logit is `known` as it is stored; wanted at the row's end, unless smoothing wants it now.
  ROOFTILE_DEVICE void begin(float known) {
    sum = {}, spread = level = 0.0f;
    if (SMOOTH) {
      const float x = CAP ? capped(known, cap.c) : known;
      level = finite(x) ? x : 0.0f;
    }
  }
  float twin;  // of the target, where it lies in the vectors read
  bool lies;
  // The vectors that lie from `at` on in a row of V, which is this thread's first there; for those beyond its end the first again, for the target its neighbour.
  ROOFTILE_DEVICE void read(uint4 (&rX)[VECS], uint4* sX, int at, long long t, int V) {
    if constexpr (QUICK) {
      const unsigned to_target = unsigned(t) - at;  // in one of the vectors where only bits that say which are beyond WIDTH
      lies = (to_target & ~((VECS - 1u) * NEXT)) < WIDTH;
      if (lies) {
        T* sElement = reinterpret_cast<T*>(sX);
        const T x = sElement[to_target ^ 1];
        sElement[to_target] = x, twin = float(x);
        fence_async();
      }
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) rX[v] = sX[v * (NEXT / WIDTH)];
    if (QUICK && at + (VECS - 1) * NEXT >= V)
#pragma unroll
      for (int v = 1; v < VECS; ++v)
        if (at + v * NEXT >= V) rX[v] = rX[0];
  }
  // Adds them. t: the target.
  ROOFTILE_DEVICE void operator()(const uint4 (&rX)[VECS], int at, long long t, int V) {
    if (at >= V) return;
    if constexpr (QUICK) {
      if (sum.template add<NEXT>(rX, near, V - at)) {
        if (lies) sum.rest.sum -= exp2_fast(fmaf(twin, near.factor(twin), -sum.rest.max * NearCap::LOG2E));
        return;
      }
    }
    constexpr int TOGETHER = QUICK ? 1 : VECS <= 4 ? VECS : 2;  // QUICK: the rare way, which must not take the registers of the other
#pragma unroll
    for (int u = 0; u < VECS; u += TOGETHER) {
      float rF[TOGETHER][WIDTH], top = QUICK ? online_start().max : sum.rest.max;
#pragma unroll
      for (int v = 0; v < TOGETHER; ++v) {
        unpack<T>(rF[v], rX[u + v]);
        const int i_v = at + (u + v) * NEXT;
        const unsigned hit = unsigned(t) - i_v;
        if (CAP) cap(rF[v]);
        if (SMOOTH && i_v < V)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) spread += rF[v][k] - level;
        if (i_v >= V || hit < WIDTH)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) rF[v][k] = i_v >= V || unsigned(k) == hit ? online_start().max : rF[v][k];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) top = fmaxf(top, rF[v][k]);
      }
      if constexpr (QUICK) sum.top = fmaxf(sum.top, top), top = fmaxf(sum.rest.max, top);
      const float base = base_of(top);
      sum.rest = {top, sum.rest.sum * exp_fast(sum.rest.max - base)};
#pragma unroll
      for (int v = 0; v < TOGETHER; ++v) {
        float mine = 0.0f;  // of a vector by itself: a long row's sum is a short one of short ones
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) mine += exp_fast(rF[v][k] - base);
        sum.rest.sum += mine;
      }
    }
  }
  ROOFTILE_DEVICE Online settled() const { return sum.settled(cap); }
  // By one thread, of the sums of all.
  ROOFTILE_DEVICE RowLoss loss(const Online& all, float all_spread, float known, int V, float smoothing, float z) const {
    RowLoss r = row_loss(all, CAP ? capped(known, cap.c) : known);
    if (SMOOTH) r.loss -= smoothing * (all_spread / V);
    if (z != 0.0f) r.loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
    return r;
  }
};

}  // namespace rooftile
