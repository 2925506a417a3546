#include "rooftile/early.cuh"

using namespace rooftile;

// Late on purpose: whoever may stand by is there long before the number is.
__global__ void write(float* gOut, float value, long long cycles) {
  let_next_stand_by();
#ifndef ROOFTILE_SIMULATOR
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
#endif
  if (threadIdx.x == 0) *gOut = value;
}

__global__ void ROOFTILE_EARLY __launch_bounds__(32) read(float* gOut, const float* gX) {
  earlier_done();
  if (threadIdx.x == 0) *gOut = *gX;
}

// Does not wait.
__global__ void __launch_bounds__(32) ROOFTILE_EARLY read_too_soon(float* gOut, const float* gX) {
  if (threadIdx.x == 0) *gOut = *reinterpret_cast<const volatile float*>(gX);
}
