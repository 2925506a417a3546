// The device functions of the headers, a thread a number.
#include "rooftile/activation.cuh"
#include "rooftile/philox.cuh"
#include "rooftile/quantize.cuh"

using namespace rooftile;

template <typename Act> __global__ void curve(float* gValue, float* gY, float* gD, const float* gX, int N) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N) return;
  const Point p = Act::point(gX[i]);
  gValue[i] = Act::value(gX[i]), gY[i] = p.y, gD[i] = p.d;
}

__global__ void words(int* gOut, const long long* gCounter, const long long* gSeed, int N) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N) return;
  const Words w = philox(gCounter[i], *gSeed);
  gOut[4 * i] = int(w.a), gOut[4 * i + 1] = int(w.b), gOut[4 * i + 2] = int(w.c), gOut[4 * i + 3] = int(w.d);
}

__global__ void inverses(float* gOut, const float* gScale, int N) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) gOut[i] = inverse_of(gScale[i]);
}
