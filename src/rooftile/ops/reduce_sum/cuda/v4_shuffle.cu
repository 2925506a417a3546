// adds: a warp adds its 32 elements in registers, 5 shuffles and no barrier; shared memory carries one number a warp, behind one barrier
// costs: 5 shuffles for 128 bytes (fp32), where a multiprocessor does one warp's shuffle a cycle and gets 19 bytes from the memory
// loses when: N is large: a thread still loads one element, 4 or 2 bytes, then waits for its block
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

template <typename T> struct Accumulator { using type = float; };
template <> struct Accumulator<double> { using type = double; };

// gOut[b] = the sum of the elements of block b. The launcher calls it again on its results, until one is left.
template <typename From, typename To>
__global__ void __launch_bounds__(1024) sum(To* __restrict__ gOut, const From* __restrict__ gX, long long N) {
  using Real = typename Accumulator<From>::type;
  const int i = threadIdx.x;
  const long long i_x = blockIdx.x * (long long)blockDim.x + i;
  __shared__ Real sSum[WARP];
  Real rSum = warp_reduce(i_x < N ? static_cast<Real>(gX[i_x]) : Real(0), Sum());
  if (lane() == 0) sSum[warp()] = rSum;
  __syncthreads();
  if (warp() == 0) {
    rSum = warp_reduce(i < warps() ? sSum[i] : Real(0), Sum());
    if (i == 0) gOut[blockIdx.x] = static_cast<To>(rSum);
  }
}
