// Soft caps of vectors of 16-bit logits that all lie within half the cap and 32, as a cap of 30 leaves nearly all of them: they are looked at two at a time before
// they are capped, which leaves their order, their exponentials are measured from the farthest that they may lie, and log2 e is in the polynomial, as the base is.
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
  // Whether all lie near enough, and the larger ones. A NaN is passed over, and comes through the polynomial.
  template <typename T, int VECS> ROOFTILE_DEVICE bool holds(const uint4 (&rX)[VECS], typename Halves<T>::type& most) const {
    using Two = typename Halves<T>::type;
    Two least = most = reinterpret_cast<const Two&>(rX[0].x);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const unsigned words[4] = {rX[v].x, rX[v].y, rX[v].z, rX[v].w};
#pragma unroll
      for (const unsigned& word : words) most = __hmax2(most, reinterpret_cast<const Two&>(word)), least = __hmin2(least, reinterpret_cast<const Two&>(word));
    }
    const Two far = __hmax2(most, __hneg2(least));
    return fmaxf(float(far.x), float(far.y)) <= limit;
  }
};

// A running maximum and sum of exponentials.
template <typename T, bool NEAR> struct RunningSum {
  Online rest = online_start();
  ROOFTILE_DEVICE const Online& settled(const SoftCap&) const { return rest; }
};
// Of logits that lie near, and of others. It is measured from `rest.max`, which may be beyond all that came.
template <typename T> struct RunningSum<T, true> {
  using Two = typename Halves<T>::type;
  Online rest = online_start();
  float top = -__int_as_float(0x7f800000);  // of the others, capped
  unsigned near_top = Word<T>::LOWEST;      // of those near, two, as they are stored

  // Adds all of them, if they lie near enough. Vectors are NEXT elements apart, of a row that has `there` from the first on: those beyond it are the first again,
  // and taken off again.
  template <int NEXT, int VECS> ROOFTILE_DEVICE bool add(const uint4 (&rX)[VECS], const NearCap& near, int there = VECS * NEXT) {
    Two most;
    if (!near.holds<T>(rX, most)) return false;
    most = __hmax2(most, reinterpret_cast<const Two&>(near_top)), near_top = reinterpret_cast<const unsigned&>(most);
    if (rest.max < near.most) rest = {near.most, rest.sum * exp_fast(rest.max - near.most)};
    const float b = rest.max * NearCap::LOG2E;
    float all, first;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rF[8], sum;
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float e = exp2_fast(fmaf(rF[k], near.factor(rF[k]), -b));
        sum = k == 0 ? e : sum + e;
      }
      all = v == 0 ? first = sum : all + sum;  // a long row's sum is a short one of short ones
    }
    if ((VECS - 1) * NEXT >= there) all -= float(VECS - ceil_div(there, NEXT)) * first;
    rest.sum += all;
    return true;
  }
  // Measured from the largest that came.
  ROOFTILE_DEVICE Online settled(const SoftCap& cap) const {
    const float2 two = Word<T>::open(near_top);
    const float near = fmaxf(two.x, two.y), peak = near >= -cap.limit ? fmaxf(top, cap.near(near)) : top;
    return rest.max == peak ? rest : Online{peak, rest.sum * exp_fast(rest.max - peak)};
  }
};

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
