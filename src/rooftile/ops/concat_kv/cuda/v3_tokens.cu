// adds: a token's heads are a row of a block, so that no thread divides 64-bit numbers; a lane's keys and values are asked for before the length has come
// costs: 4 vectors of registers a head where halves turn, and cosines and sines again for every head, out of the L1
// loses when: there are a few tokens: what a block has to know before its first load is then most of its time
#include "rooftile/policy.cuh"
#include "rooftile/quantize.cuh"
#include "rooftile/rotary.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

// What has been turned into the cache: rounded to its dtype, of 8 bits times the inverse of its head's scale, and once.
template <typename T, typename C, int WIDTH> ROOFTILE_DEVICE void put(C* g, const float (&rF)[WIDTH], float inverse) {
  if constexpr (sizeof(C) == 1) {
    *reinterpret_cast<Bytes<WIDTH>*>(g) = quantized(rF, Symmetric<C>{inverse});
  } else {
    Wide<T> rX;
    pack<T>(rX.whole, rF);
    store_global(g, rX);
  }
}
// And what is copied.
template <typename T, typename C> ROOFTILE_DEVICE void put(C* g, const Wide<T>& rX, float inverse) {
  if constexpr (sizeof(C) == 1) {
    float rF[16 / sizeof(T)];
    unpack<T>(rF, rX.whole);
    put<T>(g, rF, inverse);
  } else {
    store_global(g, rX);
  }
}

// A block is lanes x groups x tokens: a lane has a vector, or the two that turn together, of every groups-th head from its own on, EACH at most, of the
// keys and of the values. S is a sequence's room. What a call does not have, of gTable (int), gKs and gVs (float), is nobody's.
template <typename T, typename C, typename W, typename L, bool PAIRS, bool PAGED, int EACH>
__global__ void __launch_bounds__(512)
    concat_kv(C* gKc, C* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, const void* gTable, const void* gKs,
              const void* gVs, long long tokens, int length, int S, int G, int D, int N, int rows, int pages, int page, bool k_scaled,
              bool v_scaled, long long k_b, long long k_t, long long k_h, long long v_b, long long v_t, long long v_h, long long kc_b,
              long long kc_t, long long kc_h, long long vc_b, long long vc_t, long long vc_h, long long stride_length, long long stride_cos,
              long long stride_sin, long long stride_row, long long stride_page, long long stride_ks, long long stride_vs) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;  // pairs a lane
  const int lane = threadIdx.x, turning = N / K, first = threadIdx.y, step = blockDim.y;
  const unsigned i_m = blockIdx.x * blockDim.z + threadIdx.z;
  if (i_m >= tokens) return;
  const unsigned i_b = i_m / unsigned(length), i_t = i_m % unsigned(length);
  const long long before = gLengths[i_b * stride_length], place = before + i_t;
  const bool copied = lane >= turning, two = !PAIRS && !copied;
  const int column = copied ? 2 * N + (lane - turning) * WIDTH : lane * WIDTH;
  const T *gFromK = gK + i_b * k_b + i_t * k_t + column, *gFromV = gV + i_b * v_b + i_t * v_t + column;
  const Policy policy = evict_last(tokens * G * D * 2 * (long long)(sizeof(T) + sizeof(C)));  // the caches' lines take of the L2 too
  const auto asked = [&](Wide<T>& rX, const T* g) { rX.whole = load_global(reinterpret_cast<const uint4*>(g), policy); };
  Wide<T> rA[EACH], rB[EACH], rV[EACH], rU[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int i_h = first + e * step;
    if (i_h >= G) continue;
    asked(rA[e], gFromK + i_h * k_h), asked(rV[e], gFromV + i_h * v_h);
    if (two) asked(rB[e], gFromK + i_h * k_h + N), asked(rU[e], gFromV + i_h * v_h + N);
  }
  if (before < 0 || place >= S) return;
  long long row = i_b, slot = place;
  if (PAGED) {
    row = static_cast<const int*>(gTable)[i_b * stride_row + int(place) / page * stride_page], slot = int(place) % page;
    if (row < 0 || row >= pages) return;
  }
  float rC[K], rS[K], rF[WIDTH], rG[WIDTH];
  angles(rC, rS, gCos + place * stride_cos + lane * K, gSin + place * stride_sin + lane * K, !copied && place < rows);
  C *gToK = gKc + row * kc_b + slot * kc_t + column, *gToV = gVc + row * vc_b + slot * vc_t + column;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int i_h = first + e * step;
    if (i_h >= G) continue;
    const float inverse = sizeof(C) == 1 && v_scaled ? __fdiv_rn(1.0f, static_cast<const float*>(gVs)[i_h * stride_vs]) : 1.0f;
    put<T>(gToV + i_h * vc_h, rV[e], inverse);
    if (two) put<T>(gToV + i_h * vc_h + N, rU[e], inverse);
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int i_h = first + e * step;
    if (i_h >= G) continue;
    const float inverse = sizeof(C) == 1 && k_scaled ? __fdiv_rn(1.0f, static_cast<const float*>(gKs)[i_h * stride_ks]) : 1.0f;
    if (copied) {
      put<T>(gToK + i_h * kc_h, rA[e], inverse);
      continue;
    }
    unpack<T>(rF, rA[e].whole);
    if (!PAIRS) unpack<T>(rG, rB[e].whole);
    turn_pairs<PAIRS>(rF, rG, rC, rS);
    put<T>(gToK + i_h * kc_h, rF, inverse);
    if (!PAIRS) put<T>(gToK + i_h * kc_h + N, rG, inverse);
  }
}
