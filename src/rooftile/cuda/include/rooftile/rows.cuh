// What kernels over rows share: a reduction over the threads that hold one row, and 16 bytes of elements packed and unpacked.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/approximate.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

// What is taken off before the exponential: the row's maximum, or 0 for a row of -inf, whose -inf - -inf would be NaN.
ROOFTILE_DEVICE float base_of(float max) { return max == -__int_as_float(0x7f800000) ? 0.0f : max; }

// The larger number. A NaN is passed over: the sums of exponentials carry it.
struct Larger {
  ROOFTILE_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Two sums in one reduction.
struct Pair {
  float a, b;
};
struct SumPair {
  ROOFTILE_DEVICE Pair operator()(Pair x, Pair y) const { return {x.a + y.a, x.b + y.b}; }
};
ROOFTILE_DEVICE Pair shuffle_xor(Pair p, int distance) { return {shuffle_xor(p.a, distance), shuffle_xor(p.b, distance)}; }

template <int LANES, typename T, typename Op> ROOFTILE_DEVICE T group_reduce(T value, Op op) { return warp_reduce<LANES>(value, op); }
// The maximum first and then the sums, rescaled once a lane, instead of two exponentials a step.
template <int LANES> ROOFTILE_DEVICE Online group_reduce(Online s, Combine) {
  const float max = warp_reduce<LANES>(s.max, Larger());
  return {max, warp_reduce<LANES>(s.sum * exp_fast(s.max - base_of(max)), Sum())};
}

// Over LANES neighbouring threads, which hold one row: part of a warp, or the whole block. All threads of the block must come.
// One barrier: who calls again in a loop gives the other parity, and what is read from one half was written a barrier before.
template <int LANES, typename T, typename Op> ROOFTILE_DEVICE T row_reduce(T value, Op op, T (&sPartial)[2][WARP], int parity) {
  static_assert(power_of_two(LANES) && LANES <= 1024, "a row is held by 1 to 1024 threads, a power of two");
  if constexpr (LANES <= WARP) {
    return group_reduce<LANES>(value, op);
  } else {
    value = group_reduce<WARP>(value, op);
    if (lane() == 0) sPartial[parity][warp()] = value;
    __syncthreads();
    return group_reduce<LANES / WARP>(sPartial[parity][lane() % (LANES / WARP)], op);
  }
}

// 16 bytes of T as the four words they are: an array of 16-bit elements costs a register each as soon as it is taken apart.
template <typename T> struct Word;  // two elements of 16 bits
template <> struct Word<float> {  // one of 32
  static constexpr unsigned LOWEST = 0xff800000u;
};
template <> struct Word<__half> {
  static constexpr unsigned LOWEST = 0xfc00fc00u;  // two of -inf
  static ROOFTILE_DEVICE float2 open(unsigned w) { return __half22float2(*reinterpret_cast<const __half2*>(&w)); }
  static ROOFTILE_DEVICE unsigned close(float a, float b) {
    const __half2 two = __floats2half2_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&two);
  }
};
template <> struct Word<__nv_bfloat16> {
  static constexpr unsigned LOWEST = 0xff80ff80u;
  static ROOFTILE_DEVICE float2 open(unsigned w) { return {__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)}; }
  static ROOFTILE_DEVICE unsigned close(float a, float b) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&two);
  }
};
template <typename T> ROOFTILE_DEVICE void unpack(float (&rF)[8], const uint4& r) {
  const float2 a = Word<T>::open(r.x), b = Word<T>::open(r.y), c = Word<T>::open(r.z), d = Word<T>::open(r.w);
  rF[0] = a.x, rF[1] = a.y, rF[2] = b.x, rF[3] = b.y, rF[4] = c.x, rF[5] = c.y, rF[6] = d.x, rF[7] = d.y;
}
template <typename T> ROOFTILE_DEVICE void pack(uint4& r, const float (&rF)[8]) {
  r = {Word<T>::close(rF[0], rF[1]), Word<T>::close(rF[2], rF[3]), Word<T>::close(rF[4], rF[5]), Word<T>::close(rF[6], rF[7])};
}
template <typename T> ROOFTILE_DEVICE void unpack(float (&rF)[4], const uint2& r) {
  const float2 a = Word<T>::open(r.x), b = Word<T>::open(r.y);
  rF[0] = a.x, rF[1] = a.y, rF[2] = b.x, rF[3] = b.y;
}
template <typename T> ROOFTILE_DEVICE void pack(uint2& r, const float (&rF)[4]) { r = {Word<T>::close(rF[0], rF[1]), Word<T>::close(rF[2], rF[3])}; }
template <typename T> ROOFTILE_DEVICE void unpack(float (&rF)[4], const uint4& r) {
  rF[0] = __uint_as_float(r.x), rF[1] = __uint_as_float(r.y), rF[2] = __uint_as_float(r.z), rF[3] = __uint_as_float(r.w);
}
template <typename T> ROOFTILE_DEVICE void pack(uint4& r, const float (&rF)[4]) {
  r = {__float_as_uint(rF[0]), __float_as_uint(rF[1]), __float_as_uint(rF[2]), __float_as_uint(rF[3])};
}

