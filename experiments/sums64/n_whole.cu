// adds: 16 bytes an access, a chunk's VECS of them asked for at once, and the next chunk looked up while they are on their way
// costs: every tensor must begin at a multiple of 16 bytes; a chunk is THREADS x VECS vectors
// loses when: tensors are much smaller than a chunk: most threads of their blocks have nothing to read
#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;

// A word of the layout that stands where it is asked for: the compiler would have it stand where it is used, behind a wait for the chunk's numbers.
ROOFTILE_DEVICE long long ask(const long long* g) {
#ifdef ROOFTILE_SIMULATOR
  return *g;
#else
  long long x;
  asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(x) : "l"(g));
  return x;
#endif
}

constexpr int MOST = 512;  // tensors whose places a block has at hand

template <typename T, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    squares(float* gPartial, const long long* gTable, const long long* gLayout, int count, int chunks, int chunk) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  const Policy policy = evict_first((long long)chunks * chunk * int(sizeof(T)));
  float sum = 0.0f;
  int number = blockIdx.x;
  let_next_stand_by();  // who takes the root
  long long packed = number < chunks ? ask(gLayout + count + number) : 0;
  const bool few = count <= MOST;
  __shared__ long long sSize[MOST], sPlace[MOST];
  if (few) {
    for (int t = threadIdx.x; t < count; t += THREADS) sSize[t] = gLayout[t], sPlace[t] = gTable[t];
    __syncthreads();
  }
  while (number < chunks) {
    const int t = int(packed >> 32);
    const long long first = (packed & 0xffffffffll) * chunk + threadIdx.x * WIDTH, size = few ? sSize[t] : __ldg(gLayout + t);
    const T* gFrom = reinterpret_cast<const T*>(few ? sPlace[t] : __ldg(gTable + t));
    const bool whole = first - threadIdx.x * WIDTH + chunk <= size;  // the same for the block
    uint4 rX[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      rX[v] = {0, 0, 0, 0};
      if (whole || first + v * NEXT + WIDTH <= size) rX[v] = load_global(reinterpret_cast<const uint4*>(gFrom + first + v * NEXT), policy);
    }
    number += gridDim.x;
    if (number < chunks) packed = ask(gLayout + count + number);
    float part = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rF[WIDTH];
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) part += rF[k] * rF[k];
      const long long i = first + v * NEXT;
      if (!whole && i < size && i + WIDTH > size)
#pragma unroll 1
        for (long long k = i; k < size; ++k) part += float(gFrom[k]) * float(gFrom[k]);
    }
    sum += part;
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gPartial[blockIdx.x] = sum;
}
