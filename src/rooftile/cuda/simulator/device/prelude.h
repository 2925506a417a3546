// What a .cu finds when g++ reads it: the CUDA language as macros, its built-in variables, types and functions.
// No standard header is included: this is read for every kernel, and NVRTC offers none either.
#pragma once
#define ROOFTILE_SIMULATOR 1
#ifdef ROOFTILE_STANDARD_HEADERS
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((visibility("hidden")))  // beside which a file may say static
#define __managed__ __attribute__((visibility("hidden")))
#define __launch_bounds__(...)
#define __grid_constant__
#define __maxnreg__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((void)0)
#define __builtin_align__(n) alignas(n)
#ifndef ROOFTILE_STANDARD_HEADERS
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#endif
#define CUDART_INF_F (__builtin_inff())
#define CUDART_NAN_F (__builtin_nanf(""))

using size_t = decltype(sizeof 0);
using ptrdiff_t = decltype((char*)0 - (char*)0);
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef unsigned short ushort;  // as Linux's headers have them, which nvcc reads before every file
typedef unsigned int uint;
typedef unsigned long ulong;

// ---- vector types ----------------------------------------------------------------------------------------------------------
#define ROOFTILE_VECTORS(name, type, align2, align4)                                                        \
  struct name##1 { type x; };                                                                               \
  struct alignas(align2) name##2 { type x, y; };                                                            \
  struct name##3 { type x, y, z; };                                                                         \
  struct alignas(align4) name##4 { type x, y, z, w; };                                                      \
  inline name##1 make_##name##1(type x) { return {x}; }                                                     \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                          \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
ROOFTILE_VECTORS(char, signed char, 2, 4)
ROOFTILE_VECTORS(uchar, unsigned char, 2, 4)
ROOFTILE_VECTORS(short, short, 4, 8)
ROOFTILE_VECTORS(ushort, unsigned short, 4, 8)
ROOFTILE_VECTORS(int, int, 8, 16)
ROOFTILE_VECTORS(uint, unsigned, 8, 16)
ROOFTILE_VECTORS(float, float, 8, 16)
ROOFTILE_VECTORS(longlong, long long, 16, 16)
ROOFTILE_VECTORS(ulonglong, unsigned long long, 16, 16)
ROOFTILE_VECTORS(double, double, 16, 16)
#undef ROOFTILE_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

// ---- the runtime -----------------------------------------------------------------------------------------------------------
extern "C" {
uint3 rooftile_sim_thread() __attribute__((const));
uint3 rooftile_sim_block() __attribute__((const));
uint3 rooftile_sim_block_size() __attribute__((const));
uint3 rooftile_sim_grid_size() __attribute__((const));
unsigned rooftile_sim_lane() __attribute__((const));
void* rooftile_sim_dynamic() __attribute__((const));
void* rooftile_sim_shared(const void* key, const char* name, size_t bytes, size_t align);
int rooftile_sim_barrier(int vote, const char* what);
unsigned rooftile_sim_exchange(unsigned mask, const void* value, unsigned bytes, void* all, const char* what);
uint64_t rooftile_sim_shuffle(unsigned mask, uint64_t value, int how, int by, int width, const char* what);
void rooftile_sim_strong(void* p, unsigned bytes, unsigned how);
void rooftile_sim_access(const void* p, unsigned bytes, unsigned how);
void rooftile_sim_range(const void* p, unsigned bytes, unsigned how);
void rooftile_sim_pause();
void rooftile_sim_not_modelled(const char* what);
void rooftile_sim_grid_sync();
void rooftile_sim_fence();
unsigned rooftile_sim_active();
long long rooftile_sim_clock();
void rooftile_sim_copy_async(void* to, const void* from, unsigned bytes, unsigned zeros);
void rooftile_sim_copy_commit();
void rooftile_sim_copy_wait(unsigned left);
void rooftile_sim_mbarrier_init(void* bar, unsigned count);
void rooftile_sim_mbarrier_fence();
void rooftile_sim_mbarrier_arrive(void* bar, unsigned bytes);
void rooftile_sim_mbarrier_expect(void* bar, unsigned bytes);
void rooftile_sim_mbarrier_wait(void* bar, unsigned parity);
int rooftile_sim_mbarrier_test(void* bar, unsigned parity);
unsigned rooftile_sim_cluster_rank();
void rooftile_sim_cluster_arrive();
void rooftile_sim_cluster_wait();
void rooftile_sim_store_cluster(void* to, unsigned rank, const void* value, unsigned bytes);
void rooftile_sim_store_async(void* to, unsigned rank, const void* value, unsigned bytes, void* bar);
void rooftile_sim_named_barrier(unsigned id, unsigned threads, int wait);
void rooftile_sim_fence_async(int global);
void rooftile_sim_bulk_load(void* to, const void* from, unsigned bytes, void* bar);
void rooftile_sim_bulk_store(void* to, const void* from, unsigned bytes, int add);
void rooftile_sim_tensor_load(void* to, const void* map, void* bar, unsigned rank, const int* at);
void rooftile_sim_tensor_store(const void* map, const void* from, unsigned rank, const int* at);
void rooftile_sim_bulk_commit();
void rooftile_sim_bulk_wait(unsigned left, int read_only);
unsigned rooftile_sim_shared_address(const void* p);
void rooftile_sim_wgmma(const void* what, float* d, const unsigned* a);
void rooftile_sim_wgmma_fence();
void rooftile_sim_wgmma_commit();
void rooftile_sim_wgmma_wait(unsigned left);
int printf(const char*, ...);
}
#define ROOFTILE_SILENT __attribute__((no_sanitize("thread"), noinline))  // its own accesses are announced to the runtime by hand

