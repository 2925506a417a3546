// adds: one thread asks for whole stages of a row, by the copy engine: the others' instructions are those of the sums
// costs: a stage is waited for by all and given back by all, on barriers; Hopper and later
// loses when: a row is shorter than a stage, or there are fewer rows than blocks that fit
#include "rooftile/cross_entropy.cuh"
// A thread's part of a row that comes in stages: VECS vectors of 16 bytes each, NEXT elements apart, into a running maximum and sum.
// Soft caps of vectors of 16-bit logits that all lie within half the cap and 32, as a cap of 30 leaves nearly all of them: a look at two at a time says so, sums
// are measured from the farthest that they may lie, so that nobody looks for the largest, and log2 e is in the polynomial, as the base is.

namespace rooftile {

template <typename T> struct Halves {
  using type = __half2;
};
template <> struct Halves<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

struct NearCap {
  static constexpr float LOG2E = 1.4426950408889634f;
  float limit, most, unit, q0, q1, q2;  // most: what a logit at the limit is capped to. unit: of c tanh(x / c) log2 e, a cap
  // c tanh(x / c) = x + x^3 q(x^2), right to 2e-7 of a cap: the spacing of 16 bits is a thousand times that where x is largest.
  ROOFTILE_DEVICE explicit NearCap(const SoftCap& cap)
      : limit(fminf(cap.limit, 32.0f)), most(cap.near(limit)), unit(cap.inverse * 0.6931471805599453f), q0(-0.3332646082f * LOG2E * (cap.inverse * cap.inverse)),
        q1(0.1318586228f * LOG2E * (cap.inverse * cap.inverse) * (cap.inverse * cap.inverse)),
        q2(-0.04422929661f * LOG2E * (cap.inverse * cap.inverse) * (cap.inverse * cap.inverse) * (cap.inverse * cap.inverse)) {}
  // c tanh(x / c) log2 e is x times this.
  ROOFTILE_DEVICE float factor(float x) const {
    const float w = x * x;
    return fmaf(w, fmaf(w, fmaf(w, q2, q1), q0), LOG2E);
  }
  // Whether all lie near enough. A NaN is passed over, and comes through the polynomial.
  template <typename T, int VECS> ROOFTILE_DEVICE bool holds(const uint4 (&rX)[VECS]) const {
    using Two = typename Halves<T>::type;
    Two most = reinterpret_cast<const Two&>(rX[0].x), least = most;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const unsigned words[4] = {rX[v].x, rX[v].y, rX[v].z, rX[v].w};
#pragma unroll
      for (const unsigned& word : words) most = __hmax2(most, reinterpret_cast<const Two&>(word)), least = __hmin2(least, reinterpret_cast<const Two&>(word));
    }
    most = __hmax2(most, __hneg2(least));
    return fmaxf(float(most.x), float(most.y)) <= limit;
  }
};

// Adds exp of all of them to a running sum, if they lie near enough. Vectors are NEXT elements apart, of a row that has `rest` from the first on: those beyond it
// are the first again, and not added.
template <typename T, int NEXT, int VECS> ROOFTILE_DEVICE bool add_near(Online& rS, uint4 (&rX)[VECS], const NearCap& near, int rest = VECS * NEXT) {
  if ((VECS - 1) * NEXT >= rest)
#pragma unroll
    for (int v = 1; v < VECS; ++v)
      if (v * NEXT >= rest) rX[v] = rX[0];
  if (!near.holds<T>(rX)) return false;
  if (rS.max < near.most) rS = {near.most, rS.sum * exp_fast(rS.max - near.most)};
  const float b = rS.max * NearCap::LOG2E;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    float rF[16 / sizeof(T)], sum = 0.0f;
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (float x : rF) sum += exp2_fast(fmaf(x, near.factor(x), -b));
    if (v * NEXT < rest) rS.sum += sum;
  }
  return true;
}

// A sum that was measured from beyond the target's logit, from there: a small loss keeps its digits.
ROOFTILE_DEVICE Online from_target(const Online& rest, float known) {
  const float lead = rest.max - known;
  return lead > 0.0f && lead < 80.0f ? Online{known, rest.sum * exp_fast(lead)} : rest;
}

// A row's gradient without smoothing in place of a vector of its logits that lie near enough, not the target. For 16 bits exp needs no lse in two parts.
template <typename T> ROOFTILE_DEVICE void give_near(uint4& r, const RowGradient& row, const NearCap& near) {
  const float b = (row.peak + row.logsum) * NearCap::LOG2E, bend = near.unit * near.unit * row.factor;  // of the slope, 1 - tanh^2
  float rF[16 / sizeof(T)];
  unpack<T>(rF, r);
#pragma unroll
  for (float& x : rF) {
    const float y = x * near.factor(x);
    x = exp2_fast(y - b) * fmaf(-y * y, bend, row.factor);
  }
  pack<T>(r, rF);
}

}  // namespace rooftile

