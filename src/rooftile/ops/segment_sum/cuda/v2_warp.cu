// adds: a warp a segment: its sums stay in registers, one store each, always in the same order; rows of fewer than 32 columns share the warp
// costs: a warp waits for its two offsets, 600 ns, before it can ask for its first row
// loses when: segments are ragged: one that has half of 2^20 rows keeps one warp of 8448 busy while the others are done
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

// LANES lanes lie along the columns, 32 / LANES rows are read at a time.
template <typename T, typename I, int LANES>
__global__ void __launch_bounds__(256) segments(T* __restrict__ gOut, const T* __restrict__ gX, const I* __restrict__ gOffsets, long long M,
                                                long long E, long long N, long long stride, int strips) {
  const long long i_w = blockIdx.x * 8ll + threadIdx.x / 32, i_e = i_w / strips, i_n = i_w % strips * LANES + rooftile::lane() % LANES;
  if (i_e >= E) return;
  const long long begin = gOffsets[i_e], end = gOffsets[i_e + 1];
  const bool right = 0 <= begin && begin <= end && end <= M;
  float sum = 0.0f;
  if (right && i_n < N) {
#pragma unroll 4
    for (long long i_m = begin + rooftile::lane() / LANES; i_m < end; i_m += 32 / LANES) sum += float(gX[i_m * stride + i_n]);
  }
#pragma unroll
  for (int distance = 16; distance >= LANES; distance /= 2) sum += rooftile::shuffle_xor(sum, distance);
  if (rooftile::lane() < LANES && i_n < N) gOut[i_e * N + i_n] = T(right ? sum : __int_as_float(0x7fc00000));
}

// Backward: a warp a segment and a strip of columns. The rows before the first segment and behind the last are two more, whose gradient is zero.
template <typename T, typename I, int WIDTH, int LANES>
__global__ void __launch_bounds__(256) spread(T* __restrict__ gDx, const T* __restrict__ gDout, const I* __restrict__ gOffsets, long long M,
                                              long long E, long long N, long long stride, int strips) {
  const long long i_w = blockIdx.x * 8ll + threadIdx.x / 32, i_e = i_w / strips - 1;
  const long long i_n = (i_w % strips * LANES + rooftile::lane() % LANES) * WIDTH;
  if (i_e > E || i_n >= N) return;
  const long long begin = i_e < 0 ? 0 : gOffsets[i_e], end = i_e == E ? M : gOffsets[i_e + 1];
  rooftile::Vec<T, WIDTH> rDx;
  if (0 <= i_e && i_e < E) rooftile::load(rDx, gDout + i_e * stride + i_n);
  else rooftile::fill(rDx, T(0.0f));
  const long long until = end < M ? end : M;
  for (long long i_m = (begin > 0 ? begin : 0) + rooftile::lane() / LANES; i_m < until; i_m += 32 / LANES)
    rooftile::store_global(gDx + i_m * N + i_n, rDx);
}