#define threadIdx (::rooftile_sim_thread())
#define blockIdx (::rooftile_sim_block())
#define blockDim (::rooftile_sim_block_size())
#define gridDim (::rooftile_sim_grid_size())
constexpr int warpSize = 32;

inline __attribute__((always_inline)) void __syncthreads() { rooftile_sim_barrier(0, "__syncthreads"); }
inline __attribute__((always_inline)) int __syncthreads_count(int p) { return rooftile_sim_barrier(p, "__syncthreads_count"); }
inline __attribute__((always_inline)) int __syncthreads_or(int p) { return rooftile_sim_barrier(p, "__syncthreads_or") != 0; }
inline __attribute__((always_inline)) int __syncthreads_and(int p) { return rooftile_sim_barrier(!p, "__syncthreads_and") == 0; }
inline __attribute__((always_inline)) void __threadfence() { rooftile_sim_fence(); }
inline __attribute__((always_inline)) void __threadfence_block() { rooftile_sim_fence(); }
inline __attribute__((always_inline)) void __threadfence_system() { rooftile_sim_fence(); }
inline __attribute__((always_inline)) void __nanosleep(unsigned) { rooftile_sim_pause(); }
inline __attribute__((always_inline)) void rooftile_ptx(const char* instruction) { rooftile_sim_not_modelled(instruction); }
template <class... A> inline __attribute__((always_inline)) void rooftile_launch(A&&...) { rooftile_sim_not_modelled("a launch from a kernel"); }
inline unsigned __activemask() { return rooftile_sim_active(); }
#ifndef ROOFTILE_STANDARD_HEADERS
typedef long clock_t;
inline long clock() { return rooftile_sim_clock(); }
#endif
inline long long clock64() { return rooftile_sim_clock(); }
inline __attribute__((noreturn)) void __trap() { __builtin_trap(); }
#define assert(condition) ((condition) ? (void)0 : __trap())
extern "C" inline __attribute__((noreturn)) void __assert_fail(const char*, const char*, unsigned, const char*) noexcept { __builtin_trap(); }

