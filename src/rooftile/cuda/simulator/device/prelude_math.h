// Arithmetic of the CUDA language. Part of prelude.h. The fast intrinsics (__expf, rsqrtf ...) are computed exactly rounded or nearly so:
// the hardware's are off by a few units in the last place more.
#pragma once

// A file that includes standard headers gets theirs, whose overloads ours would collide with; NVRTC takes no such file, a user's has them.
#ifndef ROOFTILE_STANDARD_HEADERS
#define ROOFTILE_UNARY(name)                                    \
  extern "C" double name(double) noexcept;                      \
  extern "C" float name##f(float) noexcept;                     \
  inline float name(float x) noexcept { return name##f(x); }
ROOFTILE_UNARY(exp) ROOFTILE_UNARY(exp2) ROOFTILE_UNARY(expm1) ROOFTILE_UNARY(log) ROOFTILE_UNARY(log2) ROOFTILE_UNARY(log10)
ROOFTILE_UNARY(log1p) ROOFTILE_UNARY(sqrt) ROOFTILE_UNARY(cbrt) ROOFTILE_UNARY(sin) ROOFTILE_UNARY(cos) ROOFTILE_UNARY(tan)
ROOFTILE_UNARY(sinh) ROOFTILE_UNARY(cosh) ROOFTILE_UNARY(tanh) ROOFTILE_UNARY(asin) ROOFTILE_UNARY(acos) ROOFTILE_UNARY(atan)
ROOFTILE_UNARY(erf) ROOFTILE_UNARY(erfc) ROOFTILE_UNARY(floor) ROOFTILE_UNARY(ceil) ROOFTILE_UNARY(trunc) ROOFTILE_UNARY(round)
ROOFTILE_UNARY(rint) ROOFTILE_UNARY(fabs) ROOFTILE_UNARY(asinh) ROOFTILE_UNARY(acosh) ROOFTILE_UNARY(atanh) ROOFTILE_UNARY(lgamma)
ROOFTILE_UNARY(tgamma) ROOFTILE_UNARY(logb) ROOFTILE_UNARY(nearbyint)
#undef ROOFTILE_UNARY
#define ROOFTILE_BINARY(name)                                            \
  extern "C" double name(double, double) noexcept;                       \
  extern "C" float name##f(float, float) noexcept;                       \
  inline float name(float a, float b) noexcept { return name##f(a, b); }
ROOFTILE_BINARY(pow) ROOFTILE_BINARY(fmod) ROOFTILE_BINARY(fmax) ROOFTILE_BINARY(fmin) ROOFTILE_BINARY(atan2) ROOFTILE_BINARY(hypot)
ROOFTILE_BINARY(copysign) ROOFTILE_BINARY(fdim) ROOFTILE_BINARY(remainder) ROOFTILE_BINARY(nextafter)
#undef ROOFTILE_BINARY
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
inline float fma(float a, float b, float c) noexcept { return fmaf(a, b, c); }
#define ROOFTILE_ROUNDED(name, whole)                                \
  extern "C" whole name(double) noexcept;                            \
  extern "C" whole name##f(float) noexcept;
ROOFTILE_ROUNDED(lrint, long) ROOFTILE_ROUNDED(lround, long) ROOFTILE_ROUNDED(llrint, long long) ROOFTILE_ROUNDED(llround, long long)
ROOFTILE_ROUNDED(ilogb, int)
#undef ROOFTILE_ROUNDED
extern "C" double modf(double, double*) noexcept;
extern "C" float modff(float, float*) noexcept;
extern "C" double frexp(double, int*) noexcept;
extern "C" float frexpf(float, int*) noexcept;
extern "C" void sincos(double, double*, double*) noexcept;
extern "C" void sincosf(float, float*, float*) noexcept;
extern "C" int abs(int) noexcept;
inline long long abs(long long a) { return a < 0 ? -a : a; }
inline float abs(float a) { return __builtin_fabsf(a); }
inline double abs(double a) { return __builtin_fabs(a); }
template <class T> inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T> inline bool isinf(T x) { return __builtin_isinf(x) != 0; }
template <class T> inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> inline bool signbit(T x) { return __builtin_signbit(x); }
extern "C" inline float exp10f(float x) noexcept { return float(__builtin_exp10(double(x))); }
#endif

inline float rsqrtf(float x) { return float(1 / __builtin_sqrt(double(x))); }
inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float erfcxf(float x) { return float(__builtin_exp(double(x) * x) * __builtin_erfc(double(x))); }
inline double sinpi(double x) { return __builtin_sin(3.14159265358979323846 * (x - 2 * __builtin_rint(x / 2))); }
inline double cospi(double x) { return __builtin_cos(3.14159265358979323846 * (x - 2 * __builtin_rint(x / 2))); }
inline float sinpif(float x) { return float(sinpi(x)); }
inline float cospif(float x) { return float(cospi(x)); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline double rcbrt(double x) { return 1 / __builtin_cbrt(x); }
inline float rcbrtf(float x) { return float(rcbrt(x)); }
inline float rhypotf(float a, float b) { return float(1 / __builtin_sqrt(double(a) * a + double(b) * b)); }
inline float norm3df(float a, float b, float c) { return float(__builtin_sqrt(double(a) * a + double(b) * b + double(c) * c)); }
inline float rnorm3df(float a, float b, float c) { return float(1 / __builtin_sqrt(double(a) * a + double(b) * b + double(c) * c)); }
inline float normcdff(float x) { return float(0.5 * __builtin_erfc(-double(x) * 0.70710678118654752440)); }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x == x ? x : 0; }
extern "C" inline float __expf(float x) noexcept { return expf(x); }
extern "C" inline float __exp10f(float x) noexcept { return float(__builtin_exp10(double(x))); }
extern "C" inline float __logf(float x) noexcept { return logf(x); }
extern "C" inline float __log2f(float x) noexcept { return log2f(x); }
extern "C" inline float __sinf(float x) noexcept { return sinf(x); }
extern "C" inline float __cosf(float x) noexcept { return cosf(x); }
extern "C" inline float __tanhf(float x) noexcept { return tanhf(x); }
extern "C" inline float __tanf(float x) noexcept { return tanf(x); }
extern "C" inline float __log10f(float x) noexcept { return log10f(x); }
extern "C" inline float __powf(float a, float b) noexcept { return powf(a, b); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frsqrt_rn(float a) { return rsqrtf(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

#define ROOFTILE_MINMAX(type)                                          \
  inline constexpr type min(type a, type b) { return b < a ? b : a; }  \
  inline constexpr type max(type a, type b) { return a < b ? b : a; }
ROOFTILE_MINMAX(int) ROOFTILE_MINMAX(unsigned) ROOFTILE_MINMAX(long) ROOFTILE_MINMAX(unsigned long) ROOFTILE_MINMAX(long long)
ROOFTILE_MINMAX(unsigned long long)
#undef ROOFTILE_MINMAX
inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
#define ROOFTILE_BITS(name, to, from)        \
  inline to name(from x) {                   \
    to y;                                    \
    __builtin_memcpy(&y, &x, sizeof y);      \
    return y;                                \
  }
ROOFTILE_BITS(__float_as_int, int, float)
ROOFTILE_BITS(__int_as_float, float, int)
ROOFTILE_BITS(__float_as_uint, unsigned, float)
ROOFTILE_BITS(__uint_as_float, float, unsigned)
ROOFTILE_BITS(__double_as_longlong, long long, double)
ROOFTILE_BITS(__longlong_as_double, double, long long)
#undef ROOFTILE_BITS
#define ROOFTILE_CONVERT(from, type, to, result)                                          \
  inline result __##from##2##to##_rn(type x) { return (result)__builtin_rint(double(x)); } \
  inline result __##from##2##to##_rz(type x) { return (result)__builtin_trunc(double(x)); } \
  inline result __##from##2##to##_rd(type x) { return (result)__builtin_floor(double(x)); } \
  inline result __##from##2##to##_ru(type x) { return (result)__builtin_ceil(double(x)); }
ROOFTILE_CONVERT(float, float, uint, unsigned) ROOFTILE_CONVERT(float, float, ll, long long) ROOFTILE_CONVERT(float, float, ull, unsigned long long)
ROOFTILE_CONVERT(double, double, int, int) ROOFTILE_CONVERT(double, double, uint, unsigned) ROOFTILE_CONVERT(double, double, ll, long long)
#undef ROOFTILE_CONVERT
inline float __double2float_rn(double x) { return float(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline float __ull2float_rn(unsigned long long x) { return float(x); }
inline double __ll2double_rn(long long x) { return double(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline int __float2int_rn(float x) { return int(__builtin_rintf(x)); }
inline int __float2int_rd(float x) { return int(__builtin_floorf(x)); }
inline int __float2int_ru(float x) { return int(__builtin_ceilf(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __uint2float_rd(unsigned x) { return float(x) > double(x) ? __builtin_nextafterf(float(x), 0) : float(x); }
inline float __uint2float_rz(unsigned x) { return __uint2float_rd(x); }
inline float __int2float_rz(int x) { return __builtin_fabs(double(float(x))) > __builtin_fabs(double(x)) ? __builtin_nextafterf(float(x), 0) : float(x); }
inline float __int2float_rd(int x) { return float(x) > double(x) ? __builtin_nextafterf(float(x), -__builtin_inff()) : float(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
inline unsigned __sad(int a, int b, unsigned c) { return unsigned(a < b ? b - a : a - b) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
  return c;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long y = 0;
  for (int i = 0; i < 64; ++i) y |= (x >> i & 1) << (63 - i);
  return y;
}
inline int __mul24(int a, int b) { return a * b; }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned how) {
  unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned y = 0;
  for (int i = 0; i < 4; ++i) y |= unsigned(both >> (how >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return y;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return unsigned(((unsigned long long)high << 32 | low) >> (by & 31)); }
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)high << 32 | low) << (by < 32 ? by : 32) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)high << 32 | low) >> (by < 32 ? by : 32));
}
inline unsigned __cvta_generic_to_shared(const void* p) { return unsigned((const char*)p - (const char*)rooftile_sim_dynamic()); }
