// What rungs of cross entropy share: a row's results out of its sums, and soft caps. The sum of exponentials is kept without the target's.
#pragma once
#include "rooftile/rows.cuh"

namespace rooftile {

ROOFTILE_DEVICE bool finite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }

// No logit beyond +-c.
ROOFTILE_DEVICE float capped(float x, float c) { return c * tanhf(x / c); }

// A class number that is read: not padding, and one there is.
ROOFTILE_DEVICE bool is_class(long long t, long long ignore, int V) { return t != ignore && t >= 0 && t < V; }

struct RowLoss {
  float loss, peak, logsum, miss;
};

// From the other classes' maximum and sum of exp(x - base_of(maximum)), and the target's logit: loss, maximum, log of the sum, 1 - p.
ROOFTILE_DEVICE RowLoss row_loss(Online rest, float known) {
  const float peak = fmaxf(rest.max, known), at_peak = rest.sum * exp_fast(rest.max - peak);
  const float total = at_peak + exp_fast(known - peak), logsum = logf(total);
  const bool strange = known != known || (rest.sum != rest.sum && rest.max != __int_as_float(0x7f800000));  // a NaN: maxima pass it over
  const float nan = __int_as_float(0x7fffffff);
  const float behind = peak - known;  // of a target of infinity it is NaN, as the loss is, not 0
  return {behind == 0.0f ? log1pf(at_peak) : behind + logsum, strange ? nan : peak, logsum, at_peak / total};
}

// 0 where the row does not count, NaN where its target is no class.
ROOFTILE_DEVICE RowLoss no_loss(long long t, long long ignore) {
  const float value = t == ignore ? 0.0f : __int_as_float(0x7fffffff);
  return {value, value, value, value};
}

ROOFTILE_DEVICE void save(float* gLoss, float* gPeak, float* gLogsum, float* gMiss, long long i_m, const RowLoss& r) {
  gLoss[i_m] = r.loss, gPeak[i_m] = r.peak, gLogsum[i_m] = r.logsum, gMiss[i_m] = r.miss;
}

// Soft caps of whole vectors. Where all of a vector lies within c / 2, as logits that a cap of 30 leaves alone do, c tanh(x / c) is
// x + x^3 q(x^2): 6 instructions an element, right to 1e-7, where tanhf is some 20. The cap's powers are in q's coefficients, so caps
// beyond 1e4 and below 1e-4, of which they would overflow, take the long way always.
struct SoftCap {
  float c, inverse, limit, q0, q1, q2, q3;
  ROOFTILE_DEVICE explicit SoftCap(float cap) {
    const float r = 1.0f / cap, r2 = r * r;
    c = cap, inverse = r, limit = cap > 1e-4f && cap < 1e4f ? 0.5f * cap : -1.0f;
    q0 = -0.333333105f * r2, q1 = 0.133305132f * r2 * r2, q2 = -0.0533910543f * r2 * r2 * r2, q3 = 0.0179992188f * r2 * r2 * (r2 * r2);
  }
  template <int N> ROOFTILE_DEVICE bool within(const float (&rF)[N]) const {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) most = fmaxf(most, fabsf(rF[k]));  // a NaN is passed over, and comes through the polynomial
    return most <= limit;
  }
  ROOFTILE_DEVICE float near(float x) const {
    const float w = x * x;
    return fmaf(x * w, fmaf(w, fmaf(w, fmaf(w, q3, q2), q1), q0), x);
  }
  template <int N> ROOFTILE_DEVICE void operator()(float (&rF)[N]) const {
    if (within(rF)) {
#pragma unroll
      for (int k = 0; k < N; ++k) rF[k] = near(rF[k]);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) rF[k] = c * tanhf(rF[k] * inverse);
    }
  }
  // The same with the slope 1 - tanh^2, which would cancel where the cap bites: there it is 4 e / (1 + e)^2, e = exp(-2 |x| / c).
  template <int N> ROOFTILE_DEVICE void operator()(float (&rF)[N], float (&rSlope)[N]) const {
    if (within(rF)) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        rF[k] = near(rF[k]);
        const float t = rF[k] * inverse;
        rSlope[k] = fmaf(-t, t, 1.0f);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float e = exp_fast(-2.0f * fabsf(rF[k] * inverse)), u = 1.0f + e;
        rSlope[k] = 4.0f * e / (u * u);
        rF[k] = c * tanhf(rF[k] * inverse);
      }
    }
  }
};

// A row's gradient: of a class factor p - less, with p = exp(x - lse) and factor = (1 + 2 z lse) scale; of the target in its place
// (k (1 - miss) - 1 + s - s / V) scale with k = 1 + 2 z lse, which does not cancel where p is near 1.
struct RowGradient {
  float peak, logsum, factor, less, of_target;
  ROOFTILE_DEVICE RowGradient(float peak, float logsum, float miss, int V, float smoothing, float z, float scale) : peak(peak), logsum(logsum) {
    const float lse2 = z != 0.0f ? 2.0f * z * (peak + logsum) : 0.0f, share = smoothing / V;
    factor = (1.0f + lse2) * scale, less = share * scale;
    of_target = (smoothing - miss - share + lse2 * (1.0f - miss)) * scale;
  }
  // In place of a vector of logits, of which the target is the one at `hit`, if it is there.
  template <typename T, bool CAP> ROOFTILE_DEVICE void operator()(uint4& r, unsigned hit, const SoftCap& cap) const {
    constexpr int WIDTH = 16 / sizeof(T);
    float rF[WIDTH], rSlope[WIDTH];
    unpack<T>(rF, r);
    if constexpr (CAP) cap(rF, rSlope);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = exp_fast((rF[k] - peak) - logsum) * factor - less;
    if (hit < WIDTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = unsigned(k) == hit ? of_target : rF[k];
    if constexpr (CAP)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] *= rSlope[k];
    pack<T>(r, rF);
  }
};

}  // namespace rooftile
