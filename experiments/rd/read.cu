// adds: x
// costs: x
// loses when: x
#include "rooftile/passing.cuh"
#include "rooftile/vec.cuh"
using namespace rooftile;
template <int P> ROOFTILE_DEVICE uint4 get(const uint4* g, Policy first) {
  if constexpr (P == 0) return __ldca(g);
  else if constexpr (P == 1) return __ldcs(g);
  else if constexpr (P == 2) return load_global(g, first);
  else return __ldcg(g);
}
ROOFTILE_DEVICE void use(float& s, uint4 v) { s += __uint_as_float(v.x) + __uint_as_float(v.y) + __uint_as_float(v.z) + __uint_as_float(v.w); }
// MODE 0: grid stride, a block EACH x 4 KB side by side at a time. 1: a block has `share` vectors side by side, walks them EACH x 4 KB at a time.
// 2: a block has `share` side by side, each warp its eighth, EACH x 512 B at a time
template <int MODE, int P, int EACH>
__global__ void __launch_bounds__(256) rd(float* gOut, const uint4* gX, long long n, long long share) {
  Policy first = evict_first(1);
  float s = 0;
  uint4 v[EACH];
  if (MODE == 0) {
    for (long long i = blockIdx.x * (256ll * EACH) + threadIdx.x; i < n; i += gridDim.x * (256ll * EACH)) {
#pragma unroll
      for (int k = 0; k < EACH; ++k) v[k] = get<P>(gX + i + k * 256, first);
#pragma unroll
      for (int k = 0; k < EACH; ++k) use(s, v[k]);
    }
  } else {
    const long long a = MODE == 1 ? blockIdx.x * share + threadIdx.x : blockIdx.x * share + (threadIdx.x / 32) * (share / 8) + threadIdx.x % 32;
    const long long len = MODE == 1 ? share : share / 8;
    constexpr int W = MODE == 1 ? 256 : 32;
    for (long long i = 0; i < len; i += W * EACH) {
#pragma unroll
      for (int k = 0; k < EACH; ++k) if (a + i + k * W < n) v[k] = get<P>(gX + a + i + k * W, first);
#pragma unroll
      for (int k = 0; k < EACH; ++k) if (a + i + k * W < n) use(s, v[k]);
    }
  }
  if (s == 1234.5f) gOut[0] = s;
}
