// adds: for rows of one number: a block walks a stretch of x tile by tile; EACH neighbours a thread, whose sums are joined by a scan over the block
// costs: 3 barriers a tile, and some 13 instructions a number: two thirds of what a multiprocessor can issue while the numbers come from memory
// loses when: a row is more than one number (it takes no other), or x is a few tiles, which one multiprocessor or two then walk alone
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/segments.cuh"

using namespace rooftile;

template <typename T, typename I, int EACH>
__global__ void __launch_bounds__(256, 5) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX,
                                                 const I* __restrict__ gOffsets, long long M, long long E, int tiles) {
  using tile = Tile<T, EACH>;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ unsigned sBits[tile::WORDS];
  __shared__ float2 sWarp[THREADS / WARP];
  int* sEnds = reinterpret_cast<int*>(sAll + 2 * tile::ROOM);  // of a place where a bit is set: the segment that ends there, from the one that comes in on
  const long long first = blockIdx.x * (long long)tiles * tile::SIZE, last = min(first + (long long)tiles * tile::SIZE, M);
  auto ask = [&](long long from, int stage) {
    tile::ask(sAll + stage * tile::ROOM, gX, from, last, M, [](uint4* sTo, const T* gFrom) { copy_async<16>(sTo, gFrom); });
  };
  ask(first, 0);
  Borders<I, -1, tile::LOOK> borders(gOffsets, E, first);
  const Sums<T> sums{gOut, gPartial, borders.cursor - 1};
  float carry = 0.0f;
  for (int t = 0; first + t * (long long)tile::SIZE < last; ++t) {
    const long long here = first + t * (long long)tile::SIZE, behind = min(here + tile::SIZE, last);
    ask(here + tile::SIZE, (t + 1) % 2);
    tile::clear(sBits);
    copy_wait<1>();
    __syncthreads();
    borders.find(sBits, here, behind, [&](int i, long long e) { sEnds[i] = int(e - 1 - sums.zero); });
    auto write = [&](int r, float sum) { sums.ends(sums.zero + sEnds[threadIdx.x * EACH + r], sum); };
    const unsigned bits = tile::bits(sBits);
    float run = 0.0f, head = 0.0f;
    bool seen = false;
#pragma unroll
    for (int v = 0; v < tile::VECTORS; ++v) {
      Wide<T> rX;
      load(rX, reinterpret_cast<const T*>(sAll + t % 2 * tile::ROOM + threadIdx.x * tile::STRIDE + v));
#pragma unroll
      for (int k = 0; k < tile::WIDTH; ++k) {
        const int r = v * tile::WIDTH + k;
        if (bits >> r & 1) {
          if (seen) write(r, run);
          else head = run;
          seen = true, run = 0.0f;
        }
        run += float(rX[k]);
      }
    }
    const Open open(run, seen, sWarp);
    __syncthreads();
    const float prior = open.joined(carry, sWarp);
    if (seen) write(__ffs(int(bits)) - 1, prior + head);
  }
  let_next_stand_by();
  if (threadIdx.x == 0 && first < last) sums.rest(borders, last, carry);
}

template <typename T, typename I, int EACH>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets,
                                                           long long M, long long E, int tiles) {
  join_stretches<Tile<T, EACH>::SIZE>(gOut, gPartial, gOffsets, M, E, tiles);
}

// Backward: where a segment begins its gradient is laid down, and every number takes the nearest at or before it.
template <typename T, typename I, int EACH>
__global__ void __launch_bounds__(256, 5) spread(T* __restrict__ gDx, const T* __restrict__ gDout, const I* __restrict__ gOffsets, long long M,
                                                 long long E, int tiles) {
  using tile = Tile<T, EACH>;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ unsigned sBits[tile::WORDS];
  __shared__ T sLast[THREADS / WARP];
  __shared__ bool sAny[THREADS / WARP];
  T* sBegins = reinterpret_cast<T*>(sAll + tile::ROOM);
  const long long first = blockIdx.x * (long long)tiles * tile::SIZE, last = min(first + (long long)tiles * tile::SIZE, M);
  Borders<I, 1, tile::LOOK> borders(gOffsets, E, first);
  T carry = 0 < borders.cursor && borders.cursor <= E ? gDout[borders.cursor - 1] : T(0.0f);
  long long asked;
  T value;
  auto ask = [&] {  // for the gradients of segments that will probably begin in the next tile
    asked = borders.cursor + threadIdx.x;
    value = threadIdx.x < tile::LOOK && asked < E ? gDout[asked] : T(0.0f);
  };
  ask();
  for (long long here = first; here < last; here += tile::SIZE) {
    tile::clear(sBits);
    __syncthreads();
    borders.find(sBits, here, min(here + tile::SIZE, last), [&](int i, long long e) { sBegins[i] = e == asked ? value : e < E ? gDout[e] : T(0.0f); });
    ask();
    const unsigned bits = tile::bits(sBits);
    T newest = bits ? sBegins[threadIdx.x * EACH + WARP - 1 - __clz(int(bits))] : T(0.0f);
    const unsigned any = __ballot_sync(ALL_LANES, bits != 0), mine = any & ((1u << lane()) - 1);
    T run = __shfl_sync(ALL_LANES, newest, mine ? WARP - 1 - __clz(int(mine)) : 0);
    if (any && lane() == WARP - 1 - __clz(int(any))) sLast[warp()] = newest;
    if (lane() == 0) sAny[warp()] = any != 0;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / WARP; ++w) {
      if (w == warp() && !mine) run = carry;
      if (sAny[w]) carry = sLast[w];
    }
#pragma unroll
    for (int v = 0; v < tile::VECTORS; ++v) {
      Wide<T> rDx;
#pragma unroll
      for (int k = 0; k < tile::WIDTH; ++k) {
        if (bits >> (v * tile::WIDTH + k) & 1) run = sBegins[threadIdx.x * EACH + v * tile::WIDTH + k];
        rDx[k] = run;
      }
      store(reinterpret_cast<T*>(sAll + threadIdx.x * tile::STRIDE + v), rDx);
    }
    __syncthreads();
    for (int v = threadIdx.x; v < THREADS * tile::VECTORS; v += THREADS) {
      const long long i = here + v * tile::WIDTH;
      Wide<T> rDx;
      load(rDx, reinterpret_cast<const T*>(sAll + tile::place(v)));
      if (i + tile::WIDTH <= last) store_global(gDx + i, rDx);
      else
        for (int k = 0; k < tile::WIDTH && i + k < last; ++k) gDx[i + k] = rDx[k];
    }
  }
}
