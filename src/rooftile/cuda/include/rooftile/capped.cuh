// Soft caps of vectors of 16-bit logits of which none lies beyond the cap, nor beyond 32: they are looked at two at a time before they are capped, which leaves their
// order, their exponentials are measured from beyond all of them, log2 e is in the polynomial, as the base is, and that has as many terms as the farthest one wants.
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
  float quarter, half, limit, inverse2;
  ROOFTILE_DEVICE explicit NearCap(const SoftCap& cap)
      : quarter(0.5f * cap.limit), half(cap.limit), limit(fminf(2.0f * cap.limit, 32.0f)), inverse2(cap.inverse * cap.inverse) {}
  // How far the farthest lies, and the larger ones. NaNs are passed over, and come through the polynomial; of nothing else it is NaN.
  template <typename T, int VECS> ROOFTILE_DEVICE float farthest(const uint4 (&rX)[VECS], typename Halves<T>::type& most) const {
    using Two = typename Halves<T>::type;
    Two least = most = reinterpret_cast<const Two&>(rX[0].x);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const unsigned words[4] = {rX[v].x, rX[v].y, rX[v].z, rX[v].w};
#pragma unroll
      for (const unsigned& word : words) most = __hmax2(most, reinterpret_cast<const Two&>(word)), least = __hmin2(least, reinterpret_cast<const Two&>(word));
    }
    const Two far = __hmax2(most, __hneg2(least));
    return fmaxf(float(far.x), float(far.y));
  }
};

// c tanh(x / c) log2 e is x times a polynomial of x^2: of N terms after the first it is right to 2e-7 of a cap within a quarter of it (2), half (3), all of it (6).
// The spacing of 16 bits is a thousand times that where x is largest.
template <int N> struct Bent {
  static constexpr bool KEPT = N <= 3;  // more of them would take more registers than a multiplication more for each element
  float scale, q[N];
  ROOFTILE_DEVICE explicit Bent(const NearCap& near) : scale(KEPT ? 1.0f : near.inverse2) {
    float unit = NearCap::LOG2E;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (KEPT) unit *= near.inverse2;
      q[n] = term(n) * unit;
    }
  }
  ROOFTILE_DEVICE float factor(float x) const {
    const float w = KEPT ? x * x : x * x * scale;
    float sum = q[N - 1];
#pragma unroll
    for (int n = N - 2; n >= 0; --n) sum = fmaf(w, sum, q[n]);
    return fmaf(w, sum, NearCap::LOG2E);
  }

private:
  static ROOFTILE_DEVICE float term(int n) {
    static_assert(N == 2 || N == 3 || N == 6, "terms within a quarter, half, all of a cap");
    if constexpr (N == 2) return n == 0 ? -0.3332291488f : 0.1284604029f;
    if constexpr (N == 3) return n == 0 ? -0.3332646075f : n == 1 ? 0.1318586139f : -0.04422926844f;
    return n == 0 ? -0.3333275342f : n == 1 ? 0.1332373893f : n == 2 ? -0.05339196822f : n == 3 ? 0.0201659023f : n == 4 ? -0.006095513175f : 0.001005906202f;
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
  float reach = 0.0f;                       // how far the farthest lay that was looked at

  // Adds all of them, if they are wanted and lie near enough; several by a whole warp, as many terms as its farthest wants, or nothing if one lies too far or is
  // not to be added: it goes the other way then, and the rest beside it for nothing more. Vectors are NEXT elements apart, of a row that has `there` from the first
  // on, maybe none: those beyond it are the first again, and taken off again.
  template <int NEXT, int VECS> ROOFTILE_DEVICE bool add(const uint4 (&rX)[VECS], const NearCap& near, bool wanted, int there = VECS * NEXT) {
    Two most;
    const float far = near.farthest<T>(rX, most);
    reach = fmaxf(reach, far);
    const bool none = there <= 0;
    bool all = none || (wanted && far <= near.limit), half = none || far <= near.half, close = none || far <= near.quarter;
    if constexpr (VECS > 1) all = __all_sync(ALL_LANES, all), half = __all_sync(ALL_LANES, half), close = __all_sync(ALL_LANES, close);
    if (!all || none) return all;
    most = __hmax2(most, reinterpret_cast<const Two&>(near_top)), near_top = reinterpret_cast<const unsigned&>(most);
    if (rest.max < near.limit) rest = {near.limit, rest.sum * exp_fast(rest.max - near.limit)};
    rest.sum += close ? total<NEXT, 2>(rX, near, there) : half ? total<NEXT, 3>(rX, near, there) : total<NEXT, 6>(rX, near, there);
    return true;
  }
  // Takes off one that was added and should not have been.
  ROOFTILE_DEVICE void take_off(float x, const SoftCap& cap) { rest.sum -= exp_fast(capped(x, cap.c) - base_of(rest.max)); }
  // Measured from the largest that came.
  ROOFTILE_DEVICE Online settled(const SoftCap& cap) const {
    const float2 two = Word<T>::open(near_top);
    const float near = fmaxf(two.x, two.y), peak = near >= -cap.c ? fmaxf(top, capped(near, cap.c)) : top;
    return rest.max == peak ? rest : Online{peak, rest.sum * exp_fast(rest.max - peak)};
  }

private:
  template <int NEXT, int N, int VECS> ROOFTILE_DEVICE float total(const uint4 (&rX)[VECS], const NearCap& near, int there) const {
    const Bent<N> bent(near);
    const float b = rest.max * NearCap::LOG2E;
    float all, first;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rF[8], sum;
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float e = exp2_fast(fmaf(rF[k], bent.factor(rF[k]), -b));
        sum = k == 0 ? e : sum + e;
      }
      all = v == 0 ? first = sum : all + sum;  // a long row's sum is a short one of short ones
    }
    if ((VECS - 1) * NEXT >= there) all -= float(VECS - ceil_div(there, NEXT)) * first;
    return all;
  }
};

// A row's gradient without smoothing in place of a vector of its logits that lie near enough for N terms, not the target. For 16 bits exp needs no lse in two parts.
template <typename T, int N> ROOFTILE_DEVICE void give_near(uint4& r, const RowGradient& row, const NearCap& near) {
  constexpr float LN2 = 0.6931471805599453f;
  const Bent<N> bent(near);
  const float b = (row.peak + row.logsum) * NearCap::LOG2E, bend = near.inverse2 * (LN2 * LN2) * row.factor;  // of the slope, 1 - tanh^2
  float rF[16 / sizeof(T)];
  unpack<T>(rF, r);
#pragma unroll
  for (float& x : rF) {
    const float y = x * bent.factor(x);
    x = exp2_fast(y - b) * fmaf(-y * y, bend, row.factor);
  }
  pack<T>(r, rF);
}

}  // namespace rooftile
