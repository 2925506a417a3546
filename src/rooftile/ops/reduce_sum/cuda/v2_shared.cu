// adds: a block adds its 256 elements in a tree in shared memory and writes one number; the numbers are added the same way, level by level
// costs: 8 steps with a barrier each for 256 elements, in which half of the threads that were left have nothing more to do
// loses when: always to the next ones: it waits at barriers more than it loads, and a level has 256 times fewer elements, no fewer
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> struct Accumulator { using type = float; };
template <> struct Accumulator<double> { using type = double; };

// gOut[b] = the sum of the elements of block b. The launcher calls it again on its results, until one is left.
template <typename From, typename To>
__global__ void __launch_bounds__(256) sum(To* __restrict__ gOut, const From* __restrict__ gX, long long N) {
  using Real = typename Accumulator<From>::type;
  const int i = threadIdx.x;
  const long long i_x = blockIdx.x * (long long)blockDim.x + i;
  __shared__ Real sSum[256];
  sSum[i] = i_x < N ? static_cast<Real>(gX[i_x]) : Real(0);
  for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (i < distance) sSum[i] += sSum[i + distance];
  }
  if (i == 0) gOut[blockIdx.x] = static_cast<To>(sSum[0]);
}
