// The two floats of 8 bits. Conversions are an instruction for two elements from sm_89 on; before that, and in the simulator, a dozen
// integer operations an element with the same bits: to nearest, ties to even, saturating, and a NaN stays one.
#pragma once
#include <cuda_fp16.h>

#include "rooftile/check.cuh"

namespace rooftile {

struct E4M3 {  // up to 448, no infinity
  unsigned char bits;
};
struct E5M2 {  // up to 57344
  unsigned char bits;
};

template <typename Q> struct Float8;
template <> struct Float8<E4M3> {
  static constexpr int mantissa = 3, bias = 7;
  static constexpr float largest = 448.0f, normal = 0x1p-6f, magic = 0x1p14f;  // magic: its last bit is the smallest subnormal
};
template <> struct Float8<E5M2> {
  static constexpr int mantissa = 2, bias = 15;
  static constexpr float largest = 57344.0f, normal = 0x1p-14f, magic = 0x1p7f;
};

template <typename Q> ROOFTILE_DEVICE unsigned narrow_by_hand(float x) {
  using F = Float8<Q>;
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
  if (x != x) return sign | 0x7fu;
  const float a = fminf(fabsf(x), F::largest);
  if (a < F::normal) return sign | (__float_as_uint(__fadd_rn(a, F::magic)) - __float_as_uint(F::magic));
  constexpr int cut = 23 - F::mantissa;
  const unsigned u = __float_as_uint(a);
  return sign | (((u + (1u << (cut - 1)) - 1 + (u >> cut & 1)) >> cut) - ((127 - F::bias) << F::mantissa));
}
template <typename Q> ROOFTILE_DEVICE float widen_by_hand(unsigned q) {
  using F = Float8<Q>;
  const unsigned sign = (q & 0x80u) << 24, a = q & 0x7fu;
  if (F::mantissa == 3 && a == 0x7f) return __int_as_float(0x7fffffff);
  if (F::mantissa == 2 && a >= 0x7c) return __uint_as_float(sign | (a == 0x7c ? 0x7f800000u : 0x7fffffffu));
  constexpr float scale = F::mantissa == 3 ? 0x1p120f : 0x1p112f;  // the exponents' biases apart: right for subnormals too
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(a << (23 - F::mantissa)) * scale));
}

// Two neighbours, the first in the low byte.
template <typename Q> ROOFTILE_DEVICE unsigned narrow(float a, float b) {
#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 890
  unsigned short both;
  if constexpr (Float8<Q>::mantissa == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  }
  return both;
#else
  return narrow_by_hand<Q>(a) | narrow_by_hand<Q>(b) << 8;
#endif
}
// Four of them in one word: of two pairs the upper halves would be cleared first.
template <typename Q> ROOFTILE_DEVICE unsigned narrow_four(float a, float b, float c, float d) {
#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 890
  unsigned all;
  if constexpr (Float8<Q>::mantissa == 3) {
    asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
        : "=r"(all)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  } else {
    asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\ncvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
        : "=r"(all)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  }
  return all;
#else
  return narrow<Q>(a, b) | narrow<Q>(c, d) << 16;
#endif
}
template <typename Q> ROOFTILE_DEVICE float2 widen(unsigned both) {
#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 890
  unsigned halves;  // which hold every one of them
  if constexpr (Float8<Q>::mantissa == 3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)both));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)both));
  }
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
#else
  return {widen_by_hand<Q>(both & 0xffu), widen_by_hand<Q>(both >> 8 & 0xffu)};
#endif
}

}  // namespace rooftile