// Elements that count as nothing in a softmax: -inf.
template <typename T> ROOFTILE_DEVICE uint4 nothing() {
  constexpr unsigned word = Word<T>::LOWEST;
  return {word, word, word, word};
}

// 0 of any n from 0 up, which the compiler cannot know.
ROOFTILE_DEVICE unsigned hidden_zero(int n) {
#ifdef ROOFTILE_SIMULATOR
  return 0;
#else
  unsigned zero;
  asm volatile("shr.u32 %0, %1, 31;" : "=r"(zero) : "r"(n));
  return zero;
#endif
}
// Of a vector that is unpacked before and after a reduction the compiler keeps the floats, two registers an element of 16 bits instead of
// half of one. To it this is another vector: half an instruction an element, and 8 vectors fit where 2 did.
ROOFTILE_DEVICE void stay_packed(uint4& r, unsigned zero) { r.x ^= zero, r.y ^= zero, r.z ^= zero, r.w ^= zero; }

// A load that stands where it is written, and not, as the compiler would have it, where its value is wanted.
ROOFTILE_DEVICE void load_now(uint4& r, const uint4* g) {
#ifdef ROOFTILE_SIMULATOR
  r = *g;
#else
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(g));
#endif
}
ROOFTILE_DEVICE void load_now(uint2& r, const uint2* g) {
#ifdef ROOFTILE_SIMULATOR
  r = *g;
#else
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(g));
#endif
}

// WIDTH neighbouring parameters of a row as they come: of T's size in one access, float32 beside a narrower T in two, narrower ones beside float32 in
// 8 bytes.
template <typename W, int WIDTH> struct Parameters {
  static constexpr int BYTES = int(sizeof(W)) * WIDTH, PARTS = BYTES > 16 ? BYTES / 16 : 1;
  using Part = typename Raw<BYTES / PARTS>::type;
  Part part[PARTS];
  ROOFTILE_DEVICE void load(const W* gW) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) part[i] = __ldg(reinterpret_cast<const Part*>(gW) + i);
  }
  ROOFTILE_DEVICE void ask(const W* gW) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) load_now(part[i], reinterpret_cast<const Part*>(gW) + i);
  }
  ROOFTILE_DEVICE void open(float (&rF)[WIDTH]) const {
    if constexpr (PARTS == 1) {
      unpack<W>(rF, part[0]);
    } else {
      static_assert(sizeof(W) == 4 && PARTS == 2, "of 8 elements only float32 takes two parts");
      rF[0] = __uint_as_float(part[0].x), rF[1] = __uint_as_float(part[0].y), rF[2] = __uint_as_float(part[0].z), rF[3] = __uint_as_float(part[0].w);
      rF[4] = __uint_as_float(part[1].x), rF[5] = __uint_as_float(part[1].y), rF[6] = __uint_as_float(part[1].z), rF[7] = __uint_as_float(part[1].w);
    }
  }
  // Each beside what is added to all: RMSNorm's weight offset.
  ROOFTILE_DEVICE void open(float (&rF)[WIDTH], float offset) const {
    open(rF);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] += offset;
  }
};
template <typename W, int WIDTH, typename... Offset> ROOFTILE_DEVICE void parameters(float (&rF)[WIDTH], const W* gW, Offset... offset) {
  Parameters<W, WIDTH> p;
  p.load(gW);
  p.open(rF, offset...);
}
// The same out of shared memory.
template <typename W, int WIDTH, typename... Offset> ROOFTILE_DEVICE void kept(float (&rF)[WIDTH], const W* sW, Offset... offset) {
  Parameters<W, WIDTH> p;
#pragma unroll
  for (int i = 0; i < p.PARTS; ++i) p.part[i] = reinterpret_cast<const typename Parameters<W, WIDTH>::Part*>(sW)[i];
  p.open(rF, offset...);
}

}  // namespace rooftile
