// adds: 16 bytes an access, EACH heads a thread: their loads are all in flight, the length and the table's row are theirs together
// costs: heads of whole 16 bytes, beginning at multiples of 16; 8 registers a head and 16 for cosines and sines of 8 pairs
// loses when: there are a few tokens: a thread to EACH heads leaves most multiprocessors idle
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/quantize.cuh"
#include "rooftile/rotary.cuh"

using namespace rooftile;

// `turn` into a cache of 8 bits: each row times the inverse of its scale and rounded once, 4 or 8 bytes a store.
template <typename T, int K, int EACH, bool PAIRS>
ROOFTILE_DEVICE void turn(E4M3* gOut, const T* gX, const float* gScale, bool scaled, int heads, int apart, long long stride,
                          long long stride_out, long long stride_scale, const float (&rC)[K], const float (&rS)[K], bool copied) {
  constexpr int WIDTH = 16 / sizeof(T);
  Wide<T> rA[EACH], rB[EACH];
  float rScale[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e)
    if (e < heads) {
      load(rA[e], gX + e * stride);
      if (!PAIRS && !copied) load(rB[e], gX + e * stride + apart);
      rScale[e] = scaled ? gScale[e * stride_scale] : 1.0f;
    }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (e >= heads) continue;
    const Symmetric<E4M3> how{__fdiv_rn(1.0f, rScale[e])};
    float rX[WIDTH], rY[WIDTH];
    to_float(rX, rA[e]);
    if (!copied) {
      if (!PAIRS) to_float(rY, rB[e]);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        float& first = rX[PAIRS ? 2 * k % WIDTH : k % WIDTH];
        float& second = PAIRS ? rX[(2 * k + 1) % WIDTH] : rY[k % WIDTH];
        const float a = first, b = second;
        first = a * rC[k] - b * rS[k];
        second = a * rS[k] + b * rC[k];
      }
      if (!PAIRS) *reinterpret_cast<Bytes<WIDTH>*>(gOut + e * stride_out + apart) = quantized(rY, how);
    }
    *reinterpret_cast<Bytes<WIDTH>*>(gOut + e * stride_out) = quantized(rX, how);
  }
}

// Of a token first the groups of EACH heads of k, then those of v, which are copied: lanes for N pairs, and for the rest of a head. S is a sequence's room.
// What a call does not have, of gTable (int), gKs and gVs (float), is nobody's.
template <typename T, typename C, typename W, typename L, bool PAIRS, bool PAGED, int EACH>
__global__ void concat_kv(C* gKc, C* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, const void* gTable,
                          const void* gKs, const void* gVs, long long tokens, int length, int S, int G, int D, int N, int rows, int pages,
                          int page, bool k_scaled, bool v_scaled, long long k_b, long long k_t, long long k_h, long long v_b,
                          long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t,
                          long long vc_h, long long stride_length, long long stride_cos, long long stride_sin, long long stride_row,
                          long long stride_page, long long stride_ks, long long stride_vs) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;
  const int turning = N / K, groups = (G + EACH - 1) / EACH;
  const int key_lanes = turning + (D - 2 * N) / WIDTH, value_lanes = D / WIDTH, lanes = groups * (key_lanes + value_lanes);
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const long long i_m = i / lanes;
  if (i_m >= tokens) return;
  const long long i_b = i_m / length, i_t = i_m % length, before = gLengths[i_b * stride_length], place = before + i_t;
  if (before < 0 || place >= S) return;
  long long row = i_b, slot = place;
  if (PAGED) {
    row = static_cast<const int*>(gTable)[i_b * stride_row + int(place) / page * stride_page], slot = int(place) % page;
    if (row < 0 || row >= pages) return;
  }
  const int item = int(i % lanes), i_v = item - groups * key_lanes;
  float rC[K], rS[K];
  if (i_v >= 0) {
    const int i_h = i_v / value_lanes * EACH, column = i_v % value_lanes * WIDTH;
    C* gOut = gVc + row * vc_b + slot * vc_t + i_h * vc_h + column;
    const T* gX = gV + i_b * v_b + i_t * v_t + i_h * v_h + column;
    if constexpr (sizeof(C) == 1)
      turn<T, K, EACH, PAIRS>(gOut, gX, static_cast<const float*>(gVs) + i_h * stride_vs, v_scaled, G - i_h, 0, v_h, vc_h, stride_vs, rC, rS, true);
    else
      turn<T, K, EACH, PAIRS>(gOut, gX, G - i_h, 0, v_h, vc_h, rC, rS, true);
    return;
  }
  const int lane = item % key_lanes, i_h = item / key_lanes * EACH;
  const bool copied = lane >= turning;
  angles(rC, rS, gCos + place * stride_cos + lane * K, gSin + place * stride_sin + lane * K, !copied && place < rows);
  const int column = copied ? 2 * N + (lane - turning) * WIDTH : lane * WIDTH;
  const int apart = PAIRS || copied ? 0 : N;
  C* gOut = gKc + row * kc_b + slot * kc_t + i_h * kc_h + column;
  const T* gX = gK + i_b * k_b + i_t * k_t + i_h * k_h + column;
  if constexpr (sizeof(C) == 1)
    turn<T, K, EACH, PAIRS>(gOut, gX, static_cast<const float*>(gKs) + i_h * stride_ks, k_scaled, G - i_h, apart, k_h, kc_h, stride_ks, rC,
                            rS, copied);
  else
    turn<T, K, EACH, PAIRS>(gOut, gX, G - i_h, apart, k_h, kc_h, rC, rS, copied);
}
