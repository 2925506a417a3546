// adds: a thread a pair of dimensions of a key, or an element of a value
// costs: 2 bytes an access in 16 bits; a length and a row of the table loaded again for every pair
// loses when: always: the load units move 12 bytes for 4 of data
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/quantize.cuh"

using namespace rooftile;

// What a cache holds of x: 8 bits of it beside its scale, or x itself.
template <typename C, typename X> __device__ __forceinline__ void put(C* gOut, X x, float inverse) {
  if constexpr (sizeof(C) == 1)
    put_one(gOut, float(x), Symmetric<C>{inverse});
  else
    *gOut = C(x);
}

// i runs over tokens, then k's and v's heads, then N pairs and D - 2 N copies of a key or D copies of a value. S is a sequence's room.
// What a call does not have, of gTable (int), gKs and gVs (float), is nobody's.
template <typename T, typename C, typename W, typename L, bool PAIRS, bool PAGED>
__global__ void concat_kv(C* gKc, C* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, const void* gTable,
                          const void* gKs, const void* gVs, long long tokens, int length, int S, int G, int D, int N, int rows, int pages,
                          int page, bool k_scaled, bool v_scaled, long long k_b, long long k_t, long long k_h, long long v_b,
                          long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t,
                          long long vc_h, long long stride_length, long long stride_cos, long long stride_sin, long long stride_row,
                          long long stride_page, long long stride_ks, long long stride_vs) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x, i_m = i / (G * (long long)(2 * D - N));
  if (i_m >= tokens) return;
  const int item = int(i % (G * (long long)(2 * D - N))), i_b = int(i_m / length), i_t = int(i_m % length);
  const long long before = gLengths[i_b * stride_length], place = before + i_t;
  if (before < 0 || place >= S) return;
  long long row = i_b, slot = place;
  if (PAGED) {
    row = static_cast<const int*>(gTable)[i_b * stride_row + int(place) / page * stride_page], slot = int(place) % page;
    if (row < 0 || row >= pages) return;
  }
  const bool key = item < G * (D - N);
  const int i_h = key ? item / (D - N) : (item - G * (D - N)) / D, i_n = key ? item % (D - N) : (item - G * (D - N)) % D;
  float inverse = 1.0f;
  if (sizeof(C) == 1 && (key ? k_scaled : v_scaled))
    inverse = __fdiv_rn(1.0f, static_cast<const float*>(key ? gKs : gVs)[i_h * (key ? stride_ks : stride_vs)]);
  if (!key) {
    put(gVc + row * vc_b + slot * vc_t + i_h * vc_h + i_n, gV[i_b * v_b + i_t * v_t + i_h * v_h + i_n], inverse);
    return;
  }
  const T* gX = gK + i_b * k_b + i_t * k_t + i_h * k_h;
  C* gOut = gKc + row * kc_b + slot * kc_t + i_h * kc_h;
  if (i_n >= N) {
    put(gOut + N + i_n, gX[N + i_n], inverse);
    return;
  }
  const float c = place < rows ? float(gCos[place * stride_cos + i_n]) : __int_as_float(0x7fffffff);
  const float s = place < rows ? float(gSin[place * stride_sin + i_n]) : __int_as_float(0x7fffffff);
  const int first = PAIRS ? 2 * i_n : i_n, second = PAIRS ? first + 1 : N + i_n;
  const float a = float(gX[first]), b = float(gX[second]);
  put(gOut + first, a * c - b * s, inverse);
  put(gOut + second, a * s + b * c, inverse);
}
