// adds: the root's launch stands by while squares are added; or a ring that the copy engine fills, chunks of all tensors in flight
// costs: -
// loses when: -
#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/tables.cuh"
#include "rooftile/tma.cuh"

using namespace rooftile;

template <typename T, int VECS, int THREADS, bool FIRST>
__global__ void __launch_bounds__(THREADS)
    squares(float* gPartial, const long long* gTable, const long long* gLayout, int count, int chunks, int chunk) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  const Policy policy = evict_first(FIRST);
  float sum = 0.0f;
  int number = blockIdx.x;
  Chunk c{};
  const T* gX = nullptr;
  const auto look_up = [&]() {
    if (number >= chunks) return;
    c = chunk_of(gLayout, count, number, chunk);
    gX = tensor_of<const T>(gTable, c.t);
  };
  let_next_stand_by();
  look_up();
  while (number < chunks) {
    const long long first = c.first + threadIdx.x * WIDTH, size = c.size;
    const T* gFrom = gX;
    uint4 rX[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      rX[v] = {0, 0, 0, 0};
      const uint4* g = reinterpret_cast<const uint4*>(gFrom + first + v * NEXT);
      if (first + v * NEXT + WIDTH <= size) rX[v] = FIRST ? load_global(g, policy) : __ldg(g);
    }
    number += gridDim.x;
    look_up();
    float part = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rF[WIDTH];
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) part += rF[k] * rF[k];
      const long long i = first + v * NEXT;
      if (i < size && i + WIDTH > size)
        for (long long k = i; k < size; ++k) part += float(gFrom[k]) * float(gFrom[k]);
    }
    sum += part;
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gPartial[blockIdx.x] = sum;
}

// A chunk is 256 x VECS vectors; a warp beside asks for STAGES of them.
template <typename T, int VECS, int STAGES, int BLOCKS>
__global__ void __launch_bounds__(288, BLOCKS) ring(float* gPartial, const long long* gTable, const long long* gLayout, int count, int chunks, int chunk) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(128) uint4 sTile[];
  __shared__ Pipeline<STAGES> sRing;
  __shared__ int sVectors[STAGES];
  let_next_stand_by();
  if (threadIdx.x == 0) pipeline_init(sRing, 1, 8);
  __syncthreads();
  Stage<STAGES> at;
  float sum = 0.0f;
  if (warp() == 8) {
    const Policy policy = evict_first(1);
    // lanes look up 32 chunks at once
    for (int base = blockIdx.x; base < chunks; base += WARP * gridDim.x) {
      const int mine = base + lane() * gridDim.x;
      const T* gX = nullptr;
      int left = 0;
      if (mine < chunks) {
        const Chunk c = chunk_of(gLayout, count, mine, chunk);
        gX = tensor_of<const T>(gTable, c.t) + c.first;
        left = int(min(c.size - c.first, (long long)chunk));
      }
      for (int l = 0; l < WARP && base + l * (int)gridDim.x < chunks; ++l, ++at) {
        if (lane() == l) {
          const int vectors = left / WIDTH;
          producer_acquire(sRing, at);
          sVectors[at.index] = vectors;
          mbarrier_arrive_expect(&sRing.full[at.index], vectors * 16);
          if (vectors) bulk_load(sTile + at.index * 256 * VECS, gX, vectors * 16, &sRing.full[at.index], policy);
          for (int k = vectors * WIDTH; k < left; ++k) sum += float(gX[k]) * float(gX[k]);
        }
        __syncwarp();
      }
    }
  } else {
    for (int number = blockIdx.x; number < chunks; number += gridDim.x, ++at) {
      consumer_wait(sRing, at);
      const int vectors = sVectors[at.index];
      uint4 rX[VECS];
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        rX[v] = {0, 0, 0, 0};
        if (int(threadIdx.x) + v * 256 < vectors) rX[v] = sTile[(at.index * VECS + v) * 256 + threadIdx.x];
      }
      consumer_release(sRing, at);
      float part = 0.0f;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float rF[WIDTH];
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) part += rF[k] * rF[k];
      }
      sum += part;
    }
  }
  sum = block_reduce(sum, Sum());
  if (threadIdx.x == 0) gPartial[blockIdx.x] = sum;
}

ROOFTILE_DEVICE float sum_of(const float* gX, int count) {
  float sum = 0.0f;
  const int fours = count / 4;
#pragma unroll 8
  for (int i = threadIdx.x; i < fours; i += blockDim.x) {
    const float4 four = reinterpret_cast<const float4*>(gX)[i];
    sum += (four.x + four.y) + (four.z + four.w);
  }
  for (int i = 4 * fours + threadIdx.x; i < count; i += blockDim.x) sum += gX[i];
  return block_reduce(sum, Sum());
}
__global__ void ROOFTILE_EARLY __launch_bounds__(1024) root(float* gNorm, const float* gPartial, int parts) {
  earlier_done();
  const float sum = sum_of(gPartial, parts);
  if (threadIdx.x == 0) *gNorm = sqrtf(sum);
}