namespace rooftile {

template <typename T, int VECS, int NEXT, bool SMOOTH, bool CAP> struct Summed {
  static constexpr int WIDTH = 16 / sizeof(T);
  static constexpr bool QUICK = CAP && !SMOOTH && sizeof(T) == 2;
  static_assert(((VECS - 1) & VECS) == 0 && ((NEXT - 1) & NEXT) == 0, "a target is looked for by bits");
  const SoftCap cap;
  const NearCap near;
  Online rest;  // without the target
  float spread, level;  // with smoothing: the sum of what logits lie beyond the target's, where that is finite
  ROOFTILE_DEVICE explicit Summed(float softcap) : cap(softcap), near(cap) {}

  // A row whose target's logit is `known` as it is stored; wanted at the row's end, unless smoothing wants it now.
  ROOFTILE_DEVICE void begin(float known) {
    rest = online_start(), spread = level = 0.0f;
    if (SMOOTH) {
      const float x = CAP ? capped(known, cap.c) : known;
      level = finite(x) ? x : 0.0f;
    }
  }
  // The vectors that lie from `at` on in a row of V with the target t.
  ROOFTILE_DEVICE void operator()(uint4 (&rX)[VECS], int at, long long t, int V) {
    if (at >= V) return;
    if constexpr (QUICK) {
      const unsigned to_target = unsigned(t) - at;  // in one of the vectors where only bits that say which are beyond WIDTH
      if ((to_target & ~((VECS - 1u) * NEXT)) >= WIDTH && add_near<T, NEXT>(rest, rX, near, V - at)) return;
    }
    constexpr int TOGETHER = QUICK ? 1 : VECS;  // it is the rare way then, and must not take the registers of the other
#pragma unroll
    for (int u = 0; u < VECS; u += TOGETHER) {
      float rF[TOGETHER][WIDTH], top = rest.max;
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
          for (int k = 0; k < WIDTH; ++k) rF[v][k] = i_v >= V || unsigned(k) == hit ? -__int_as_float(0x7f800000) : rF[v][k];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) top = fmaxf(top, rF[v][k]);
      }
      const float base = base_of(top);
      rest = {top, rest.sum * exp_fast(rest.max - base)};
#pragma unroll
      for (int v = 0; v < TOGETHER; ++v) {
        float sum = 0.0f;  // of a vector by itself: a long row's sum is a short one of short ones
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += exp_fast(rF[v][k] - base);
        rest.sum += sum;
      }
    }
  }
  // By one thread, of the sums of all.
  ROOFTILE_DEVICE RowLoss loss(const Online& sums, float all_spread, float known, int V, float smoothing, float z) const {
    if (CAP) known = capped(known, cap.c);
    RowLoss r = row_loss(QUICK ? from_target(sums, known) : sums, known);
    if (SMOOTH) r.loss -= smoothing * (all_spread / V);
    if (z != 0.0f) r.loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
    return r;
  }
};

}  // namespace rooftile
#include "rooftile/pipeline.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

template <typename T, int VECS, int STAGES, int THREADS, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(THREADS, (VECS > 4 ? 768 : 1024) / THREADS)
    cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget, long long M,
                  int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  constexpr int NEXT = THREADS * (16 / sizeof(T)), STEP = VECS * NEXT;  // elements to a thread's next vector, to its next stage
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Pipeline<STAGES> sRing;
  __shared__ Online sPartial[2][WARP];
  __shared__ float sSpread[2][WARP];
  Summed<T, VECS, NEXT, SMOOTH, CAP> sum(softcap);
  const int i_l = threadIdx.x * (16 / sizeof(T));
  const uint4* sMine = sX + threadIdx.x;
  const bool asks = threadIdx.x == 0;
  if (none && blockIdx.x == 0 && asks) *gCount = 1.0f;
  if (asks) pipeline_init(sRing, 1, THREADS / WARP);
  __syncthreads();
  // Copies run ahead of the sums, into the next rows. Which of them are read is known a row before they are asked for.
  const auto target = [&](long long i) { return i < M ? __ldg(gTarget + i) : ignore; };
  long long i_next = blockIdx.x, after = target(i_next + gridDim.x);
  int from = 0;
  Stage<STAGES> filled, used;
  const auto turn = [&]() {
    bool read;
    do {
      i_next += gridDim.x, from = 0;
      read = is_class(after, ignore, V);
      after = target(i_next + gridDim.x);
    } while (i_next < M && !read);
  };
  const auto fetch = [&]() {
    if (i_next >= M) return;
    const int bytes = min(STEP, V - from) * int(sizeof(T));
    producer_acquire(sRing, filled, bytes);
    bulk_load(sX + filled.index * (VECS * THREADS), gX + i_next * stride_x + from, bytes, &sRing.full[filled.index]);
    ++filled, from += STEP;
    if (from >= V) turn();
  };
  if (asks) {
    if (!is_class(target(i_next), ignore, V)) turn();
#pragma unroll 1
    for (int s = 1; s < STAGES; ++s) fetch();
  }
  int parity = 0;
  for (long long i_m = blockIdx.x; i_m < M; i_m += gridDim.x) {
    const long long t = target(i_m);
    if (!is_class(t, ignore, V)) {
      if (asks) save(gLoss, gPeak, gLogsum, gMiss, i_m, no_loss(t, ignore));
      continue;
    }
    const float known = gX[i_m * stride_x + t];
    sum.begin(known);
#pragma unroll 1
    for (int at = i_l; at - i_l < V; at += STEP, ++used) {
      if (asks) fetch();  // into the stage that all have read, or are about to have
      uint4 rX[VECS];
      consumer_wait(sRing, used);
#pragma unroll
      for (int v = 0; v < VECS; ++v) rX[v] = sMine[used.index * (VECS * THREADS) + v * THREADS];
      consumer_release(sRing, used);
      sum(rX, at, t, V);
    }
    const Online all = row_reduce<THREADS>(sum.rest, Combine(), sPartial, parity);
    const float spread = SMOOTH ? row_reduce<THREADS>(sum.spread, Sum(), sSpread, parity) : 0.0f;
    parity ^= 1;
    if (asks) save(gLoss, gPeak, gLogsum, gMiss, i_m, sum.loss(all, spread, known, V, smoothing, z));
  }
}
