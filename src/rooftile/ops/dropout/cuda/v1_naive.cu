// adds: nothing, this is where the ladder begins: a thread an element, one word of a Philox call of its own
// costs: of the 4 words of a call 3 are thrown away: 58 integer operations an element, with the key's, where memory leaves time for 28 instructions
// loses when: always: the words of the neighbours are computed four times over
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/philox.cuh"

using namespace rooftile;

template <typename T>
__global__ void dropout(T* __restrict__ gOut, const T* __restrict__ gX, const long long* __restrict__ gSeed, long long N,
                        unsigned long long threshold, float scale) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= N) return;
  const Dropout drop{(unsigned long long)*gSeed, threshold, scale};
  gOut[i] = T(drop(float(gX[i]), i));
}
