// adds: the row as float32 in registers, so that each exponential is made once and each element of the mask looked at once, asked for with the row
// costs: 8 registers a vector of 16-bit elements, twice what waiting in shared memory as it came asks of a multiprocessor; two reductions instead of one
// loses when: instructions are not what decides: without a mask and hidden columns 20 of them an element take less time than its bytes
#include "rooftile/softmax.cuh"

using namespace rooftile;

// LANES neighbouring threads a row, each VECS vectors of 16 bytes of it: a part of a warp, or the block.
template <typename T, bool MASK, bool CAUSAL, int LANES, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    masked_softmax(T* __restrict__ gOut, const T* __restrict__ gX, const unsigned char* __restrict__ gMask, long long M, int N, long long stride_x,
                   int H, int L, long long mask_b, long long mask_h, long long mask_t, float scale) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = LANES * WIDTH;  // elements from a vector of a thread to its next
  __shared__ float sPartial[2][2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long i_m = blockIdx.x * (long long)(THREADS / LANES) + threadIdx.x / LANES;
  Scores<MASK, CAUSAL> form{N, H, L, gMask, mask_b, mask_h, mask_t, scale};
  form.open(min(i_m, M - 1));
  const int left = i_m < M ? N - i_l : 0, seen = i_m < M ? form.end() - i_l : 0;
  const T* gRow = gX + i_m * stride_x + i_l;
  uint4 rX[VECS];
  uint2 rMay[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < seen) load_now(rX[v], reinterpret_cast<const uint4*>(gRow + v * NEXT)), rMay[v] = form.template ask<WIDTH>(i_l + v * NEXT);
  float rE[VECS][WIDTH], max = minus_infinity(), sum = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rE[v][k] = 0.0f;
    if (v * NEXT >= seen) continue;
    unpack<T>(rE[v], rX[v]);
    form.hide(rE[v], i_l + v * NEXT, rMay[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rE[v][k]);
  }
  // exp(scale x - scale max), a fused multiply-add and an exponential: a scale is above 0, so that the largest x is the largest score. What the rounding of
  // scale max adds to every exponent alike falls out of the quotient, but where it is large, or scale max is not finite.
  max = base_of(row_reduce<LANES>(max, Larger(), sPartial[0], 0));
  const float by = scale * 1.4426950408889634f, base = max * by;
  const auto exponentials = [&](const auto& exponent) {
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT >= seen) continue;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rE[v][k] = exp2_fast(exponent(rE[v][k]));
    }
  };
  if (fabsf(base) < 1048576.0f) exponentials([&](float x) { return fmaf(x, by, -base); });
  else exponentials([&](float x) { return (x - max) * by; });
  sum = row_reduce<LANES>(sum, Sum(), sPartial[1], 0);
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;  // nothing to look at: zeros
  T* gTo = gOut + i_m * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rE[v][k] *= factor;
    pack<T>(rX[v], rE[v]);
    __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rX[v]);
  }
}
