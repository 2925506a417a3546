// adds: a token's heads are a row of a block, so that no thread divides, and its vectors are asked for before the token's place and table row are known
// costs: registers: 8 a head of a thread, 16 for the cosines and sines of 8 pairs; a block's edge goes unused where a token's heads are no whole warps
// loses when: there are a few tokens: a block to each leaves most multiprocessors idle
#include "rooftile/rotary.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

// A block is lanes x groups x tokens: a lane has a vector of a head, or the two that turn together, of every groups-th head from its own on, EACH at
// most: q's heads and then k's.
template <typename T, typename W, bool GIVEN, bool PAIRS, int EACH>
__global__ void rope(T* gQo, T* gKo, const T* gQ, const T* gK, const W* gCos, const W* gSin, const void* gPositions, int tokens, int length, int S, int H,
                     int G, int D, int N, long long q_b, long long q_t, long long q_h, long long k_b, long long k_t, long long k_h, long long qo_b,
                     long long qo_t, long long qo_h, long long ko_b, long long ko_t, long long ko_h, long long stride_cos, long long stride_sin,
                     long long p_b, long long p_t, float sign) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;  // pairs a lane
  const int lane = threadIdx.x, turning = N / K;
  const unsigned i_m = blockIdx.x * blockDim.z + threadIdx.z;
  if (i_m >= tokens) return;
  const unsigned i_b = i_m / unsigned(length), i_t = i_m % unsigned(length);
  const long long place = GIVEN ? static_cast<const long long*>(gPositions)[i_b * p_b + i_t * p_t] : i_t;
  const bool copied = lane >= turning;
  const int column = copied ? 2 * N + (lane - turning) * WIDTH : lane * (PAIRS ? WIDTH : K);
  const T *gFromQ = gQ + i_b * q_b + i_t * q_t + column, *gFromK = gK + i_b * k_b + i_t * k_t + column;
  T *gToQ = gQo + i_b * qo_b + i_t * qo_t + column, *gToK = gKo + i_b * ko_b + i_t * ko_t + column;
  Wide<T> rA[EACH], rB[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int i_h = threadIdx.y + e * blockDim.y;
    if (i_h >= H + G) continue;
    const T* g = i_h < H ? gFromQ + i_h * q_h : gFromK + (i_h - H) * k_h;
    load_global(rA[e], g);
    if (!PAIRS && !copied) load_global(rB[e], g + N);
  }
  float rC[K], rS[K], rF[WIDTH], rG[WIDTH];
  if (!copied)
    angles(rC, rS, gCos + place * stride_cos + lane * K, gSin + place * stride_sin + lane * K, place >= 0 && place < S, sign);
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int i_h = threadIdx.y + e * blockDim.y;
    if (i_h >= H + G) continue;
    T* g = i_h < H ? gToQ + i_h * qo_h : gToK + (i_h - H) * ko_h;
    if (!copied) {
      unpack<T>(rF, rA[e].whole);
      if (!PAIRS) unpack<T>(rG, rB[e].whole);
      turn_pairs<PAIRS>(rF, rG, rC, rS);
      pack<T>(rA[e].whole, rF);
      if (!PAIRS) pack<T>(rB[e].whole, rG), store_global(g + N, rB[e]);
    }
    store_global(g, rA[e]);
  }
}
