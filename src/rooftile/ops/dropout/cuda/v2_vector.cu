// adds: 16 bytes an access, VECS of them asked for before the first word is drawn, and a call's 4 words serve 4 neighbours
// costs: x and out must begin at multiples of 16 bytes; the last few elements go one by one
// loses when: N is small: a thread to 8 VECS elements of 16 bits leaves multiprocessors idle below some 2 million
#include "rooftile/philox.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    dropout(T* __restrict__ gOut, const T* __restrict__ gX, const long long* __restrict__ gSeed, long long N, unsigned threshold, float scale) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = (blockIdx.x * (long long)(THREADS * VECS) + threadIdx.x) * WIDTH;  // the thread's next vector is a block's width on
  uint4 rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (i + v * (THREADS * WIDTH) + WIDTH <= N) rX[v] = __ldcs(reinterpret_cast<const uint4*>(gX + i + v * (THREADS * WIDTH)));
  const unsigned long long seed = *gSeed;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const long long at = i + v * (THREADS * WIDTH);
    if (at >= N) return;
    unsigned rWord[WIDTH];
    neighbours(rWord, (unsigned long long)at / 4, seed);
    if (at + WIDTH <= N) {
      float rF[WIDTH];
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rWord[k] >= threshold ? rF[k] * scale : 0.0f;
      pack<T>(rX[v], rF);
      __stcs(reinterpret_cast<uint4*>(gOut + at), rX[v]);
    } else {
#pragma unroll
      for (int k = 0; k < WIDTH; ++k)
        if (at + k < N) gOut[at + k] = rWord[k] >= threshold ? T(float(gX[at + k]) * scale) : T(0.0f);
    }
  }
}
