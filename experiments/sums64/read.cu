#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/early.cuh"
using namespace rooftile;
// HOW 0: a warp a stretch of `tiles` tiles of 4 KB; 1: tiles dealt in turn to all warps; 2: a block of 8 warps `tiles` tiles a warp, neighbours in turn within the block
template <int HOW> __global__ void __launch_bounds__(256, 3) read(float* gOut, const float* gX, long long M, int tiles) {
  const Policy policy = evict_first(M * 4);
  const long long all = M / 1024, w = blockIdx.x * 8ll + warp(), count = gridDim.x * 8ll;
  const long long first = HOW == 0 ? w * tiles : HOW == 1 ? w : blockIdx.x * 8ll * tiles + warp(), step = HOW == 0 ? 1 : HOW == 1 ? count : 8;
  const long long end = HOW == 0 ? min(first + tiles, all) : HOW == 1 ? all : min((blockIdx.x + 1) * 8ll * tiles, all);
  uint4 r[8];
  float sum = 0;
  const uint4* g = reinterpret_cast<const uint4*>(gX) + lane();
  if (first < end)
#pragma unroll
    for (int k = 0; k < 8; ++k) r[k] = load_global(g + first * 256 + k * 32, policy);
#pragma unroll 1
  for (long long t = first; t < end; t += step) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sum += __uint_as_float(r[k].x) + __uint_as_float(r[k].y) + __uint_as_float(r[k].z) + __uint_as_float(r[k].w);
      if (t + step < end) r[k] = load_global(g + (t + step) * 256 + k * 32, policy);
    }
  }
  sum = warp_reduce(sum, Sum());
  if (lane() == 0) gOut[w] = sum;
}
