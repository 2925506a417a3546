// adds: sums are laid down without a branch in the place of the numbers, and stored side by side; STAGES - 1 tiles are on their way, first to leave the L2
// costs: 3 barriers a tile, and 2 blocks of 32 numbers a thread fill the shared memory of a multiprocessor
// loses when: a row is more than one number (it takes no other), or a stretch is fewer tiles than STAGES, which then wait for nothing and are larger than v4's
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/passing.cuh"
#include "rooftile/segments.cuh"

using namespace rooftile;

// Borders that are told of once more, when the sums of their tile are there: a thread remembers its own of the first LOOK and looks the others up.
template <typename I, int LOOK> struct Twice : Borders<I, -1, LOOK> {
  long long begun = 0;  // cursor before the tile that was looked at last
  int place = -1;       // of this thread's border in it, if it has one

  ROOFTILE_DEVICE Twice(const I* gOffsets, long long E, long long first) : Borders<I, -1, LOOK>(gOffsets, E, first) {}
  ROOFTILE_DEVICE void mark(unsigned* sBits, long long first, long long last) {
    begun = this->cursor, place = -1;
    this->find(sBits, first, last, [&](int i, long long e) {
      if (e < begun + LOOK) place = i;
    });
  }
  template <typename Each> ROOFTILE_DEVICE void marked(long long first, long long last, Each each) const {
    if (place >= 0) each(place, begun + threadIdx.x);
#pragma unroll 1
    for (long long e = begun + LOOK + threadIdx.x; e < this->cursor; e += THREADS) {
      const long long at = this->gOffsets[e];
      if (first <= at && at < last && at != this->gOffsets[e - 1]) each(int(at - first), e);
    }
  }
};

// The sum of a segment that ends in a tile is laid down where the next one's first number was (of 16 bits: beside the tiles), and is stored when the next
// tile has come.
template <typename T, typename I, int EACH, int STAGES>
__global__ void __launch_bounds__(256, 3) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX,
                                                 const I* __restrict__ gOffsets, long long M, long long E, int tiles) {
  using tile = Tile<T, EACH>;
  static_assert(STAGES >= 3, "a tile's sums wait in it while the next one's numbers are read, and another is on its way");
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ unsigned sBits[tile::WORDS];
  __shared__ float2 sWarp[THREADS / WARP];
  const long long first = blockIdx.x * (long long)tiles * tile::SIZE, last = min(first + (long long)tiles * tile::SIZE, M);
  const Policy policy = evict_first(M * (long long)sizeof(T));  // x is read once, where offsets and sums are found again
  auto ask = [&](long long from, int stage) {
    tile::ask(sAll + stage * tile::ROOM, gX, from, last, M, [&](uint4* sTo, const T* gFrom) { copy_async(sTo, gFrom, true, policy); });
  };
  auto laid = [&](int stage, int thread) {  // the places of a thread's numbers
    if constexpr (sizeof(T) == sizeof(float)) return reinterpret_cast<float*>(sAll + stage * tile::ROOM + thread * tile::STRIDE);
    else return reinterpret_cast<float*>(sAll + STAGES * tile::ROOM) + thread * EACH;
  };
  for (int s = 0; s < STAGES - 1; ++s) ask(first + s * (long long)tile::SIZE, s);
  Twice<I, tile::LOOK> borders(gOffsets, E, first);
  const Sums<T> sums{gOut, gPartial, borders.cursor - 1};
  tile::clear(sBits);
  float carry = 0.0f;
  int stage = 0, old = 0;
  long long before = first;  // where the tile begins whose sums are not stored yet
  auto flush = [&](long long here) {
    borders.marked(before, here, [&](int i, long long e) { sums.ends(e - 1, laid(old, i / EACH)[i % EACH]); });
  };
  for (long long here = first; here < last; here += tile::SIZE) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (here > first) flush(here);
    borders.mark(sBits, here, min(here + tile::SIZE, last));
    ask(here + (STAGES - 1) * (long long)tile::SIZE, stage == 0 ? STAGES - 1 : stage - 1);  // where the sums were that have been stored
    const unsigned bits = tile::bits(sBits);
    float* sOwn = laid(stage, threadIdx.x);
    float run = 0.0f;
    Wide<T> rX[tile::VECTORS];  // all of them before the first sum is laid down among them
#pragma unroll
    for (int v = 0; v < tile::VECTORS; ++v) load(rX[v], reinterpret_cast<const T*>(sAll + stage * tile::ROOM + threadIdx.x * tile::STRIDE + v));
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
      const bool cut = bits >> r & 1;
      if (cut) sOwn[r] = run;
      run = (cut ? 0.0f : run) + float(rX[r / tile::WIDTH][r % tile::WIDTH]);
    }
    const Open open(run, bits != 0, sWarp);
    __syncthreads();
    tile::clear(sBits);
    const float prior = open.joined(carry, sWarp);
    if (bits) sOwn[__ffs(int(bits)) - 1] += prior;
    before = here, old = stage, stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  let_next_stand_by();
  copy_wait<0>();
  __syncthreads();
  if (first >= last) return;
  flush(last);
  if (threadIdx.x == 0) sums.rest(borders, last, carry);
}

template <typename T, typename I, int EACH>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets,
                                                           long long M, long long E, int tiles) {
  join_stretches<Tile<T, EACH>::SIZE>(gOut, gPartial, gOffsets, M, E, tiles);
}
