// What the kernels of a norm of a sum ask of the branch that is added to the residual: what is done to it, and to the residual's gradient to make
// its own.
#pragma once
#include "rooftile/philox.cuh"

namespace rooftile {

// It is added as it is; one gradient for both.
struct Plain {
  static constexpr bool DROPS = false;
  ROOFTILE_DEVICE Plain(const void*, unsigned long long, float) {}
  ROOFTILE_DEVICE float operator()(float x, long long) const { return x; }
  template <int N> ROOFTILE_DEVICE void operator()(float (&)[N], long long) const {}
};

// Some of it is dropped, and the same of its gradient.
struct Dropped : Dropout {
  static constexpr bool DROPS = true;
  ROOFTILE_DEVICE Dropped(const void* gSeed, unsigned long long threshold, float scale)
      : Dropout{*static_cast<const unsigned long long*>(gSeed), threshold, scale} {}
};

}  // namespace rooftile
