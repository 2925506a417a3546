// Random numbers as cuRAND's device functions give them, but of another sequence: 64 bits of state, mixed. A state is 48 bytes, as XORWOW's is.
#pragma once

struct alignas(8) curandStateXORWOW {
  uint64_t key, counter;
  float other;  // of a pair of normal numbers, the one that is left
  int left;
  uint64_t unused[3];
};
using curandState = curandStateXORWOW;
using curandState_t = curandStateXORWOW;
using curandStateXORWOW_t = curandStateXORWOW;
using curandStatePhilox4_32_10 = curandStateXORWOW;
using curandStatePhilox4_32_10_t = curandStateXORWOW;
using curandStateMRG32k3a = curandStateXORWOW;
using curandStateMRG32k3a_t = curandStateXORWOW;

inline uint64_t rooftile_mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandState* s) {
  s->key = rooftile_mixed(rooftile_mixed(seed) + sequence * 0x9e3779b97f4a7c15u);
  s->counter = offset, s->left = 0;
}
inline unsigned curand(curandState* s) { return unsigned(rooftile_mixed(s->key + 0x9e3779b97f4a7c15u * ++s->counter) >> 32); }
inline float curand_uniform(curandState* s) { return float((curand(s) >> 8) + 1) * 0x1p-24f; }  // above 0, up to 1
inline double curand_uniform_double(curandState* s) {
  uint64_t high = curand(s) >> 5, low = curand(s) >> 6;
  return double((high << 26 | low) + 1) * 0x1p-53;
}
inline float2 curand_normal2(curandState* s) {
  float r = __builtin_sqrtf(-2 * __builtin_logf(curand_uniform(s))), angle = 6.283185307f * curand_uniform(s);
  return {r * __builtin_cosf(angle), r * __builtin_sinf(angle)};
}
inline float curand_normal(curandState* s) {
  if (s->left) return s->left = 0, s->other;
  float2 both = curand_normal2(s);
  s->other = both.y, s->left = 1;
  return both.x;
}
inline double curand_normal_double(curandState* s) {
  return __builtin_sqrt(-2 * __builtin_log(curand_uniform_double(s))) * __builtin_cos(6.283185307179586 * curand_uniform_double(s));
}
inline float curand_log_normal(curandState* s, float mean, float deviation) { return __builtin_expf(mean + deviation * curand_normal(s)); }
inline uint4 curand4(curandState* s) {
  unsigned x = curand(s), y = curand(s), z = curand(s);
  return {x, y, z, curand(s)};
}
inline float4 curand_uniform4(curandState* s) {
  float x = curand_uniform(s), y = curand_uniform(s), z = curand_uniform(s);
  return {x, y, z, curand_uniform(s)};
}
inline float4 curand_normal4(curandState* s) {
  float2 a = curand_normal2(s), b = curand_normal2(s);
  return {a.x, a.y, b.x, b.y};
}
