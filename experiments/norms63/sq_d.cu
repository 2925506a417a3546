// adds: 16 bytes an access, a chunk's VECS of them asked for at once, and the next chunk looked up while they are on their way
// costs: every tensor must begin at a multiple of 16 bytes; a chunk is THREADS x VECS vectors
// loses when: tensors are much smaller than a chunk: most threads of their blocks have nothing to read
#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/tables.cuh"

using namespace rooftile;
// Where it is written: left to itself the compiler asks for the next when the last has been added.
ROOFTILE_DEVICE void load_ordered(uint4& rX, const uint4* gX, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  rX = *gX;
#else
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w) : "l"(__cvta_generic_to_global(gX)), "l"(policy));
#endif
}

template <typename T, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    squares(float* gPartial, const long long* gTable, const long long* gLayout, int count, int chunks, int chunk) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  const Policy policy = evict_first((long long)chunks * chunk * int(sizeof(T)));
  float sum = 0.0f;
  let_next_stand_by();  // who takes the root
  for (long long at = blockIdx.x; at < chunks; at += WARP * (long long)gridDim.x) {
    const long long mine = at + lane() * (long long)gridDim.x;  // of this block's next 32 chunks each lane looks one up
    unsigned long long address = 0;
    int size = 0;
    if (mine < chunks) {
      const Chunk c = chunk_of(gLayout, count, mine, chunk);
      address = reinterpret_cast<unsigned long long>(tensor_of<const T>(gTable, c.t) + c.first), size = int(min(c.size - c.first, (long long)chunk));
    }
    const int turns = int(min((long long)WARP, (chunks - 1 - at) / gridDim.x + 1));
    const auto whole = [&](int i) { return __shfl_sync(ALL_LANES, size, i) == VECS * NEXT; };
    const auto ask = [&](uint4(&rX)[VECS], int i) {
      const T* gFrom = reinterpret_cast<const T*>(__shfl_sync(ALL_LANES, address, i)) + threadIdx.x * WIDTH;
      const int left = __shfl_sync(ALL_LANES, size, i) - int(threadIdx.x) * WIDTH;
      if (whole(i)) {
#pragma unroll
        for (int v = 0; v < VECS; ++v) load_ordered(rX[v], reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy);
      } else {
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
          rX[v] = {0, 0, 0, 0};
          if (v * NEXT + WIDTH <= left) load_ordered(rX[v], reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy);
        }
      }
    };
    const auto add = [&](const uint4(&rX)[VECS], int i) {
      float part = 0.0f;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float rF[WIDTH];
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) part += rF[k] * rF[k];
      }
      const int all = __shfl_sync(ALL_LANES, size, i), rest = all % WIDTH;  // elements behind the last whole vector, a thread each
      if (rest) {
        const T* gRest = reinterpret_cast<const T*>(__shfl_sync(ALL_LANES, address, i)) + all - rest;
        if (threadIdx.x < rest) part += float(gRest[threadIdx.x]) * float(gRest[threadIdx.x]);
      }
      sum += part;
    };
    uint4 rX[VECS], rY[VECS];
    ask(rX, 0);
    for (int i = 0; i < turns; i += 2) {
      if (i + 1 < turns) ask(rY, i + 1);
      add(rX, i);
      if (i + 2 < turns) ask(rX, i + 2);
      if (i + 1 < turns) add(rY, i + 1);
    }
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gPartial[blockIdx.x] = sum;
}
