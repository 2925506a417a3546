// adds: 16 bytes an access, VECS of them asked for before the first word is drawn, and a call's 4 words serve 4 neighbours
// costs: x and out must begin at multiples of 16 bytes; the last few elements go one by one
// loses when: N is small: a thread to 8 VECS elements of 16 bits leaves multiprocessors idle below some 2 million
#include "rooftile/philox.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

template <typename T, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    dropout(T* __restrict__ gOut, const T* __restrict__ gX, const long long* __restrict__ gSeed, long long N,
            unsigned long long threshold, float scale) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i = (blockIdx.x * (long long)(THREADS * VECS) + threadIdx.x) * WIDTH;  // the thread's next vector is a block's width on
  uint4 rX[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (i + v * (THREADS * WIDTH) + WIDTH <= N) rX[v] = __ldca(reinterpret_cast<const uint4*>(gX + i + v * (THREADS * WIDTH)));
  const Dropout drop{(unsigned long long)*gSeed, threshold, scale};
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const long long at = i + v * (THREADS * WIDTH);
    if (at >= N) return;
    if (at + WIDTH <= N) {
      float rF[WIDTH];
      unpack<T>(rF, rX[v]);
      drop(rF, at);
      pack<T>(rX[v], rF);
      __stwb(reinterpret_cast<uint4*>(gOut + at), rX[v]);
    } else {
      for (long long k = at; k < N; ++k) gOut[k] = T(drop(float(gX[k]), k));
    }
  }
}
