// How many floats from 2^-126 to 2^122 have another inverse by two Newton steps than by __fdiv_rn.
#include "rooftile/check.cuh"

__global__ void __launch_bounds__(256) differ(long long* gBad) {
  long long bad = 0;
  for (unsigned u = 0x00800000u + blockIdx.x * 256u + threadIdx.x; u < 0x7c800000u; u += gridDim.x * 256u) {
    const float scale = __uint_as_float(u);
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(scale));
    r = __fmaf_rn(r, __fmaf_rn(-scale, r, 1.0f), r);
    r = __fmaf_rn(r, __fmaf_rn(-scale, r, 1.0f), r);
    bad += __float_as_uint(r) != __float_as_uint(__fdiv_rn(1.0f, scale));
  }
  if (bad) atomicAdd(reinterpret_cast<unsigned long long*>(gBad), (unsigned long long)bad);
}
