// Soft caps of vectors of 16-bit logits that all lie within half the cap, as a cap of 30 leaves nearly all of them: the largest is found two at a time before
// they are capped, which leaves their order, and log2 e is in the polynomial, so that an exponential's argument is one multiply-add more.
#pragma once
#include "rooftile/cross_entropy.cuh"

namespace rooftile {

template <typename T> struct Halves {
  using type = __half2;
};
template <> struct Halves<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

struct NearCap {
  static constexpr float LOG2E = 1.4426950408889634f;
  float limit, unit, q0, q1, q2, q3;  // unit: of c tanh(x / c) log2 e, a cap
  ROOFTILE_DEVICE explicit NearCap(const SoftCap& cap)
      : limit(cap.limit), unit(cap.inverse * 0.6931471805599453f), q0(cap.q0 * LOG2E), q1(cap.q1 * LOG2E), q2(cap.q2 * LOG2E), q3(cap.q3 * LOG2E) {}
  // c tanh(x / c) log2 e is x times this.
  ROOFTILE_DEVICE float factor(float x) const {
    const float w = x * x;
    return fmaf(w, fmaf(w, fmaf(w, fmaf(w, q3, q2), q1), q0), LOG2E);
  }
  // Whether all lie near enough, and the largest. A NaN is passed over, and comes through the polynomial.
  template <typename T, int VECS> ROOFTILE_DEVICE bool holds(const uint4 (&rX)[VECS], float& top) const {
    using Two = typename Halves<T>::type;
    Two most = reinterpret_cast<const Two&>(rX[0].x), least = most;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const unsigned words[4] = {rX[v].x, rX[v].y, rX[v].z, rX[v].w};
#pragma unroll
      for (const unsigned& word : words) most = __hmax2(most, reinterpret_cast<const Two&>(word)), least = __hmin2(least, reinterpret_cast<const Two&>(word));
    }
    top = fmaxf(float(most.x), float(most.y));
    return fmaxf(top, -fminf(float(least.x), float(least.y))) <= limit;
  }
};

// Adds exp of all of them to a running sum, if they lie near enough. Vectors are NEXT elements apart, of a row that has `rest` from the first on: those beyond it
// are the first again, and not added.
template <typename T, int NEXT, int VECS> ROOFTILE_DEVICE bool add_near(Online& rS, uint4 (&rX)[VECS], const SoftCap& cap, int rest = VECS * NEXT) {
  const NearCap near(cap);
  float top;
  if ((VECS - 1) * NEXT >= rest)
#pragma unroll
    for (int v = 1; v < VECS; ++v)
      if (v * NEXT >= rest) rX[v] = rX[0];
  if (!near.holds<T>(rX, top)) return false;
  const float base = fmaxf(rS.max, cap.near(top)), b = base * NearCap::LOG2E;
  rS = {base, rS.sum * exp_fast(rS.max - base)};
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
