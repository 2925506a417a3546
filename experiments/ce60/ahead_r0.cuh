// A row's loss and its gradient in one pass: what becomes of its vectors of 16 bytes, on their way in and on their way out.
#pragma once
#include "capped_r0.cuh"
#include "rooftile/cross_entropy.cuh"

namespace rooftile {

// On the way in. The target's logit is kept out of the sums.
template <typename T, bool SMOOTH, bool CAP> struct Taken {
  static constexpr int WIDTH = 16 / sizeof(T);
  static constexpr bool QUICK = CAP && !SMOOTH && sizeof(T) == 2;
  const SoftCap cap;
  const unsigned t;
  const float known, level;  // the target's logit, and what others are measured from
  float spread = 0.0f;
  RunningSum<T, QUICK> sum;
  bool near = QUICK;  // what this thread has taken lies within half the cap, and the target is not in it

  ROOFTILE_DEVICE Taken(const T* gRow, long long t, float softcap)
      : cap(softcap), t(unsigned(t)), known(CAP ? capped(float(gRow[t]), softcap) : float(gRow[t])), level(finite(known) ? known : 0.0f) {}

  ROOFTILE_DEVICE Online settled() const { return sum.settled(cap); }
  // Four at a time where that is quicker, from the `first` on every `each`-th before `end`. The first that is left.
  ROOFTILE_DEVICE int fours(const uint4* x, int first, int end, int each) {
    int i = first;
    if constexpr (QUICK)
      for (; i + 3 * each < end; i += 4 * each) {
        uint4 rX[4] = {x[i], x[i + each], x[i + 2 * each], x[i + 3 * each]};
        if (!quickly(rX, i, each))
#pragma unroll
          for (int v = 0; v < 4; ++v) one(rX[v], i + v * each);
      }
    return i;
  }
  ROOFTILE_DEVICE void operator()(const uint4& r, int i) {
    if constexpr (QUICK) {
      uint4 rX[1] = {r};
      if (quickly(rX, i, 0)) return;
    }
    one(r, i);
  }

private:
  template <int VECS> ROOFTILE_DEVICE bool quickly(uint4 (&rX)[VECS], int i, int each) {
    bool lies = false;
#pragma unroll
    for (int v = 0; v < VECS; ++v) lies |= t - (i + v * each) * WIDTH < WIDTH;
    const bool done = sum.template add<1>(rX, NearCap(cap), VECS, lies, [&](int v) { return t - (i + v * each) * WIDTH; });
    near &= done;
    return done;
  }
  ROOFTILE_DEVICE void one(const uint4& r, int i) {
    float rF[WIDTH], top = QUICK ? online_start().max : sum.rest.max, mine = 0.0f;
    unpack<T>(rF, r);
    if (CAP) cap(rF);
    if (SMOOTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) spread += rF[k] - level;
    const unsigned hit = t - i * WIDTH;
    if (hit < WIDTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = unsigned(k) == hit ? online_start().max : rF[k];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) top = fmaxf(top, rF[k]);
    if constexpr (QUICK) sum.top = fmaxf(sum.top, top), top = fmaxf(sum.rest.max, top);
    const float base = base_of(top);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) mine += exp_fast(rF[k] - base);
    sum.rest = {top, sum.rest.sum * exp_fast(sum.rest.max - base) + mine};
  }
};

// On the way out, the i-th vector of a row of V classes as its gradient.
template <typename T, bool CAP> struct Given {
  const RowGradient gradient;
  ROOFTILE_DEVICE Given(const RowLoss& r, int V, float smoothing, float z) : gradient(r.peak, r.logsum, r.miss, V, smoothing, z, 1.0f) {}
  template <bool SMOOTH> ROOFTILE_DEVICE void operator()(uint4* gVec, uint4 rX, int i, const Taken<T, SMOOTH, CAP>& taken) const {
    if (Taken<T, SMOOTH, CAP>::QUICK && taken.near && taken.t - i * (16 / sizeof(T)) >= 16 / sizeof(T))
      give_near<T>(rX, gradient, NearCap(taken.cap));
    else
      gradient.template operator()<T, CAP>(rX, taken.t - i * (16 / sizeof(T)), taken.cap);
    __stwb(gVec + i, rX);
  }
};

// Of a row that does not count, its vectors from `first` on, every `each`-th.
template <typename T> ROOFTILE_DEVICE void give_nothing(uint4* gVec, float value, int first, int vectors, int each) {
  constexpr int WIDTH = 16 / sizeof(T);
  float rF[WIDTH];
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) rF[k] = value;
  uint4 r;
  pack<T>(r, rF);
  for (int i = first; i < vectors; i += each) gVec[i] = r;
}

// The loss with what smoothing and z add to it; spread: the sum of the logits less the target's.
ROOFTILE_DEVICE float whole_loss(const RowLoss& r, float spread, int V, float smoothing, float z) {
  float loss = r.loss - (smoothing != 0.0f ? smoothing * (spread / V) : 0.0f);
  if (z != 0.0f) loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
  return loss;
}

}  // namespace rooftile
