// Words that blocks wait for: written with release, read with acquire. What was written before the one is seen after the other.
// Relaxed: words that bring all there is to know themselves, and order nothing else; they cost no fence.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

#ifdef ROOFTILE_SIMULATOR
template <typename T> ROOFTILE_DEVICE T load_acquire(const T* g) {
  T value = *const_cast<const volatile T*>(g);
  __threadfence();
  return value;
}
template <typename T> ROOFTILE_DEVICE void store_release(T* g, T value) {
  __threadfence();
  *const_cast<volatile T*>(g) = value;
}
template <typename T> ROOFTILE_DEVICE T load_relaxed(const T* g) { return *const_cast<const volatile T*>(g); }
template <typename T> ROOFTILE_DEVICE void store_relaxed(T* g, T value) { *const_cast<volatile T*>(g) = value; }
// Between two looks at a word that is not there yet.
ROOFTILE_DEVICE void spin_pause() { rooftile_sim_pause(); }
#else
ROOFTILE_DEVICE unsigned load_acquire(const unsigned* g) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(g) : "memory");
  return value;
}
ROOFTILE_DEVICE int load_acquire(const int* g) { return int(load_acquire(reinterpret_cast<const unsigned*>(g))); }
ROOFTILE_DEVICE unsigned long long load_acquire(const unsigned long long* g) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(g) : "memory");
  return value;
}
ROOFTILE_DEVICE void store_release(unsigned* g, unsigned value) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(g), "r"(value) : "memory"); }
ROOFTILE_DEVICE void store_release(int* g, int value) { store_release(reinterpret_cast<unsigned*>(g), unsigned(value)); }
ROOFTILE_DEVICE void store_release(unsigned long long* g, unsigned long long value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(g), "l"(value) : "memory");
}
ROOFTILE_DEVICE unsigned long long load_relaxed(const unsigned long long* g) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(g) : "memory");
  return value;
}
ROOFTILE_DEVICE void store_relaxed(unsigned long long* g, unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(g), "l"(value) : "memory");
}
ROOFTILE_DEVICE void spin_pause() { __nanosleep(20); }
#endif

}  // namespace rooftile
