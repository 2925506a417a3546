// adds: 16 bytes an access, VECS vectors of x and what lies beside them in the stream asked for before the first is used
// costs: rows must begin at multiples of 16 bytes; the last few elements of an only row go one by one
// loses when: N is small: an eighth as many threads have work
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

// gOut may be gResidual: a thread reads its vectors before it writes them, and nobody else reads them. A float32 stream beside a
// narrower x is two vectors for one.
template <typename T, typename R, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS) add(R* gOut, const T* __restrict__ gX, R* gResidual, long long N, int tiles,
                                               long long stride_x, long long stride_residual, long long stride_out) {
  constexpr int WIDTH = 16 / sizeof(T), EACH = sizeof(R) / sizeof(T), PART = WIDTH / EACH;
  constexpr int SIZE = VECS * THREADS * WIDTH;
  const long long i_m = blockIdx.x / tiles, i_n = blockIdx.x % tiles * (long long)SIZE;
  const int left = int(N - i_n < SIZE ? N - i_n : SIZE);
  gX += i_m * stride_x + i_n, gResidual += i_m * stride_residual + i_n, gOut += i_m * stride_out + i_n;
  const Policy policy = evict_last((long long)(sizeof(T) + sizeof(R)) * N * (gridDim.x / tiles));
  uint4 rX[VECS], rR[VECS][EACH];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i = int(threadIdx.x) + v * THREADS;
    if (i >= left / WIDTH) break;
    rX[v] = load_global(reinterpret_cast<const uint4*>(gX) + i, policy);
#pragma unroll
    for (int e = 0; e < EACH; ++e) rR[v][e] = load_global(reinterpret_cast<uint4*>(gResidual) + i * EACH + e, policy);
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i = int(threadIdx.x) + v * THREADS;
    if (i >= left / WIDTH) break;
    float rA[WIDTH], rB[PART];
    unpack<T>(rA, rX[v]);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      unpack<R>(rB, rR[v][e]);
#pragma unroll
      for (int k = 0; k < PART; ++k) rB[k] += rA[e * PART + k];
      pack<R>(rR[v][e], rB);
      __stwb(reinterpret_cast<uint4*>(gOut) + i * EACH + e, rR[v][e]);
    }
  }
  const int last = left / WIDTH * WIDTH + int(threadIdx.x);  // fewer than WIDTH, of the last tile alone
  if (last < left) gOut[last] = R(float(gX[last]) + float(gResidual[last]));
}
