// adds: 16 bytes an access, EACH heads a thread: their loads are all in flight, the length and the table's row are theirs together
// costs: heads of whole 16 bytes, beginning at multiples of 16; 8 registers a head and 16 for cosines and sines of 8 pairs
// loses when: there are a few tokens: a thread to EACH heads leaves most multiprocessors idle
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/rotary.cuh"

using namespace rooftile;

// Of a token first the groups of EACH heads of k, then those of v, which are copied: lanes for N pairs, and for the rest of a head.
template <typename T, typename W, typename L, bool PAIRS, int EACH>
__global__ void concat_kv(T* gKc, T* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, long long tokens,
                          int length, int S, int G, int D, int N, int rows, long long k_b, long long k_t, long long k_h, long long v_b,
                          long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t,
                          long long vc_h, long long stride_length, long long stride_cos, long long stride_sin) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;
  const int turning = N / K, groups = (G + EACH - 1) / EACH;
  const int key_lanes = turning + (D - 2 * N) / WIDTH, value_lanes = D / WIDTH, lanes = groups * (key_lanes + value_lanes);
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const long long i_m = i / lanes;
  if (i_m >= tokens) return;
  const long long i_b = i_m / length, i_t = i_m % length, before = gLengths[i_b * stride_length], place = before + i_t;
  if (before < 0 || place >= S) return;
  const int item = int(i % lanes), i_v = item - groups * key_lanes;
  float rC[K], rS[K];
  if (i_v >= 0) {
    const int i_h = i_v / value_lanes * EACH, column = i_v % value_lanes * WIDTH;
    turn<T, K, EACH, PAIRS>(gVc + i_b * vc_b + place * vc_t + i_h * vc_h + column, gV + i_b * v_b + i_t * v_t + i_h * v_h + column, G - i_h,
                            0, v_h, vc_h, rC, rS, true);
    return;
  }
  const int lane = item % key_lanes, i_h = item / key_lanes * EACH;
  const bool copied = lane >= turning;
  if (!copied && place < rows) {
    entries<W, K>(rC, gCos + place * stride_cos + lane * K);
    entries<W, K>(rS, gSin + place * stride_sin + lane * K);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) rC[k] = rS[k] = __int_as_float(0x7fffffff);
  }
  const int column = copied ? 2 * N + (lane - turning) * WIDTH : lane * WIDTH;
  turn<T, K, EACH, PAIRS>(gKc + i_b * kc_b + place * kc_t + i_h * kc_h + column, gK + i_b * k_b + i_t * k_t + i_h * k_h + column, G - i_h,
                          PAIRS || copied ? 0 : N, k_h, kc_h, rC, rS, copied);
}
