#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"
// a warp `chunk` rows of 512 bytes; MODE 1: the block's warps walk the block's rows side by side
template <int ROWS, int MODE> __global__ void __launch_bounds__(256, 2) reads(float* gOut, const float* gX, long long M, int chunk) {
  const long long i_w = blockIdx.x * 8ll + threadIdx.x / 32;
  const long long first = MODE ? blockIdx.x * 8ll * chunk + threadIdx.x / 32 * ROWS : i_w * chunk;
  const long long last = MODE ? blockIdx.x * 8ll * chunk + 8ll * chunk : first + chunk;
  const long long end = last < M ? last : M;
  float4 r[ROWS]; float s = 0;
  auto ask = [&](long long i) {
#pragma unroll
    for (int k = 0; k < ROWS; ++k) if (i + k < end) r[k] = __ldcs(reinterpret_cast<const float4*>(gX + (i + k) * 128) + threadIdx.x % 32);
  };
  ask(first);
  for (long long i = first; i < end;) {
#pragma unroll
    for (int k = 0; k < ROWS; ++k) if (i + k < end) s += r[k].x + r[k].y + r[k].z + r[k].w;
    i += MODE ? 8 * ROWS : ROWS;
    ask(i);
  }
  if (s == 12345.678f) gOut[0] = s;
}
