// adds: 16 bytes an access, VECS of each tensor asked for before the first is used, and past the caches, which nothing here comes back to
// costs: rows must begin at multiples of 16 bytes; the last few elements of an only row go one by one
// loses when: N is small: an eighth as many threads have work
#include "rooftile/activation.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

// What is left of a row for the tile of this block, in elements, and where it begins.
struct Tile {
  long long i_m, i_n;
  int left;
};
template <int SIZE> ROOFTILE_DEVICE Tile tile_of(long long N, int tiles) {
  const long long i_n = blockIdx.x % tiles * (long long)SIZE, rest = N - i_n;
  return {blockIdx.x / tiles, i_n, int(rest < SIZE ? rest : SIZE)};
}

template <typename T, typename Act, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS) gated(T* __restrict__ gOut, const T* __restrict__ gGate, const T* __restrict__ gUp, long long N,
                                                 int tiles, long long stride_gate, long long stride_up) {
  constexpr int WIDTH = 16 / sizeof(T);
  const Tile at = tile_of<VECS * THREADS * WIDTH>(N, tiles);
  gGate += at.i_m * stride_gate + at.i_n, gUp += at.i_m * stride_up + at.i_n, gOut += at.i_m * N + at.i_n;
  const Policy policy = evict_last(2ll * sizeof(T) * N * (gridDim.x / tiles));
  uint4 rGate[VECS], rUp[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i = int(threadIdx.x) + v * THREADS;
    if (i >= at.left / WIDTH) break;
    rGate[v] = load_global(reinterpret_cast<const uint4*>(gGate) + i, policy), rUp[v] = load_global(reinterpret_cast<const uint4*>(gUp) + i, policy);
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i = int(threadIdx.x) + v * THREADS;
    if (i >= at.left / WIDTH) break;
    float rG[WIDTH], rU[WIDTH];
    unpack<T>(rG, rGate[v]), unpack<T>(rU, rUp[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rG[k] = Act::value(rG[k]) * rU[k];
    pack<T>(rGate[v], rG);
    __stwb(reinterpret_cast<uint4*>(gOut) + i, rGate[v]);
  }
  const int last = at.left / WIDTH * WIDTH + int(threadIdx.x);  // fewer than WIDTH, of the last tile alone
  if (last < at.left) gOut[last] = T(Act::value(float(gGate[last])) * float(gUp[last]));
}

// AGAIN: and the result itself, over dout.
template <typename T, typename Act, bool AGAIN, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    gated_backward(T* __restrict__ gDgate, T* __restrict__ gDup, T* __restrict__ gDout, const T* __restrict__ gGate,
                   const T* __restrict__ gUp, long long N, int tiles, long long stride_dout, long long stride_gate, long long stride_up,
                   long long stride_dgate, long long stride_dup) {
  constexpr int WIDTH = 16 / sizeof(T);
  const Tile at = tile_of<VECS * THREADS * WIDTH>(N, tiles);
  gDout += at.i_m * stride_dout + at.i_n, gGate += at.i_m * stride_gate + at.i_n, gUp += at.i_m * stride_up + at.i_n;
  gDgate += at.i_m * stride_dgate + at.i_n, gDup += at.i_m * stride_dup + at.i_n;
  const Policy policy = evict_last(3ll * sizeof(T) * N * (gridDim.x / tiles));
  uint4 rDout[VECS], rGate[VECS], rUp[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i = int(threadIdx.x) + v * THREADS;
    if (i >= at.left / WIDTH) break;
    rDout[v] = load_global(reinterpret_cast<uint4*>(gDout) + i, policy);
    rGate[v] = load_global(reinterpret_cast<const uint4*>(gGate) + i, policy), rUp[v] = load_global(reinterpret_cast<const uint4*>(gUp) + i, policy);
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i = int(threadIdx.x) + v * THREADS;
    if (i >= at.left / WIDTH) break;
    float rD[WIDTH], rG[WIDTH], rU[WIDTH];
    unpack<T>(rD, rDout[v]), unpack<T>(rG, rGate[v]), unpack<T>(rU, rUp[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
      const Point p = Act::point(rG[k]);
      const float up = rU[k];
      rG[k] = rD[k] * up * p.d, rU[k] = rD[k] * p.y, rD[k] = p.y * up;
    }
    pack<T>(rGate[v], rG), pack<T>(rUp[v], rU);
    __stwb(reinterpret_cast<uint4*>(gDgate) + i, rGate[v]), __stwb(reinterpret_cast<uint4*>(gDup) + i, rUp[v]);
    if (AGAIN) {
      pack<T>(rDout[v], rD);
      __stwb(reinterpret_cast<uint4*>(gDout) + i, rDout[v]);
    }
  }
  const int last = at.left / WIDTH * WIDTH + int(threadIdx.x);
  if (last < at.left) {
    const Point p = Act::point(float(gGate[last]));
    const float dout = float(gDout[last]);
    gDgate[last] = T(dout * float(gUp[last]) * p.d), gDup[last] = T(dout * p.y);
    if (AGAIN) gDout[last] = T(p.y * float(gUp[last]));
  }
}
