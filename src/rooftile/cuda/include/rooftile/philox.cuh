// Philox4x32-7, the fewest rounds that pass BigCrush (Salmon et al., 2011): four random words a call, for four neighbours. A round is two wide multiplications and two exclusive ors of three.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

struct Words {
  unsigned a, b, c, d;
};

ROOFTILE_DEVICE Words philox(unsigned long long counter, unsigned long long seed) {
  unsigned a = unsigned(counter), b = unsigned(counter >> 32), c = 0, d = 0, k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    const unsigned long long left = a * 0xD2511F53ull, right = c * 0xCD9E8D57ull;
    a = unsigned(right >> 32) ^ b ^ k0, b = unsigned(right), c = unsigned(left >> 32) ^ d ^ k1, d = unsigned(left);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {a, b, c, d};
}

// Element i takes word i % 4 of the counter i / 4 and is kept iff it is not below the threshold, which is 2^32 where all are dropped.
struct Dropout {
  unsigned long long seed, threshold;
  float scale;
  ROOFTILE_DEVICE float operator()(float x, long long i) const {
    const Words w = philox(i / 4, seed);
    return keep(x, i % 4 < 2 ? (i % 4 ? w.b : w.a) : i % 4 == 2 ? w.c : w.d);
  }
  // The neighbours i .. i + N, i a multiple of 4.
  template <int N> ROOFTILE_DEVICE void operator()(float (&rX)[N], long long i) const {
    static_assert(N % 4 == 0, "a call draws for four neighbours");
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const Words w = philox((i + k) / 4, seed);
      rX[k] = keep(rX[k], w.a), rX[k + 1] = keep(rX[k + 1], w.b), rX[k + 2] = keep(rX[k + 2], w.c), rX[k + 3] = keep(rX[k + 3], w.d);
    }
  }

 private:
  ROOFTILE_DEVICE float keep(float x, unsigned word) const { return word >= threshold ? x * scale : 0.0f; }
};

}  // namespace rooftile
