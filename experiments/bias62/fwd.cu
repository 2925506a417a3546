// lab: few elements: WIDTH of a row a thread, a grid of two axes and no division; the fewest instructions
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T, typename B, int WIDTH>
__global__ void __launch_bounds__(256)
    forward(T* __restrict__ gOut, const T* __restrict__ gX, const B* __restrict__ gBias, const unsigned char* __restrict__ gMask,
            const T* __restrict__ gResidual, int N, float scale, long long stride_x, long long stride_mask, long long stride_residual) {
  const int i_n = (blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
  const long long i_m = blockIdx.y;
  if (i_n >= N) return;
  Vec<T, WIDTH> rX, rR;
  Vec<B, WIDTH> rB;
  Vec<unsigned char, WIDTH> rMask;
  load(rX, gX + i_m * stride_x + i_n);
  load(rR, gResidual + i_m * stride_residual + i_n);
  load(rMask, gMask + i_m * stride_mask + i_n);
  load(rB, gBias + i_n);
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) rX[k] = T((rMask[k] ? (float(rX[k]) + float(rB[k])) * scale : 0.0f) + float(rR[k]));
  store(gOut + i_m * N + i_n, rX);
}
