// adds: 16 bytes an access, and EACH heads a thread: their 2 EACH loads are all in flight, the table's row and the divisions are theirs together
// costs: rows of whole 16 bytes, beginning at multiples of 16; registers: 4 a vector, 16 for the cosines and sines of 8 pairs
// loses when: there are a few tokens: a thread to EACH heads leaves most multiprocessors idle
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/rotary.cuh"

using namespace rooftile;

template <typename T, typename W, bool GIVEN, bool PAIRS, int EACH>
__global__ void rope(T* gQo, T* gKo, const T* gQ, const T* gK, const W* gCos, const W* gSin, const void* gPositions, long long tokens,
                     int length, int S, int H, int G, int D, int N, long long q_b, long long q_t, long long q_h, long long k_b, long long k_t,
                     long long k_h, long long qo_b, long long qo_t, long long qo_h, long long ko_b, long long ko_t, long long ko_h,
                     long long stride_cos, long long stride_sin, long long p_b, long long p_t, float sign) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;  // pairs a lane
  const int turning = N / K, lanes = turning + (D - 2 * N) / WIDTH;
  const int groups_q = (H + EACH - 1) / EACH, groups = groups_q + (G + EACH - 1) / EACH;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, unit = i / lanes;
  const long long i_m = unit / groups;
  if (i_m >= tokens) return;
  const int lane = i % lanes, group = unit % groups;
  const long long i_b = i_m / length, i_t = i_m % length;
  const bool copied = lane >= turning;
  float rC[K], rS[K];
  if (!copied) {
    const long long place = GIVEN ? static_cast<const long long*>(gPositions)[i_b * p_b + i_t * p_t] : i_t;
    angles(rC, rS, gCos + place * stride_cos + lane * K, gSin + place * stride_sin + lane * K, place >= 0 && place < S, sign);
  }
  const int column = copied ? 2 * N + (lane - turning) * WIDTH : lane * (PAIRS ? WIDTH : K), apart = PAIRS || copied ? 0 : N;
  if (group < groups_q) {
    const int i_h = group * EACH;
    turn<T, K, EACH, PAIRS>(gQo + i_b * qo_b + i_t * qo_t + i_h * qo_h + column, gQ + i_b * q_b + i_t * q_t + i_h * q_h + column, H - i_h,
                            apart, q_h, qo_h, rC, rS, copied);
  } else {
    const int i_h = (group - groups_q) * EACH;
    turn<T, K, EACH, PAIRS>(gKo + i_b * ko_b + i_t * ko_t + i_h * ko_h + column, gK + i_b * k_b + i_t * k_t + i_h * k_h + column, G - i_h,
                            apart, k_h, ko_h, rC, rS, copied);
  }
}
