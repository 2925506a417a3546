// Rotary embedding, 16 bytes at a time: pairs of dimensions turned through angles whose cosines and sines are in tables.
#pragma once
#include "rooftile/vec.cuh"

namespace rooftile {

// K neighbouring entries of a table, in accesses of 16 bytes at most.
template <typename W, int K> ROOFTILE_DEVICE void entries(float (&rF)[K], const W* gW) {
  constexpr int STEP = K * int(sizeof(W)) <= 16 ? K : 16 / int(sizeof(W));
#pragma unroll
  for (int k = 0; k < K; k += STEP) {
    Vec<W, STEP> rW;
    load(rW, gW + k);
#pragma unroll
    for (int j = 0; j < STEP; ++j) rF[k + j] = float(rW[j]);
  }
}

// The cosines and sines of a lane's K pairs, from a row of each table on; NaN where there is no such row.
template <typename W, int K>
ROOFTILE_DEVICE void angles(float (&rC)[K], float (&rS)[K], const W* gCos, const W* gSin, bool there, float sign = 1.0f) {
  if (there) {
    entries<W, K>(rC, gCos);
    entries<W, K>(rS, gSin);
#pragma unroll
    for (int k = 0; k < K; ++k) rS[k] *= sign;
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) rC[k] = rS[k] = __int_as_float(0x7fffffff);
  }
}

// K pairs turned: neighbours of the first vector (PAIRS), or one of each.
template <bool PAIRS, int K, int WIDTH>
ROOFTILE_DEVICE void turn_pairs(float (&rF)[WIDTH], float (&rG)[WIDTH], const float (&rC)[K], const float (&rS)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float &first = rF[PAIRS ? 2 * k : k], &second = PAIRS ? rF[(2 * k + 1) % WIDTH] : rG[k];
    const float a = first, b = second;
    first = a * rC[k] - b * rS[k];
    second = a * rS[k] + b * rC[k];
  }
}

// EACH rows of one lane: `apart` elements between the two vectors of a turn, 0 where one vector holds whole pairs or is copied.
template <typename T, int K, int EACH, bool PAIRS>
ROOFTILE_DEVICE void turn(T* gOut, const T* gX, int heads, int apart, long long stride, long long stride_out, const float (&rC)[K],
                          const float (&rS)[K], bool copied) {
  constexpr int WIDTH = 16 / sizeof(T);
  Wide<T> rA[EACH], rB[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e)
    if (e < heads) {
      load(rA[e], gX + e * stride);
      if (!PAIRS && !copied) load(rB[e], gX + e * stride + apart);
    }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (e >= heads) continue;
    if (!copied) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        T& first = PAIRS ? rA[e][2 * k % WIDTH] : rA[e][k % WIDTH];
        T& second = PAIRS ? rA[e][(2 * k + 1) % WIDTH] : rB[e][k % WIDTH];
        const float a = float(first), b = float(second);
        first = T(a * rC[k] - b * rS[k]);
        second = T(a * rS[k] + b * rC[k]);
      }
      if (!PAIRS) store(gOut + e * stride_out + apart, rB[e]);
    }
    store(gOut + e * stride_out, rA[e]);
  }
}

}  // namespace rooftile
