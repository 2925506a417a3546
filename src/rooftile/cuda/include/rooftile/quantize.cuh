// What rungs of quantisation share: the scale of a block out of its largest element, and elements to 8 bits. Every rounding is the
// reference's: products and sums that must not become one instruction are __fmul_rn and __fadd_rn.
#pragma once
#include "rooftile/float8.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

template <typename Q> struct Narrow {
  static constexpr float largest = Float8<Q>::largest;
};
template <> struct Narrow<signed char> {
  static constexpr float largest = 127.0f;
};

constexpr float HUGEST = 3.40282347e38f, TINIEST = 1.17549435e-38f;

// Infinity counts as the largest float32; fmaxf has passed NaN over. A power of two is rounded up to by carrying into the exponent.
ROOFTILE_DEVICE float at_least_tiny(float scale) { return fmaxf(scale, TINIEST); }
template <typename Q> ROOFTILE_DEVICE float scale_of(float amax, bool power) {
  const float scale = at_least_tiny(__fmul_rn(fminf(amax, HUGEST), float(1.0 / double(Narrow<Q>::largest))));
  return power ? __uint_as_float((__float_as_uint(scale) + 0x7fffffu) & 0x7f800000u) : scale;
}
// __fdiv_rn(1, scale) without its way out for quotients that are no normal numbers: a scale lies between TINIEST and HUGEST / 100.
ROOFTILE_DEVICE float inverse_of(float scale) {
#ifdef ROOFTILE_SIMULATOR
  return __fdiv_rn(1.0f, scale);
#else
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(scale));
  r = __fmaf_rn(r, __fmaf_rn(-scale, r, 1.0f), r);
  return __fmaf_rn(r, __fmaf_rn(-scale, r, 1.0f), r);
#endif
}
ROOFTILE_DEVICE float affine_scale(float low, float high) {
  return at_least_tiny(__fmul_rn(__fsub_rn(__fmul_rn(0.5f, high), __fmul_rn(0.5f, low)), float(2.0 / 255.0)));
}
ROOFTILE_DEVICE float affine_zero(float low, float inverse) { return fminf(fmaxf(rintf(__fsub_rn(-128.0f, __fmul_rn(low, inverse))), -128.0f), 127.0f); }

// x + 1.5 2^23 has in its low bits the nearest whole number to |x| < 2^22, ties to even, in two's complement.
constexpr float MAGIC = 12582912.0f;
ROOFTILE_DEVICE float within(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

// How elements become bytes: times the inverse of their scale, to nearest.
template <typename Q> struct Symmetric {
  float inverse;
  ROOFTILE_DEVICE unsigned pair(float a, float b) const { return narrow<Q>(__fmul_rn(a, inverse), __fmul_rn(b, inverse)); }
  ROOFTILE_DEVICE unsigned four(const float (&rF)[4]) const {
    return narrow_four<Q>(__fmul_rn(rF[0], inverse), __fmul_rn(rF[1], inverse), __fmul_rn(rF[2], inverse), __fmul_rn(rF[3], inverse));
  }
};
template <> struct Symmetric<signed char> {
  float inverse;
  ROOFTILE_DEVICE unsigned one(float x) const {
    x = __fmul_rn(x, inverse);
    return __float_as_uint(__fadd_rn(x == x ? within(x, -127.0f, 127.0f) : 0.0f, MAGIC));
  }
  ROOFTILE_DEVICE unsigned pair(float a, float b) const { return __byte_perm(one(a), one(b), 0x0040); }
  ROOFTILE_DEVICE unsigned four(const float (&rF)[4]) const { return __byte_perm(pair(rF[0], rF[1]), pair(rF[2], rF[3]), 0x5410); }
};
struct Affine {  // and then so many whole steps on: beyond +-512 the sum is out of range whatever they are
  float inverse, shift;
  ROOFTILE_DEVICE Affine(float inverse, float zero) : inverse(inverse), shift(zero - MAGIC) {}
  ROOFTILE_DEVICE unsigned one(float x) const {
    x = __fmul_rn(x, inverse);
    x = __fadd_rn(__fadd_rn(x == x ? within(x, -512.0f, 512.0f) : 0.0f, MAGIC), shift);
    return __float_as_uint(__fadd_rn(within(x, -128.0f, 127.0f), MAGIC));
  }
  ROOFTILE_DEVICE unsigned pair(float a, float b) const { return __byte_perm(one(a), one(b), 0x0040); }
  ROOFTILE_DEVICE unsigned four(const float (&rF)[4]) const { return __byte_perm(pair(rF[0], rF[1]), pair(rF[2], rF[3]), 0x5410); }
};

// WIDTH elements as the 4 or 8 bytes they become, and one.
template <int WIDTH> using Bytes = typename Raw<WIDTH>::type;
template <typename How> ROOFTILE_DEVICE unsigned quantized(const float (&rF)[4], const How& how) {
  return how.four(rF);
}
template <typename How> ROOFTILE_DEVICE uint2 quantized(const float (&rF)[8], const How& how) {
  const float rA[4] = {rF[0], rF[1], rF[2], rF[3]}, rB[4] = {rF[4], rF[5], rF[6], rF[7]};
  return {quantized(rA, how), quantized(rB, how)};
}
template <typename Q, typename How> ROOFTILE_DEVICE void put_one(Q* gOut, float x, const How& how) {
  *reinterpret_cast<unsigned char*>(gOut) = (unsigned char)how.pair(x, 0.0f);
}

template <int WIDTH> ROOFTILE_DEVICE float largest_of(float amax, const float (&rF)[WIDTH]) {
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) amax = fmaxf(amax, fabsf(rF[k]));
  return amax;
}

// RMSNorm to the last bit: squares of 4 neighbours are added in float, these sums in double, where their order does not show. EXACT: of numbers of
// 16 bits, whose squares have 22 at most, so that one instruction for a product and a sum rounds no less often; but for squares below 2^-126, which
// an eps of 1e-20 hides.
template <bool EXACT> ROOFTILE_DEVICE double four_squares(float a, float b, float c, float d) {
  if (EXACT) return double(__fadd_rn(__fmaf_rn(b, b, __fmul_rn(a, a)), __fmaf_rn(d, d, __fmul_rn(c, c))));
  return double(__fadd_rn(__fadd_rn(__fmul_rn(a, a), __fmul_rn(b, b)), __fadd_rn(__fmul_rn(c, c), __fmul_rn(d, d))));
}
ROOFTILE_DEVICE float inverse_root(double sum, float inverse_n, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(float(sum), inverse_n), eps)));
}

// And back: WIDTH bytes as floats.
template <typename Q> ROOFTILE_DEVICE float2 opened(unsigned both) { return widen<Q>(both); }
template <> ROOFTILE_DEVICE float2 opened<signed char>(unsigned both) {
  return {float((signed char)(both & 0xffu)), float((signed char)(both >> 8 & 0xffu))};
}
template <typename Q> ROOFTILE_DEVICE void dequantized(float (&rF)[4], unsigned r) {
  const float2 a = opened<Q>(r), b = opened<Q>(r >> 16);
  rF[0] = a.x, rF[1] = a.y, rF[2] = b.x, rF[3] = b.y;
}
template <typename Q> ROOFTILE_DEVICE void dequantized(float (&rF)[8], const uint2& r) {
  float rA[4], rB[4];
  dequantized<Q>(rA, r.x), dequantized<Q>(rB, r.y);
#pragma unroll
  for (int k = 0; k < 4; ++k) rF[k] = rA[k], rF[k + 4] = rB[k];
}

}  // namespace rooftile
