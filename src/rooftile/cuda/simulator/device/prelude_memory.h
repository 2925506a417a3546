// Atomics, cache hints and copies of the CUDA language. Part of prelude.h.
#pragma once

// Threads run one at a time, so a plain read-modify-write is atomic; the runtime is told. One that changes nothing may be a loop that waits,
// so the others go first.
template <class T, class F> inline __attribute__((always_inline)) T rooftile_rmw(T* p, F combine, unsigned how = 7) {
  rooftile_sim_strong(p, sizeof(T), how);
  struct Silent {
    static ROOFTILE_SILENT T get(T* p) { return *p; }
    static ROOFTILE_SILENT void set(T* p, T v) { *p = v; }
  };
  T old = Silent::get(p), next = combine(old);
  Silent::set(p, next);
  if (!__builtin_memcmp(&old, &next, sizeof(T))) rooftile_sim_pause();
  return old;
}
template <class T> struct rooftile_same { using type = T; };
#define ROOFTILE_ATOMIC(name, result)                                                                                          \
  template <class T> inline __attribute__((always_inline)) T name(T* p, typename rooftile_same<T>::type v) {                   \
    return rooftile_rmw(p, [&](T old) { return T(result); });                                                                  \
  }                                                                                                                            \
  template <class T> inline __attribute__((always_inline)) T name##_block(T* p, typename rooftile_same<T>::type v) { return name(p, v); } \
  template <class T> inline __attribute__((always_inline)) T name##_system(T* p, typename rooftile_same<T>::type v) { return name(p, v); }
ROOFTILE_ATOMIC(atomicAdd, old + v)
ROOFTILE_ATOMIC(atomicSub, old - v)
ROOFTILE_ATOMIC(atomicMax, old < v ? v : old)
ROOFTILE_ATOMIC(atomicMin, v < old ? v : old)
ROOFTILE_ATOMIC(atomicAnd, old & v)
ROOFTILE_ATOMIC(atomicOr, old | v)
ROOFTILE_ATOMIC(atomicXor, old ^ v)
ROOFTILE_ATOMIC(atomicExch, v)
ROOFTILE_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
ROOFTILE_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
#undef ROOFTILE_ATOMIC
template <class T>
inline __attribute__((always_inline)) T atomicCAS(T* p, typename rooftile_same<T>::type compare, typename rooftile_same<T>::type v) {
  return rooftile_rmw(p, [&](T old) { return old == compare ? v : old; }, 7 | 32);
}
template <class T>
inline __attribute__((always_inline)) T atomicCAS_block(T* p, typename rooftile_same<T>::type compare, typename rooftile_same<T>::type v) {
  return atomicCAS(p, compare, v);
}
template <class T>
inline __attribute__((always_inline)) T atomicCAS_system(T* p, typename rooftile_same<T>::type compare, typename rooftile_same<T>::type v) {
  return atomicCAS(p, compare, v);
}

#define ROOFTILE_LOAD(name) \
  template <class T> inline __attribute__((always_inline)) T name(const T* p) { return *p; }
ROOFTILE_LOAD(__ldg)
ROOFTILE_LOAD(__ldcg)
ROOFTILE_LOAD(__ldca)
ROOFTILE_LOAD(__ldcs)
ROOFTILE_LOAD(__ldlu)
ROOFTILE_LOAD(__ldcv)
#undef ROOFTILE_LOAD
#define ROOFTILE_STORE(name) \
  template <class T> inline __attribute__((always_inline)) void name(T* p, typename rooftile_same<T>::type v) { *p = v; }
ROOFTILE_STORE(__stcg)
ROOFTILE_STORE(__stcs)
ROOFTILE_STORE(__stwb)
ROOFTILE_STORE(__stwt)
#undef ROOFTILE_STORE

// Between locals these are free; what lies in a buffer is checked as the bytes it is.
inline __attribute__((always_inline)) void* rooftile_memcpy(void* to, const void* from, size_t n) {
  if (n) rooftile_sim_range(from, n, 0), rooftile_sim_range(to, n, 1);
  return __builtin_memcpy(to, from, n);
}
inline __attribute__((always_inline)) void* rooftile_memset(void* to, int value, size_t n) {
  if (n) rooftile_sim_range(to, n, 1);
  return __builtin_memset(to, value, n);
}
#define memcpy rooftile_memcpy
#define memset rooftile_memset