// ---- warps -----------------------------------------------------------------------------------------------------------------
template <class T> inline __attribute__((always_inline)) T rooftile_shuffle(unsigned mask, T value, int how, int by, int width, const char* what) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = rooftile_sim_shuffle(mask, bits, how, by, width, what);
  __builtin_memcpy((void*)&value, &bits, sizeof(T));
  return value;
}
#define ROOFTILE_SHUFFLE(name, how)                                                                                   \
  template <class T> inline __attribute__((always_inline)) T name(unsigned mask, T value, int by, int width = 32) {   \
    return rooftile_shuffle(mask, value, how, by, width, #name);                                                      \
  }
ROOFTILE_SHUFFLE(__shfl_sync, 0)
ROOFTILE_SHUFFLE(__shfl_up_sync, 1)
ROOFTILE_SHUFFLE(__shfl_down_sync, 2)
ROOFTILE_SHUFFLE(__shfl_xor_sync, 3)
#undef ROOFTILE_SHUFFLE

inline __attribute__((always_inline)) void __syncwarp(unsigned mask = ~0u) {
  char nothing = 0, all[32];
  rooftile_sim_exchange(mask, &nothing, 1, all, "__syncwarp");
}
inline __attribute__((always_inline)) unsigned rooftile_vote(unsigned mask, int p, const char* what) {
  char mine = p != 0, all[32];
  unsigned lanes = rooftile_sim_exchange(mask, &mine, 1, all, what), set = 0;
  for (int l = 0; l < 32; ++l) set |= unsigned(lanes >> l & 1 && all[l]) << l;
  return set;
}
inline __attribute__((always_inline)) unsigned __ballot_sync(unsigned mask, int p) { return rooftile_vote(mask, p, "__ballot_sync"); }
inline __attribute__((always_inline)) int __any_sync(unsigned mask, int p) { return rooftile_vote(mask, p, "__any_sync") != 0; }
inline __attribute__((always_inline)) int __all_sync(unsigned mask, int p) { return rooftile_vote(mask, !p, "__all_sync") == 0; }
template <class T> inline __attribute__((always_inline)) unsigned __match_any_sync(unsigned mask, T value) {
  T all[32];
  unsigned lanes = rooftile_sim_exchange(mask, &value, sizeof(T), all, "__match_any_sync"), same = 0;
  for (int l = 0; l < 32; ++l) same |= unsigned(lanes >> l & 1 && !__builtin_memcmp(&all[l], &value, sizeof(T))) << l;
  return same;
}
template <class T> inline __attribute__((always_inline)) unsigned __match_all_sync(unsigned mask, T value, int* all_same) {
  T all[32];
  unsigned lanes = rooftile_sim_exchange(mask, &value, sizeof(T), all, "__match_all_sync");
  *all_same = 1;
  for (int l = 0; l < 32; ++l) *all_same &= !(lanes >> l & 1) || !__builtin_memcmp(&all[l], &value, sizeof(T));
  return *all_same ? mask : 0;
}
#define ROOFTILE_REDUCE(name, type, combined)                                                    \
  inline __attribute__((always_inline)) type name(unsigned mask, type value) {                   \
    type all[32];                                                                                \
    unsigned lanes = rooftile_sim_exchange(mask, &value, sizeof value, all, #name);              \
    bool first = true;                                                                           \
    for (int l = 0; l < 32; ++l)                                                                 \
      if (lanes >> l & 1) {                                                                      \
        type a = value, b = all[l];                                                              \
        value = first ? b : type(combined);                                                      \
        first = false;                                                                           \
      }                                                                                          \
    return value;                                                                                \
  }
ROOFTILE_REDUCE(__reduce_add_sync, unsigned, a + b)
ROOFTILE_REDUCE(__reduce_add_sync, int, unsigned(a) + unsigned(b))
ROOFTILE_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
ROOFTILE_REDUCE(__reduce_min_sync, int, a < b ? a : b)
ROOFTILE_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
ROOFTILE_REDUCE(__reduce_max_sync, int, a > b ? a : b)
ROOFTILE_REDUCE(__reduce_and_sync, unsigned, a & b)
ROOFTILE_REDUCE(__reduce_or_sync, unsigned, a | b)
ROOFTILE_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef ROOFTILE_REDUCE

#include "prelude_memory.h"
//
#include "prelude_math.h"
//
#include "prelude_host.h"
