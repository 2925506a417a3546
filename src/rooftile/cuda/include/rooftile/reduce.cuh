// Reductions over a warp and over a block; every thread gets the result. The order of the operands is fixed, so results repeat.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

struct Sum {
  template <typename T> ROOFTILE_DEVICE T operator()(T a, T b) const { return a + b; }
};
struct Max {
  template <typename T> ROOFTILE_DEVICE T operator()(T a, T b) const { return a < b ? b : a; }
  ROOFTILE_DEVICE float operator()(float a, float b) const { return a != a ? a : b != b ? b : fmaxf(a, b); }  // a NaN stays one
};
struct Min {
  template <typename T> ROOFTILE_DEVICE T operator()(T a, T b) const { return b < a ? b : a; }
  ROOFTILE_DEVICE float operator()(float a, float b) const { return a != a ? a : b != b ? b : fminf(a, b); }
};

// Softmax in one pass: the largest x so far, and the sum of exp(x - max). Starts as {-inf, 0}.
struct Online {
  float max, sum;
};
ROOFTILE_DEVICE Online online_start() { return {-__int_as_float(0x7f800000), 0.0f}; }
struct Combine {  // of -inf alone the sum is 0 and not NaN; +inf and NaN give NaN, as softmax does
  ROOFTILE_DEVICE Online operator()(Online a, Online b) const {
    float m = Max()(a.max, b.max);
    if (m == -__int_as_float(0x7f800000)) return {m, 0.0f};
    return {m, a.sum * __expf(a.max - m) + b.sum * __expf(b.max - m)};
  }
};
ROOFTILE_DEVICE void online_add(Online& rS, float x) { rS = Combine()(rS, Online{x, 1.0f}); }

template <typename T> ROOFTILE_DEVICE T shuffle_xor(T value, int distance) { return __shfl_xor_sync(ALL_LANES, value, distance); }
ROOFTILE_DEVICE Online shuffle_xor(Online s, int distance) {
  return {__shfl_xor_sync(ALL_LANES, s.max, distance), __shfl_xor_sync(ALL_LANES, s.sum, distance)};
}

// Over groups of LANES neighbouring lanes. All lanes of the warp must come.
template <int LANES = WARP, typename T, typename Op> ROOFTILE_DEVICE T warp_reduce(T value, Op op) {
  static_assert(power_of_two(LANES) && LANES <= WARP, "a group is 1, 2, 4, 8, 16 or 32 lanes");
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) value = op(value, shuffle_xor(value, distance));
  return value;
}

// Over the block, whose size must be a multiple of 32. All threads must come. The first barrier lets the call before it be read to the end.
template <typename T, typename Op> ROOFTILE_DEVICE T block_reduce(T value, Op op) {
  __shared__ T sPartial[WARP];
  value = warp_reduce(value, op);
  const int n = warps();
  if (n == 1) return value;
  __syncthreads();
  if (lane() == 0) sPartial[warp()] = value;
  __syncthreads();
  value = sPartial[0];
  for (int i = 1; i < n; ++i) value = op(value, sPartial[i]);
  return value;
}

}  // namespace rooftile
