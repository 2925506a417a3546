// adds: 16 bytes an access, and FLIGHT of them asked for before the first is used
// costs: rows must begin at multiples of 16 bytes; FLIGHT vectors in registers, 4 each
// loses when: a row is under 16 bytes a thread; and still the row is read three times, from L1 or L2 where it has stayed there
#include "rooftile/rows.cuh"

using namespace rooftile;

// f(rX, i_v) for each of this thread's vectors of the row
template <int FLIGHT, typename T, typename F>
__device__ __forceinline__ void walk(const T* gRow, int V, F f) {
  constexpr int WIDTH = 16 / sizeof(T);
  for (int first = threadIdx.x; first < V; first += FLIGHT * blockDim.x) {
    uint4 rX[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; ++k) {
      const int i_v = first + k * blockDim.x;
      if (i_v < V) rX[k] = reinterpret_cast<const uint4*>(gRow)[i_v];
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; ++k) {
      const int i_v = first + k * blockDim.x;
      float rF[WIDTH];
      unpack<T>(rF, rX[k]);
      if (i_v < V) f(rF, i_v);
    }
  }
}

template <typename T, int FLIGHT>
__global__ void softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T);
  const T* gRow = gX + blockIdx.x * stride_x;
  T* gTo = gOut + blockIdx.x * (long long)N;
  const int V = N / WIDTH;
  float max = -__int_as_float(0x7f800000), sum = 0.0f;
  walk<FLIGHT>(gRow, V, [&](const float(&rF)[WIDTH], int) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rF[k]);
  });
  max = block_reduce(max, Max());
  walk<FLIGHT>(gRow, V, [&](const float(&rF)[WIDTH], int) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += exp_fast(rF[k] - max);
  });
  const float scale = 1.0f / block_reduce(sum, Sum());
  walk<FLIGHT>(gRow, V, [&](const float(&rF)[WIDTH], int i_v) {
    float rOut[WIDTH];
    uint4 rTo;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rOut[k] = exp_fast(rF[k] - max) * scale;
    pack<T>(rTo, rOut);
    reinterpret_cast<uint4*>(gTo)[i_v] = rTo;
  });
}
