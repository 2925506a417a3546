// Philox4x32-10 (Salmon et al., 2011): four random words for each 64-bit counter under a 64-bit key. 20 wide multiplications and 20 three-way
// exclusive ors; the key's 20 additions are shared by the calls of a thread.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

ROOFTILE_DEVICE void philox(unsigned (&rWord)[4], unsigned long long counter, unsigned long long seed) {
  unsigned a = unsigned(counter), b = unsigned(counter >> 32), c = 0, d = 0, k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
  for (int i = 0; i < 10; ++i, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const unsigned long long left = a * 0xD2511F53ull, right = c * 0xCD9E8D57ull;
    a = unsigned(right >> 32) ^ b ^ k0, b = unsigned(right);
    c = unsigned(left >> 32) ^ d ^ k1, d = unsigned(left);
  }
  rWord[0] = a, rWord[1] = b, rWord[2] = c, rWord[3] = d;
}

// The words of WIDTH neighbours, the first of which is element 4 counter: word i % 4 of counter i / 4 is element i's.
template <int WIDTH> ROOFTILE_DEVICE void neighbours(unsigned (&rWord)[WIDTH], unsigned long long counter, unsigned long long seed) {
  static_assert(WIDTH % 4 == 0, "a counter serves 4 neighbours");
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4) {
    unsigned rFour[4];
    philox(rFour, counter + k / 4, seed);
#pragma unroll
    for (int j = 0; j < 4; ++j) rWord[k + j] = rFour[j];
  }
}

}  // namespace rooftile
