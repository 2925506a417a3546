// The two 16-bit floating types of CUDA, written once as a macro. Conversions round to nearest even; arithmetic is done in float (fma in
// double) and rounded once, which is what the hardware's results are.
#pragma once

// float -> 16 bits
inline uint16_t rooftile_to_bfloat16(float f) {
  uint32_t u = __float_as_uint(f);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float rooftile_from_bfloat16(uint16_t h) { return __uint_as_float(uint32_t(h) << 16); }
inline uint16_t rooftile_to_half(float f) {
  uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return 0x7fff;
  if (a >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and more round to infinity
  if (a < 0x38800000) {                                 // below 2^-14: a multiple of 2^-24, and adding 0.5 leaves just those bits
    float shifted = __uint_as_float(a) + 0.5f;
    return uint16_t(sign | (__float_as_uint(shifted) - 0x3f000000));
  }
  return uint16_t(sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13));
}
inline float rooftile_from_half(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
  if (e == 31) return __uint_as_float(sign | 0x7f800000 | m << 13);
  if (e == 0) return __uint_as_float(sign | __float_as_uint(float(m) * 0x1p-24f));
  return __uint_as_float(sign | (e + 112) << 23 | m << 13);
}
// To odd: the second rounding, to 16 bits, then is the only one that counts.
inline float rooftile_to_odd(double d) {
  float f = float(d);
  if (double(f) == d || d != d) return f;
  uint32_t u = __float_as_uint(f);
  if (__builtin_fabs(double(f)) > __builtin_fabs(d)) --u;
  return __uint_as_float(u | 1);
}

#define ROOFTILE_SMALL(H, H2, name, to, from)                                                                             \
  struct alignas(2) H##_raw { uint16_t x; };                                                                              \
  struct alignas(2) H {                                                                                                   \
    uint16_t bits;                                                                                                        \
    H() = default;                                                                                                        \
    H(float f) : bits(to(f)) {}                                                                                           \
    H(double d) : bits(to(rooftile_to_odd(d))) {}                                                                         \
    H(int i) : bits(to(rooftile_to_odd(i))) {}                                                                            \
    H(unsigned i) : bits(to(rooftile_to_odd(i))) {}                                                                       \
    H(long long i) : bits(to(rooftile_to_odd(double(i)))) {}                                                              \
    H(unsigned long long i) : bits(to(rooftile_to_odd(double(i)))) {}                                                     \
    H(H##_raw r) : bits(r.x) {}                                                                                           \
    operator float() const { return from(bits); }                                                                         \
    H& operator+=(H b);                                                                                                   \
    H& operator-=(H b);                                                                                                   \
    H& operator*=(H b);                                                                                                   \
    H& operator/=(H b);                                                                                                   \
  };                                                                                                                      \
  struct alignas(4) H2 {                                                                                                  \
    H x, y;                                                                                                               \
    H2() = default;                                                                                                       \
    H2(H x, H y) : x(x), y(y) {}                                                                                          \
  };                                                                                                                      \
  inline float __##name##2float(H a) { return float(a); }                                                                 \
  inline H __float2##name(float f) { return H(f); }                                                                       \
  inline H __float2##name##_rn(float f) { return H(f); }                                                                  \
  inline H __double2##name(double d) { return H(d); }                                                                     \
  inline H __int2##name##_rn(int i) { return H(i); }                                                                      \
  inline H __float2##name##_rz(float f) { return H(H##_raw{uint16_t(float(H(f)) == f || f != f || __builtin_fabsf(float(H(f))) < __builtin_fabsf(f) ? H(f).bits : H(f).bits - 1)}); } \
  inline int __##name##2int_rn(H a) { return __float2int_rn(float(a)); }                                                  \
  inline int __##name##2int_rz(H a) { return int(float(a)); }                                                             \
  inline H2 __float2##name##2_rn(float f) { return H2(H(f), H(f)); }                                                      \
  inline H2 __floats2##name##2_rn(float a, float b) { return H2(H(a), H(b)); }                                            \
  inline H2 __float22##name##2_rn(float2 f) { return H2(H(f.x), H(f.y)); }                                                \
  inline float2 __##name##22float2(H2 a) { return {float(a.x), float(a.y)}; }                                             \
  inline H2 __##name##2##name##2(H a) { return H2(a, a); }                                                                \
  inline H2 __halves2##name##2(H a, H b) { return H2(a, b); }                                                             \
  inline H __low2##name(H2 a) { return a.x; }                                                                             \
  inline H __high2##name(H2 a) { return a.y; }                                                                            \
  inline H2 __low2##name##2(H2 a) { return H2(a.x, a.x); }                                                                \
  inline H2 __high2##name##2(H2 a) { return H2(a.y, a.y); }                                                               \
  inline H2 __lowhigh2highlow(H2 a) { return H2(a.y, a.x); }                                                              \
  inline float __low2float(H2 a) { return float(a.x); }                                                                   \
  inline float __high2float(H2 a) { return float(a.y); }                                                                  \
  inline H2 make_##name##2(H a, H b) { return H2(a, b); }                                                                 \
  inline unsigned short __##name##_as_ushort(H a) { return a.bits; }                                                      \
  inline H __ushort_as_##name(unsigned short u) { return H(H##_raw{u}); }                                                 \
  ROOFTILE_SMALL_BINARY(H, H2, add, +)                                                                                    \
  ROOFTILE_SMALL_BINARY(H, H2, sub, -)                                                                                    \
  ROOFTILE_SMALL_BINARY(H, H2, mul, *)                                                                                    \
  ROOFTILE_SMALL_BINARY(H, H2, div, /)                                                                                    \
  inline H operator-(H a) { return H(H##_raw{uint16_t(a.bits ^ 0x8000)}); }                                               \
  inline H2 operator-(H2 a) { return H2(-a.x, -a.y); }                                                                    \
  inline H __hneg(H a) { return -a; }                                                                                     \
  inline H2 __hneg2(H2 a) { return -a; }                                                                                  \
  inline H __habs(H a) { return H(H##_raw{uint16_t(a.bits & 0x7fff)}); }                                                  \
  inline H2 __habs2(H2 a) { return H2(__habs(a.x), __habs(a.y)); }                                                        \
  inline H __hfma(H a, H b, H c) { return H(double(float(a)) * double(float(b)) + double(float(c))); }                    \
  inline H2 __hfma2(H2 a, H2 b, H2 c) { return H2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }                        \
  inline H __hmax(H a, H b) { return H(fmaxf(float(a), float(b))); }                                                      \
  inline H __hmin(H a, H b) { return H(fminf(float(a), float(b))); }                                                      \
  inline H __hmax_nan(H a, H b) { return __builtin_isnan(float(a)) ? a : __builtin_isnan(float(b)) ? b : __hmax(a, b); }                                \
  inline H2 __hmax2(H2 a, H2 b) { return H2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }                                        \
  inline H2 __hmin2(H2 a, H2 b) { return H2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }                                        \
  inline bool __hisnan(H a) { return __builtin_isnan(float(a)); }                                                         \
  inline int __hisinf(H a) { return __builtin_isinf_sign(float(a)); }                                                     \
  ROOFTILE_SMALL_COMPARE(H, __heq, ==)                                                                                    \
  ROOFTILE_SMALL_COMPARE(H, __hne, !=)                                                                                    \
  ROOFTILE_SMALL_COMPARE(H, __hlt, <)                                                                                     \
  ROOFTILE_SMALL_COMPARE(H, __hle, <=)                                                                                    \
  ROOFTILE_SMALL_COMPARE(H, __hgt, >)                                                                                     \
  ROOFTILE_SMALL_COMPARE(H, __hge, >=)                                                                                    \
  ROOFTILE_SMALL_UNARY(H, H2, exp, expf(x))                                                                               \
  ROOFTILE_SMALL_UNARY(H, H2, exp2, exp2f(x))                                                                             \
  ROOFTILE_SMALL_UNARY(H, H2, log, logf(x))                                                                               \
  ROOFTILE_SMALL_UNARY(H, H2, log2, log2f(x))                                                                             \
  ROOFTILE_SMALL_UNARY(H, H2, sqrt, sqrtf(x))                                                                             \
  ROOFTILE_SMALL_UNARY(H, H2, rsqrt, rsqrtf(x))                                                                           \
  ROOFTILE_SMALL_UNARY(H, H2, rcp, 1 / x)                                                                                 \
  ROOFTILE_SMALL_UNARY(H, H2, sin, sinf(x))                                                                               \
  ROOFTILE_SMALL_UNARY(H, H2, cos, cosf(x))                                                                               \
  ROOFTILE_SMALL_UNARY(H, H2, tanh, tanhf(x))                                                                             \
  ROOFTILE_SMALL_UNARY(H, H2, floor, floorf(x))                                                                           \
  ROOFTILE_SMALL_UNARY(H, H2, ceil, ceilf(x))                                                                             \
  ROOFTILE_SMALL_UNARY(H, H2, rint, rintf(x))

#define ROOFTILE_SMALL_BINARY(H, H2, word, sign)                                                \
  inline H operator sign(H a, H b) { return H(float(a) sign float(b)); }                        \
  inline H& H::operator sign##=(H b) { return *this = *this sign b; }                           \
  inline H2 operator sign(H2 a, H2 b) { return H2(a.x sign b.x, a.y sign b.y); }                \
  inline H2& operator sign##=(H2& a, H2 b) { return a = a sign b; }                             \
  inline H __h##word(H a, H b) { return a sign b; }                                             \
  inline H __h##word##_rn(H a, H b) { return a sign b; }                                        \
  inline H2 __h##word##2(H2 a, H2 b) { return a sign b; }                                       \
  inline H2 __h##word##2_rn(H2 a, H2 b) { return a sign b; }
#define ROOFTILE_SMALL_COMPARE(H, name, sign)                             \
  inline bool operator sign(H a, H b) { return float(a) sign float(b); }  \
  inline bool name(H a, H b) { return a sign b; }
#define ROOFTILE_SMALL_UNARY(H, H2, name, result)                         \
  inline H h##name(H a) {                                                 \
    float x = float(a);                                                   \
    return H(float(result));                                              \
  }                                                                       \
  inline H2 h2##name(H2 a) { return H2(h##name(a.x), h##name(a.y)); }
