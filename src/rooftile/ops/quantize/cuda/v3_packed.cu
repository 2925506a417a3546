// adds: the unit that converts to 16-bit integers rounds, keeps within range and makes 0 of NaN; bytes are packed with saturation, two an instruction
// costs: that unit takes 16 elements a cycle and multiprocessor, half of the time that their bytes take
// loses when: x is so small that the second launch is what it costs
#include "rooftile/quantize.cuh"

using namespace rooftile;

// x to the nearest whole number, ties to even, kept within 16 bits; of NaN 0.
__device__ __forceinline__ int nearest(float x) {
#ifdef ROOFTILE_SIMULATOR
  return x == x ? int(rintf(within(x, -32768.0f, 32767.0f))) : 0;
#else
  short n;
  asm("cvt.rni.s16.f32 %0, %1;" : "=h"(n) : "f"(x));
  return n;
#endif
}

// a and b kept within 8 bits as the two lowest bytes, and above them those of `above`.
__device__ __forceinline__ unsigned packed(int a, int b, unsigned above) {
#ifdef ROOFTILE_SIMULATOR
  return unsigned(max(-128, min(a, 127)) & 0xff) | unsigned(max(-128, min(b, 127)) & 0xff) << 8 | above << 16;
#else
  unsigned both;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(both) : "r"(b), "r"(a), "r"(above));
  return both;
#endif
}

struct Steps {
  float inverse;
  int zero;
  __device__ __forceinline__ int one(float x) const { return nearest(__fmul_rn(x, inverse)) + zero; }
  __device__ __forceinline__ unsigned four(const float* rF) const {
    return packed(one(rF[0]), one(rF[1]), packed(one(rF[2]), one(rF[3]), 0));
  }
};
__device__ __forceinline__ unsigned bytes_of(const float (&rF)[4], const Steps& how) { return how.four(rF); }
__device__ __forceinline__ uint2 bytes_of(const float (&rF)[8], const Steps& how) { return {how.four(rF), how.four(rF + 4)}; }

// A block's vectors are asked for before it reduces the ends of `parts` blocks; the first block takes the last of x, which is still in the L2.
template <typename T, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1536 / THREADS)
    whole(signed char* __restrict__ gOut, float* __restrict__ gScale, int* __restrict__ gZero, const T* __restrict__ gX, const float* __restrict__ gEnds,
          int parts, long long total) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const long long first = (gridDim.x - 1 - blockIdx.x) * (long long)(THREADS * VECS * WIDTH), left = total - first;
  const int i_t = threadIdx.x * WIDTH;
  const unsigned zero_bits = hidden_zero(parts);
  uint4 rX[VECS] = {};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (i_t + (v * THREADS + 1) * WIDTH <= left) rX[v] = __ldca(reinterpret_cast<const uint4*>(gX + first + i_t + v * THREADS * WIDTH));
  float low = 0.0f, high = 0.0f;
  for (int i = threadIdx.x; i < parts; i += THREADS) low = fminf(low, __ldg(gEnds + i)), high = fmaxf(high, __ldg(gEnds + parts + i));
  high = row_reduce<THREADS>(high, Larger(), sPartial, 0);
  low = -row_reduce<THREADS>(-low, Larger(), sPartial, 1);
  const float scale = affine_scale(low, high), inverse = inverse_of(scale);
  const Steps how = {inverse, int(affine_zero(low, inverse))};
  if (blockIdx.x == 0 && threadIdx.x == 0) *gScale = scale, *gZero = how.zero;
  float rF[WIDTH];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (i_t + (v * THREADS + 1) * WIDTH > left) break;
    stay_packed(rX[v], zero_bits);
    unpack<T>(rF, rX[v]);
    __stwb(reinterpret_cast<Bytes<WIDTH>*>(gOut + first + i_t + v * THREADS * WIDTH), bytes_of(rF, how));
  }
  const long long last = total / WIDTH * WIDTH + threadIdx.x;  // fewer than WIDTH
  if (blockIdx.x == 0 && last < total) gOut[last] = (signed char)(packed(how.one(float(gX[last])), 0, 0) & 0xff);
}
