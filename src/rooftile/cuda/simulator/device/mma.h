// nvcuda::wmma: products of a warp by fragments. Which lane holds which element is nobody's business but this file's: element e of a matrix
// lies in lane e % 32. Sums are float, in the order of k.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

template <class T> struct rooftile_held { using type = T; };
template <> struct rooftile_held<precision::tf32> { using type = float; };
template <class T> struct rooftile_sum { using type = T; };
template <> struct rooftile_sum<__half> { using type = float; };
template <class Use, int M, int N, int K> struct rooftile_shape { static constexpr int rows = M, columns = N; };
template <int M, int N, int K> struct rooftile_shape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct rooftile_shape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static_assert((M == 16 && N == 16 && (K == 16 || K == 8)) || (M == 32 && N == 8 && K == 16) || (M == 8 && N == 32 && K == 16),
                "wmma has shapes 16x16x16, 32x8x16, 8x32x16 and, of tf32, 16x16x8");
  static constexpr int rows = rooftile_shape<Use, M, N, K>::rows, columns = rooftile_shape<Use, M, N, K>::columns;
  static constexpr int num_elements = rows * columns / 32;
  using element_type = typename rooftile_held<T>::type;
  element_type x[num_elements];
};

inline float __float_to_tf32(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000) & ~0x1fffu); }
template <class F, class T> __forceinline__ void fill_fragment(F& f, T v) {
  for (auto& x : f.x) x = typename F::element_type(v);
}

template <class F> __forceinline__ int rooftile_place(int i, unsigned stride, bool by_column) {
  int e = i * 32 + int(rooftile_sim_lane()), row = e / F::columns, column = e % F::columns;
  return by_column ? column * int(stride) + row : row * int(stride) + column;
}
template <class F, class T> __forceinline__ void rooftile_load(F& f, const T* p, unsigned stride, bool by_column) {
  for (int i = 0; i < F::num_elements; ++i) f.x[i] = p[rooftile_place<F>(i, stride, by_column)];
}
template <class Use, int M, int N, int K, class T, class P>
__forceinline__ void load_matrix_sync(fragment<Use, M, N, K, T, row_major>& f, const P* p, unsigned stride) {
  __syncwarp();
  rooftile_load(f, p, stride, false);
}
template <class Use, int M, int N, int K, class T, class P>
__forceinline__ void load_matrix_sync(fragment<Use, M, N, K, T, col_major>& f, const P* p, unsigned stride) {
  __syncwarp();
  rooftile_load(f, p, stride, true);
}
template <int M, int N, int K, class T, class P>
__forceinline__ void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const P* p, unsigned stride, layout_t layout) {
  __syncwarp();
  rooftile_load(f, p, stride, layout == mem_col_major);
}
template <int M, int N, int K, class T, class P>
__forceinline__ void store_matrix_sync(P* p, const fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout) {
  using F = fragment<accumulator, M, N, K, T>;
  for (int i = 0; i < F::num_elements; ++i) p[rooftile_place<F>(i, stride, layout == mem_col_major)] = f.x[i];
  __syncwarp();
}

template <class F> __forceinline__ void rooftile_gather(typename F::element_type (&all)[F::rows * F::columns], const F& f) {
  for (int i = 0; i < F::num_elements; ++i) rooftile_sim_exchange(~0u, &f.x[i], sizeof f.x[i], all + 32 * i, "mma_sync");
}
template <int M, int N, int K, class D, class T, class LA, class LB, class C>
__forceinline__ void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, T, LA>& a,
                              const fragment<matrix_b, M, N, K, T, LB>& b, const fragment<accumulator, M, N, K, C>& c, bool = false) {
  typename rooftile_held<T>::type all_a[M * K], all_b[K * N];
  rooftile_gather(all_a, a);
  rooftile_gather(all_b, b);
  for (int i = 0; i < c.num_elements; ++i) {
    int e = i * 32 + int(rooftile_sim_lane()), m = e / N, n = e % N;
    using Sum = typename rooftile_sum<C>::type;
    Sum sum = Sum(c.x[i]);
    for (int k = 0; k < K; ++k) sum += Sum(all_a[m * K + k]) * Sum(all_b[k * N + n]);
    d.x[i] = typename fragment<accumulator, M, N, K, D>::element_type(sum);
  }
}

}  // namespace wmma
}  // namespace nvcuda
