// Activations with their slopes, in float. One exponential and one reciprocal each.
#pragma once
#include "rooftile/rows.cuh"

namespace rooftile {

struct Point {  // of a curve: its value and its slope
  float y, d;
};

// 1 / (1 + exp(-x)). A denominator that overflowed gives 0.
ROOFTILE_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp2_fast(-1.4426950408889634f * x)); }

struct Silu {
  static ROOFTILE_DEVICE float value(float x) { return x * sigmoid(x); }
  static ROOFTILE_DEVICE Point point(float x) {
    const float s = sigmoid(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  }
};

struct Relu {  // a NaN stays one
  static ROOFTILE_DEVICE float value(float x) { return x <= 0.0f ? 0.0f : x; }
  static ROOFTILE_DEVICE Point point(float x) { return {value(x), x <= 0.0f ? 0.0f : 1.0f}; }
};

struct GeluTanh {  // 0.5 (1 + tanh z) = sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3)
  static ROOFTILE_DEVICE float gate(float x) { return sigmoid(1.5957691216057308f * x * (1.0f + 0.044715f * x * x)); }
  static ROOFTILE_DEVICE float value(float x) { return x * gate(x); }
  static ROOFTILE_DEVICE Point point(float x) {
    const float s = gate(x);
    return {x * s, s + x * s * (1.0f - s) * 1.5957691216057308f * (1.0f + 0.134145f * x * x)};
  }
};

// Phi(-|x|) is exp(-x^2/2) times a polynomial in t = 1 / (1 + c |x|), fitted to erfcx with a relative error of 1.2e-7: half the
// instructions of erff, and the left tail keeps its digits, which 1 + erf(x) cancels.
struct Gelu {
  static ROOFTILE_DEVICE float bell(float x) { return exp2_fast(-0.7213475204444817f * x * x); }
  static ROOFTILE_DEVICE float phi(float x, float bell) {
    const float t = reciprocal(1.0f + 0.30405593f * fabsf(x));
    float p = 0.036265437f * t - 0.15280125f;
    p = p * t + 0.18785577f;
    p = p * t - 0.03928613f;
    p = p * t + 0.12158278f;
    p = p * t + 0.103017375f;
    p = p * t + 0.122103326f;
    p = p * t + 0.121262655f;
    const float tail = p * t * bell;
    return x < 0.0f ? tail : 1.0f - tail;
  }
  static ROOFTILE_DEVICE float value(float x) { return x * phi(x, bell(x)); }
  static ROOFTILE_DEVICE Point point(float x) {
    const float b = bell(x), p = phi(x, b);
    return {x * p, p + 0.3989422804014327f * x * b};
  }
};

}  // namespace rooftile
