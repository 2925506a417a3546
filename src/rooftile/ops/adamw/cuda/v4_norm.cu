// adds: the norm's first rung: blocks that stay and take chunk after chunk of any tensor, an element an access
// costs: a partial sum a block, and a launch of one block that adds them (root.cu)
// loses when: always, by the requests, and by one element of each thread in flight
#include "rooftile/reduce.cuh"
#include "rooftile/tables.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using namespace rooftile;

template <typename T>
__global__ void squares(float* gPartial, const long long* gTable, const long long* gLayout, int count, int chunks, int chunk) {
  float sum = 0.0f;
  for (int number = blockIdx.x; number < chunks; number += gridDim.x) {
    const Chunk c = chunk_of(gLayout, count, number, chunk);
    const T* gX = tensor_of<const T>(gTable, c.t);
    const long long end = min(c.first + chunk, c.size);
    float part = 0.0f;  // of a chunk by itself: a long sum is a short one of short ones
    for (long long i = c.first + threadIdx.x; i < end; i += blockDim.x) part += float(gX[i]) * float(gX[i]);
    sum += part;
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gPartial[blockIdx.x] = sum;
}
