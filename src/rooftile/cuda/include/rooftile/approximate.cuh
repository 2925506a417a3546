// Elementary functions in one instruction each, a root in two, to a unit or two in the last place. What exp2_fast, exp_fast and reciprocal make smaller than the
// smallest normal number is 0: exp2f and __expf take three instructions more for what is left of it.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

ROOFTILE_DEVICE float exp2_fast(float x) {
#ifdef ROOFTILE_SIMULATOR
  return x < -126.0f ? 0.0f : exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
ROOFTILE_DEVICE float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }
ROOFTILE_DEVICE float reciprocal(float x) {
#ifdef ROOFTILE_SIMULATOR
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
ROOFTILE_DEVICE float sqrt_fast(float x) {  // the exact one has a branch
#ifdef ROOFTILE_SIMULATOR
  return sqrtf(x);
#else
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace rooftile
