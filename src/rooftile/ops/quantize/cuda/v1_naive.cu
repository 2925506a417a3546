// adds: nothing, this is where the ladder begins: 256 threads a block of elements, read twice an element at a time, maxima halved in shared memory
// costs: 9 barriers a scale and 2 or 4 bytes an access; one scale for everything is three launches, the second of one block
// loses when: always; most for 1x128, where half of the threads have no element and the barriers are all there is
#include "rooftile/quantize.cuh"

using namespace rooftile;

struct Ends {
  float low, high;
};
__device__ Ends tree(Ends at) {
  __shared__ float sLow[256], sHigh[256];
  sLow[threadIdx.x] = at.low, sHigh[threadIdx.x] = at.high;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sLow[threadIdx.x] = fminf(sLow[threadIdx.x], sLow[threadIdx.x + half]);
      sHigh[threadIdx.x] = fmaxf(sHigh[threadIdx.x], sHigh[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return {fmaxf(sLow[0], -HUGEST), fminf(sHigh[0], HUGEST)};
}

// A scale for each rows x columns of x; a block of threads to one.
template <typename T, typename Q>
__global__ void blocks(Q* __restrict__ gOut, float* __restrict__ gScale, const T* __restrict__ gX, long long M, long long N, long long stride,
                       int rows, long long columns, long long across, bool power) {
  const long long i_m = blockIdx.x / across * rows, i_n = blockIdx.x % across * columns;
  const long long high = M - i_m < rows ? M - i_m : rows, wide = N - i_n < columns ? N - i_n : columns;
  Ends at = {0.0f, 0.0f};
  for (long long i = threadIdx.x; i < high * wide; i += 256) at.high = fmaxf(at.high, fabsf(float(gX[(i_m + i / wide) * stride + i_n + i % wide])));
  const float scale = scale_of<Q>(tree(at).high, power);
  const Symmetric<Q> how = {inverse_of(scale)};
  for (long long i = threadIdx.x; i < high * wide; i += 256)
    put_one(gOut + (i_m + i / wide) * N + i_n + i % wide, float(gX[(i_m + i / wide) * stride + i_n + i % wide]), how);
  if (threadIdx.x == 0) gScale[blockIdx.x] = scale;
}

// The smallest and the largest element that each block meets, 0 among them: gEnds [2, blocks].
template <typename T> __global__ void extremes(float* __restrict__ gEnds, const T* __restrict__ gX, long long total) {
  Ends at = {0.0f, 0.0f};
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < total; i += gridDim.x * 256ll)
    at.low = fminf(at.low, float(gX[i])), at.high = fmaxf(at.high, float(gX[i]));
  at = tree(at);
  if (threadIdx.x == 0) gEnds[blockIdx.x] = at.low, gEnds[gridDim.x + blockIdx.x] = at.high;
}

// One block: the scale, and of an affine code its zero, out of the ends of `parts` blocks.
template <typename Q, bool AFFINE>
__global__ void decide(float* __restrict__ gScale, int* __restrict__ gZero, const float* __restrict__ gEnds, int parts, bool power) {
  Ends at = {0.0f, 0.0f};
  for (int i = threadIdx.x; i < parts; i += 256) at.low = fminf(at.low, gEnds[i]), at.high = fmaxf(at.high, gEnds[parts + i]);
  at = tree(at);
  if (threadIdx.x) return;
  const float scale = AFFINE ? affine_scale(at.low, at.high) : scale_of<Q>(fmaxf(at.high, -at.low), power);
  *gScale = scale;
  if (AFFINE) *gZero = int(affine_zero(at.low, inverse_of(scale)));
}

template <typename T, typename Q, bool AFFINE>
__global__ void whole(Q* __restrict__ gOut, const T* __restrict__ gX, const float* __restrict__ gScale, const int* __restrict__ gZero, long long total) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= total) return;
  if constexpr (AFFINE) {
    put_one(gOut + i, float(gX[i]), Affine{inverse_of(*gScale), float(*gZero)});
  } else {
    put_one(gOut + i, float(gX[i]), Symmetric<Q>{inverse_of(*gScale)});
  }
}

// A thread an element; of blocks that span an axis `rows` or `columns` is all of it.
template <typename Q, typename T, bool SHIFTED>
__global__ void dequantize(T* __restrict__ gOut, const Q* __restrict__ gX, const float* __restrict__ gScale, const int* __restrict__ gZero,
                           long long M, long long N, long long stride, long long rows, long long columns) {
  const long long i = blockIdx.x * 256ll + threadIdx.x, i_m = i / N, i_n = i % N;
  if (i >= M * N) return;
  const float x = opened<Q>(*reinterpret_cast<const unsigned char*>(gX + i_m * stride + i_n)).x;
  const float scale = gScale[i_m / rows * ceil_div(N, columns) + i_n / columns];
  gOut[i] = T(__fmul_rn(SHIFTED ? __fsub_rn(x, float(*gZero)) : x, scale));
}
