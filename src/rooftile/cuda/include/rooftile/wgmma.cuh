// Hopper's tensor cores, four warps at a time (a warpgroup: 128 threads from a multiple of 128): D[64,N] += A[64,K] B[K,N], float sums.
// K is 32 bytes: 16 of __half or __nv_bfloat16, 32 of E4M3. B is read from shared memory, A from there or from registers, D is held by the
// threads: d[i] is at row wgmma_row(i), column wgmma_column(i). All 128 threads must come.
//
//   wgmma_fence(d);                                        // first, and after every wait
//   for (k ...) wgmma<T, N>(d, a + k, b + k, k > 0);       // asynchronous, in order
//   wgmma_commit();
//   wgmma_wait<0>(d);                                      // only now may d be read, and the tiles be written
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/mbarrier.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ROOFTILE_SM90A(...) asm volatile(__VA_ARGS__)
#else  // compiled for another architecture than sm_90a it is a kernel that must not be launched
#define ROOFTILE_SM90A(...) __trap()
#endif

namespace rooftile {

struct E4M3 {  // 8 bits: sign, 4 of exponent, 3 of mantissa
  unsigned char bits;
};

// ---- where a tile lies -------------------------------------------------------------------------------------------------------

// A matrix in shared memory, as wgmma addresses it. SWIZZLE is 32, 64 or 128 bytes as a tensor map wrote it, or 0: then 8 lines of 16 bytes
// lie together. Along K the next K of an instruction is `+ 32` bytes further inside a swizzled line; `operator+` counts bytes.
struct Matrix {
  unsigned long long bits;
  ROOFTILE_DEVICE Matrix operator+(int bytes) const { return {bits + (unsigned long long)(bytes >> 4)}; }
};
template <int SWIZZLE> ROOFTILE_DEVICE Matrix matrix(const void* sX, int leading, int stride) {
  static_assert(SWIZZLE == 0 || SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "a swizzle is 0, 32, 64 or 128 bytes");
  constexpr unsigned long long LAYOUT = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
  return {(unsigned long long)(shared_address(sX) >> 4 & 0x3fff) | (unsigned long long)(leading >> 4 & 0x3fff) << 16 |
          (unsigned long long)(stride >> 4 & 0x3fff) << 32 | LAYOUT << 62};
}
// K lies along the lines, one line a row of A or a column of B: groups of 8 lines are `group` bytes apart. Without swizzle a line has 16
// bytes of K, and the next 16 are `chunk` bytes further.
template <int SWIZZLE> ROOFTILE_DEVICE Matrix k_major(const void* sX, int group = 8 * SWIZZLE, int chunk = 16) { return matrix<SWIZZLE>(sX, chunk, group); }
// Rows of A or columns of B lie along the lines, one line a k: groups of 8 k are `group` bytes apart, and what a line has no room for
// begins `panel` bytes further. 16-bit types only.
template <int SWIZZLE> ROOFTILE_DEVICE Matrix mn_major(const void* sX, int panel, int group = 8 * SWIZZLE) {
  return SWIZZLE ? matrix<SWIZZLE>(sX, panel, group) : matrix<SWIZZLE>(sX, group, panel);
}

// ---- order -------------------------------------------------------------------------------------------------------------------

// The compiler keeps an array where it is: neither its reads nor its writes move across. Sums that a loop leaves under way into its next turn
// want it before the loop too: what first fills them must not end up between products, which the assembler would then run one by one.
template <int R> ROOFTILE_DEVICE void pin(float (&d)[R]) {
#ifndef ROOFTILE_SIMULATOR
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}
template <int R> ROOFTILE_DEVICE void pin(unsigned (&a)[R]) {
#ifndef ROOFTILE_SIMULATOR
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+r"(a[i])::"memory");
#endif
}

// Between what threads do with registers (of D, of A) and the next wgmma on them.
template <typename... Registers> ROOFTILE_DEVICE void wgmma_fence(Registers&... r) {
  (pin(r), ...);
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_wgmma_fence();
#else
  ROOFTILE_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Ends the group that the products have gone into so far.
ROOFTILE_DEVICE void wgmma_commit() {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_wgmma_commit();
#else
  ROOFTILE_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most LEFT groups, the newest, are under way. Name the arrays that may be read from here on.
template <int LEFT, typename... Registers> ROOFTILE_DEVICE void wgmma_wait(Registers&... r) {
#ifdef ROOFTILE_SIMULATOR
  rooftile_sim_wgmma_wait(LEFT);
#else
  ROOFTILE_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
  (pin(r), ...);
}

// A warpgroup gives registers back, or asks for more; all of its threads must come. In effect where __launch_bounds__(threads, 1) has fixed how many
// a thread begins with, and each role is one branch of one if.
template <int COUNT> ROOFTILE_DEVICE void registers_lower() {
  static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a thread has 24 to 256 registers, a multiple of 8");
#ifndef ROOFTILE_SIMULATOR
  ROOFTILE_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT> ROOFTILE_DEVICE void registers_raise() {
  static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a thread has 24 to 256 registers, a multiple of 8");
#ifndef ROOFTILE_SIMULATOR
  ROOFTILE_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// ---- the product -------------------------------------------------------------------------------------------------------------

// Thread 32 w + 4 g + t holds d[4 j + 2 h + i] = D[16 w + 8 h + g, 8 j + 2 t + i].
ROOFTILE_DEVICE int wgmma_row(int i) { return warp() % 4 * 16 + lane() / 4 + i / 2 % 2 * 8; }
ROOFTILE_DEVICE int wgmma_column(int i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }

ROOFTILE_DEVICE unsigned pack_pair(__half, float x, float y) {
  const __half2 two = __floats2half2_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&two);
}
ROOFTILE_DEVICE unsigned pack_pair(__nv_bfloat16, float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&two);
}
// Columns 16 k to 16 k + 15 of one product's D as A of the next, which threads hold in the same places.
template <typename T, int R> ROOFTILE_DEVICE void wgmma_operand(unsigned (&a)[4], const float (&d)[R], int k) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack_pair(T(), d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
}

enum Major { K_MAJOR = 0, MN_MAJOR = 1 };

template <typename T> struct WgmmaType;
template <> struct WgmmaType<__half> { static constexpr unsigned value = 0; };
template <> struct WgmmaType<__nv_bfloat16> { static constexpr unsigned value = 1; };
template <> struct WgmmaType<E4M3> { static constexpr unsigned value = 2; };

template <typename T, int N, Major A, Major B> constexpr void check_wgmma() {
  static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 192 || N == 256, "N is 8, 16, 32, 64, 96, 128, 192 or 256");
  static_assert(sizeof(T) == 2 || (A == K_MAJOR && B == K_MAJOR), "E4M3 is read along K only");
}

#ifdef ROOFTILE_SIMULATOR
namespace model {
struct Wgmma {
  unsigned n, type, a_transposed, b_transposed;
  unsigned long long a, b;
  unsigned accumulate, a_in_registers;
};
}  // namespace model
#else
// Operands %0 up are D's registers, N / 2 of them; the rest follow: A, B, whether D is added to, and what is transposed.
#define ROOFTILE_DIGITS(tens) "%" tens "0,%" tens "1,%" tens "2,%" tens "3,%" tens "4,%" tens "5,%" tens "6,%" tens "7,%" tens "8,%" tens "9,"
#define ROOFTILE_D4 "%0,%1,%2,%3"
#define ROOFTILE_D8 ROOFTILE_D4 ",%4,%5,%6,%7"
#define ROOFTILE_D16 ROOFTILE_DIGITS("") "%10,%11,%12,%13,%14,%15"
#define ROOFTILE_D20 ROOFTILE_DIGITS("") ROOFTILE_DIGITS("1")
#define ROOFTILE_D40 ROOFTILE_D20 ROOFTILE_DIGITS("2") ROOFTILE_DIGITS("3")
#define ROOFTILE_D60 ROOFTILE_D40 ROOFTILE_DIGITS("4") ROOFTILE_DIGITS("5")
#define ROOFTILE_D90 ROOFTILE_D60 ROOFTILE_DIGITS("6") ROOFTILE_DIGITS("7") ROOFTILE_DIGITS("8")
#define ROOFTILE_D32 ROOFTILE_D20 ROOFTILE_DIGITS("2") "%30,%31"
#define ROOFTILE_D48 ROOFTILE_D40 "%40,%41,%42,%43,%44,%45,%46,%47"
#define ROOFTILE_D64 ROOFTILE_D60 "%60,%61,%62,%63"
#define ROOFTILE_D96 ROOFTILE_D90 "%90,%91,%92,%93,%94,%95"
#define ROOFTILE_D128 \
  ROOFTILE_D90 ROOFTILE_DIGITS("9") ROOFTILE_DIGITS("10") ROOFTILE_DIGITS("11") "%120,%121,%122,%123,%124,%125,%126,%127"
#define ROOFTILE_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ROOFTILE_F8(i) ROOFTILE_F4(i), ROOFTILE_F4(i + 4)
#define ROOFTILE_F16(i) ROOFTILE_F8(i), ROOFTILE_F8(i + 8)
#define ROOFTILE_F32(i) ROOFTILE_F16(i), ROOFTILE_F16(i + 16)
#define ROOFTILE_F48(i) ROOFTILE_F32(i), ROOFTILE_F16(i + 32)
#define ROOFTILE_F64(i) ROOFTILE_F32(i), ROOFTILE_F32(i + 32)
#define ROOFTILE_F96(i) ROOFTILE_F64(i), ROOFTILE_F32(i + 64)
#define ROOFTILE_F128(i) ROOFTILE_F64(i), ROOFTILE_F64(i + 64)
// N, the registers of D, and the names of the operands that follow them.
#define ROOFTILE_EACH_N(X)                                           \
  X(8, 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10")                 \
  X(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")            \
  X(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")         \
  X(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")         \
  X(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")         \
  X(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")        \
  X(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")     \
  X(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#define ROOFTILE_HEAD(accumulate, n, k, type, r) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k" k ".f32." type "." type " {" ROOFTILE_D##r "}, "
#endif

// Both from shared memory. Where accumulate is false D begins at zero.
template <typename T, int N, Major A = K_MAJOR, Major B = K_MAJOR>
ROOFTILE_DEVICE void wgmma(float (&d)[N / 2], Matrix a, Matrix b, bool accumulate = true) {
  check_wgmma<T, N, A, B>();
#ifdef ROOFTILE_SIMULATOR
  const model::Wgmma what{N, WgmmaType<T>::value, A, B, a.bits, b.bits, accumulate, 0};
  rooftile_sim_wgmma(&what, d, nullptr);
#else
  const int add = accumulate;
#define ROOFTILE_SHARED(n, r, type, p0, p1, p2, p3, p4)                                                                           \
  ROOFTILE_SM90A(ROOFTILE_HEAD(p2, n, "16", type, r) p0 ", " p1 ", p, 1, 1, " p3 ", " p4 ";\n}"                                    \
                 : ROOFTILE_F##r(0)                                                                                               \
                 : "l"(a.bits), "l"(b.bits), "r"(add), "n"(int(A)), "n"(int(B))                                                   \
                 : "memory")
#define ROOFTILE_ONE(n, r, p0, p1, p2, p3, p4, p5, p6)                                                                            \
  if constexpr (N == n) {                                                                                                         \
    if constexpr (WgmmaType<T>::value == 0) ROOFTILE_SHARED(n, r, "f16", p0, p1, p2, p3, p4);                                     \
    if constexpr (WgmmaType<T>::value == 1) ROOFTILE_SHARED(n, r, "bf16", p0, p1, p2, p3, p4);                                    \
    if constexpr (WgmmaType<T>::value == 2)                                                                                       \
      ROOFTILE_SM90A(ROOFTILE_HEAD(p2, n, "32", "e4m3", r) p0 ", " p1 ", p, 1, 1;\n}"                                             \
                     : ROOFTILE_F##r(0)                                                                                           \
                     : "l"(a.bits), "l"(b.bits), "r"(add)                                                                         \
                     : "memory");                                                                                                 \
  }
  ROOFTILE_EACH_N(ROOFTILE_ONE)
#undef ROOFTILE_ONE
#undef ROOFTILE_SHARED
#endif
}

// A from registers. Thread 32 w + 4 g + t holds of A, in words of 4 bytes along K: of row 16 w + g word t (a[0]) and t + 4 (a[2]), of row
// 16 w + g + 8 the same two (a[1], a[3]). They must not change before the product was waited for.
template <typename T, int N, Major B = K_MAJOR>
ROOFTILE_DEVICE void wgmma(float (&d)[N / 2], const unsigned (&a)[4], Matrix b, bool accumulate = true) {
  check_wgmma<T, N, K_MAJOR, B>();
#ifdef ROOFTILE_SIMULATOR
  const model::Wgmma what{N, WgmmaType<T>::value, 0, B, 0, b.bits, accumulate, 1};
  rooftile_sim_wgmma(&what, d, a);
#else
  const int add = accumulate;
#define ROOFTILE_REGISTERS(n, r, type, p0, p1, p2, p3, p4, p5, p6)                                                                \
  ROOFTILE_SM90A(ROOFTILE_HEAD(p5, n, "16", type, r) "{" p0 "," p1 "," p2 "," p3 "}, " p4 ", p, 1, 1, " p6 ";\n}"                  \
                 : ROOFTILE_F##r(0)                                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(add), "n"(int(B))                                 \
                 : "memory")
#define ROOFTILE_ONE(n, r, p0, p1, p2, p3, p4, p5, p6)                                                                            \
  if constexpr (N == n) {                                                                                                         \
    if constexpr (WgmmaType<T>::value == 0) ROOFTILE_REGISTERS(n, r, "f16", p0, p1, p2, p3, p4, p5, p6);                          \
    if constexpr (WgmmaType<T>::value == 1) ROOFTILE_REGISTERS(n, r, "bf16", p0, p1, p2, p3, p4, p5, p6);                         \
    if constexpr (WgmmaType<T>::value == 2)                                                                                       \
      ROOFTILE_SM90A(ROOFTILE_HEAD(p5, n, "32", "e4m3", r) "{" p0 "," p1 "," p2 "," p3 "}, " p4 ", p, 1, 1;\n}"                   \
                     : ROOFTILE_F##r(0)                                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(add)                                          \
                     : "memory");                                                                                                 \
  }
  ROOFTILE_EACH_N(ROOFTILE_ONE)
#undef ROOFTILE_ONE
#undef ROOFTILE_REGISTERS
#endif
}

#ifndef ROOFTILE_SIMULATOR
#undef ROOFTILE_EACH_N
#undef ROOFTILE_HEAD
#endif

}  // namespace rooftile
