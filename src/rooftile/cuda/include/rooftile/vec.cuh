// N elements that move as one access of up to 16 bytes. The address must be a multiple of the vector's size.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

template <int BYTES> struct Raw;
template <> struct Raw<1> { using type = unsigned char; };
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<4> { using type = unsigned; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };

template <typename T, int N> struct alignas(sizeof(T) * N) Vec {
  static_assert(power_of_two(sizeof(T) * N) && sizeof(T) * N <= 16, "a vector is 1, 2, 4, 8 or 16 bytes");
  using Whole = typename Raw<int(sizeof(T) * N)>::type;
  union {
    T data[N];
    Whole whole;
  };
  ROOFTILE_DEVICE T& operator[](int i) { return data[i]; }
  ROOFTILE_DEVICE const T& operator[](int i) const { return data[i]; }
};

// The widest vector of T: 16 bytes.
template <typename T> using Wide = Vec<T, int(16 / sizeof(T))>;

// From global or shared memory.
template <typename T, int N> ROOFTILE_DEVICE void load(Vec<T, N>& rX, const T* x) {
  rX.whole = *reinterpret_cast<const typename Vec<T, N>::Whole*>(x);
}
template <typename T, int N> ROOFTILE_DEVICE void store(T* x, const Vec<T, N>& rX) {
  *reinterpret_cast<typename Vec<T, N>::Whole*>(x) = rX.whole;
}

// The same from and to global memory, as one instruction whatever stands around it: out of a plain assignment the compiler makes four parts, and
// joins them again where it still sees that they are neighbours. Of eight unrolled stores with strides it saw none. The caches are asked for nothing:
// loads that are the first to leave them were slower beside as much that is written (passing.cuh is for who writes next to nothing).
template <typename T, int N> ROOFTILE_DEVICE void load_global(Vec<T, N>& rX, const T* gX) {
  rX.whole = __ldca(reinterpret_cast<const typename Vec<T, N>::Whole*>(gX));
}
template <typename T, int N> ROOFTILE_DEVICE void store_global(T* gX, const Vec<T, N>& rX) {
  __stwb(reinterpret_cast<typename Vec<T, N>::Whole*>(gX), rX.whole);
}

// Arithmetic is done in float, whatever is stored. T is float, __half, __nv_bfloat16 or an integer type.
template <typename T, int N> ROOFTILE_DEVICE void to_float(float (&rF)[N], const Vec<T, N>& rX) {
#pragma unroll
  for (int i = 0; i < N; ++i) rF[i] = static_cast<float>(rX[i]);
}
template <typename T, int N> ROOFTILE_DEVICE void from_float(Vec<T, N>& rX, const float (&rF)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) rX[i] = static_cast<T>(rF[i]);
}
template <typename T, int N> ROOFTILE_DEVICE void fill(Vec<T, N>& rX, T value) {
#pragma unroll
  for (int i = 0; i < N; ++i) rX[i] = value;
}

}  // namespace rooftile
