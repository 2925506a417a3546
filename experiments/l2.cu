// Does what was read as evict_last survive a flush?
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
using namespace rooftile;
__global__ void __launch_bounds__(512) read_last(float* gOut, const float* gX, long long N) {
  Policy last;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  unsigned s = 0;
  for (long long i = blockIdx.x * 512ll + threadIdx.x; i < N / 4; i += gridDim.x * 512ll) {
    const uint4 r = load_global(reinterpret_cast<const uint4*>(gX) + i, last);
    s += r.x ^ r.y ^ r.z ^ r.w;
  }
  if (s == 12345u) gOut[0] = 1.0f;
}
__global__ void __launch_bounds__(512) read_plain(float* gOut, const float* gX, long long N) {
  unsigned s = 0;
  for (long long i = blockIdx.x * 512ll + threadIdx.x; i < N / 4; i += gridDim.x * 512ll) {
    uint4 r;
    load_now(r, reinterpret_cast<const uint4*>(gX) + i);
    s += r.x ^ r.y ^ r.z ^ r.w;
  }
  if (s == 12345u) gOut[0] = 1.0f;
}
__global__ void __launch_bounds__(512) demote(const float* gX, long long N) {
  for (long long i = blockIdx.x * 512ll + threadIdx.x; i < N / 32; i += gridDim.x * 512ll)
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(gX + i * 32) : "memory");
}
