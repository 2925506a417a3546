// adds: for rows of one number: a block walks a stretch of x tile by tile; EACH neighbours a thread, whose sums are joined by a scan over the block; they
//       are laid down without a branch in the place of the numbers, and stored side by side; STAGES - 1 tiles are on their way
// costs: 3 barriers a tile
// loses when: a row is more than one number (it takes no other), or x is a few tiles, which one multiprocessor or two then walk alone
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/async.cuh"
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int THREADS = 256, LOOK = 128;  // LOOK offsets a turn: a tile of 4096 numbers in segments of 64 has 64
constexpr long long NEVER = 0x7fffffffffffffffll;

// A tile in shared memory, EACH neighbours a thread: an odd number of vectors lies between two threads, so that 8 of them meet no bank twice.
template <typename T, int EACH> struct Tile {
  static constexpr int WIDTH = 16 / sizeof(T), VECTORS = EACH / WIDTH, STRIDE = VECTORS | 1, SIZE = THREADS * EACH, ROOM = THREADS * STRIDE;
  static_assert(EACH % WIDTH == 0 && EACH <= 32, "a thread has whole vectors, and a bit of one word for every number");
  static __device__ __forceinline__ int place(int i) { return i / VECTORS * STRIDE + i % VECTORS; }
};

// Where segments begin in this tile: a bit a number, and `mark` is told. cursor is the first offset that is not before the tile; LOOK of them
// are always on their way, each with its neighbour on one SIDE, -1 or 1.
template <typename I, int SIDE> struct Borders {
  const I* gOffsets;
  long long E, cursor, at, other;
  long long begun, upto, first_e;  // of the tile that was looked at last: its offsets lie in [begun, upto)
  int place = -1;                  // where the border lies that this thread marked of the first LOOK, and its number

  __device__ __forceinline__ Borders(const I* gOffsets, long long E, long long first) : gOffsets(gOffsets), E(E) {
    long long low = 0, high = E + 1;  // 33 parts a step instead of 2: 4 loads in a chain for 2^20 segments
    while (low < high) {
      const long long step = (high - low) / (WARP + 1) + 1, i = low + (lane() + 1) * step - 1;
      low += __popc(__ballot_sync(ALL_LANES, i < high && gOffsets[i] < first)) * step;
      high = high < low + step - 1 ? high : low + step - 1;
    }
    cursor = low;
    ask();
  }
  __device__ __forceinline__ void ask() {
    const long long i = cursor + threadIdx.x;
    at = threadIdx.x < LOOK && i <= E ? (long long)gOffsets[i] : NEVER;
    other = threadIdx.x < LOOK && 0 <= i + SIDE && i + SIDE <= E ? (long long)gOffsets[i + SIDE] : -1;
  }
  // A place has one mark: of several offsets that are equal, with empty segments between, the one whose neighbour is another.
  __device__ __forceinline__ void find(unsigned* sBits, long long first, long long last) {
    begun = cursor, place = -1;
    for (int found = LOOK; found == LOOK;) {
      const bool in = at < last;
      if (in && at >= first && at != other) {
        atomicOr(sBits + (at - first) / WARP, 1u << (at - first) % WARP);
        if (cursor == begun) place = int(at - first), first_e = cursor + threadIdx.x;
      }
      upto = cursor + LOOK;
      found = __syncthreads_count(in);
      cursor += found;
      ask();
    }
    if (upto > E + 1) upto = E + 1;
  }
  // each(place, offset) for the marks that `find` made in the tile from `first` to `last`, every one once, by neighbours.
  template <typename Each> __device__ __forceinline__ void marked(long long first, long long last, Each each) {
    if (place >= 0) each(place, first_e);
#pragma unroll 1
    for (long long i = begun + LOOK + threadIdx.x; i < upto; i += THREADS) {
      const long long here = (long long)gOffsets[i], near = 0 <= i + SIDE && i + SIDE <= E ? (long long)gOffsets[i + SIDE] : -1;
      if (first <= here && here < last && here != near) each(int(here - first), i);
    }
  }
};

// gPartial has two numbers a stretch of `tiles` tiles: of the segment that comes in from before, and of the one that goes on behind. The sum of a segment
// that ends in a tile is laid down where the next one's first number was (of 16 bits: beside it), and is stored when the next tile has come.
template <typename T, typename I, int EACH, int STAGES>
__global__ void __launch_bounds__(256, 3) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX,
                                                 const I* __restrict__ gOffsets, long long M, long long E, int tiles) {
  using tile = Tile<T, EACH>;
  static_assert(STAGES >= 3, "a tile's sums wait in it while the next one's numbers are read, and another is on its way");
  constexpr bool INSIDE = sizeof(T) == 4;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ unsigned sBits[tile::SIZE / WARP];
  __shared__ float2 sWarp[THREADS / WARP];  // what is open behind a warp's numbers, and whether they have a border
  const long long first = blockIdx.x * (long long)tiles * tile::SIZE, last = min(first + (long long)tiles * tile::SIZE, M);
  Policy policy = 0;  // the first to leave
#ifndef ROOFTILE_SIMULATOR
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  auto ask = [&](long long from, int stage) {
    for (int v = threadIdx.x; v < THREADS * tile::VECTORS && from < last; v += THREADS) {
      const long long i = from + v * tile::WIDTH;
      uint4* sTo = sAll + stage * tile::ROOM + tile::place(v);
      if (i + tile::WIDTH <= M) copy_async(sTo, gX + i, true, policy);
      else
        for (int k = 0; k < tile::WIDTH; ++k) reinterpret_cast<T*>(sTo)[k] = i + k < M ? gX[i + k] : T(0.0f);
    }
    copy_commit();
  };
  // Of a thread's number r
  auto sums = [&](int stage, int thread) {
    if constexpr (INSIDE) return reinterpret_cast<float*>(sAll + stage * tile::ROOM + thread * tile::STRIDE);
    else return reinterpret_cast<float*>(sAll + STAGES * tile::ROOM) + thread * EACH;
  };
  for (int s = 0; s < STAGES - 1; ++s) ask(first + s * (long long)tile::SIZE, s);
  Borders<I, -1> borders(gOffsets, E, first);
  const long long zero = borders.cursor - 1;  // the segment that comes in
  for (int i = threadIdx.x; i < tile::SIZE / WARP; i += THREADS) sBits[i] = 0;
  float carry = 0.0f;
  long long before = first;  // the tile whose sums are not stored yet; none at first
  int stage = 0, old = 0;
  auto flush = [&](long long behind) {
    borders.marked(before, behind, [&](int i, long long e) {
      const float sum = sums(old, i / EACH)[i % EACH];
      if (e - 1 == zero) gPartial[2 * blockIdx.x] = sum;
      else gOut[e - 1] = T(sum);
    });
  };
  for (long long here = first; here < last; here += tile::SIZE) {
    const long long behind = min(here + tile::SIZE, last);
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (here > first) flush(here);
    borders.find(sBits, here, behind);
    ask(here + (STAGES - 1) * (long long)tile::SIZE, stage == 0 ? STAGES - 1 : stage - 1);
    const unsigned bits = sBits[threadIdx.x * EACH / WARP] >> threadIdx.x * EACH % WARP & (0xffffffffu >> (WARP - EACH));
    float* sOwn = sums(stage, threadIdx.x);
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
    // run is what is open behind this thread's numbers; lanes are added up as far back as the last that has a border
    const unsigned any = __ballot_sync(ALL_LANES, bits), mine = any & (0xffffffffu >> (WARP - 1 - lane()));
    const int from = mine ? WARP - 1 - __clz(int(mine)) : 0;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const float other = __shfl_up_sync(ALL_LANES, run, distance);
      if (lane() - distance >= from) run += other;
    }
    if (lane() == WARP - 1) sWarp[warp()] = {run, any ? 1.0f : 0.0f};
    float open = __shfl_up_sync(ALL_LANES, run, 1);
    if (lane() == 0) open = 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < tile::SIZE / WARP; i += THREADS) sBits[i] = 0;
    float prior = carry;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; ++w) {
      if (w == warp()) prior = carry;
      const float2 part = sWarp[w];
      carry = part.y != 0.0f ? part.x : carry + part.x;
    }
    if (!(any & ((1u << lane()) - 1))) open += prior;
    if (bits) {
      float& sFirst = sOwn[__ffs(int(bits)) - 1];
      sFirst = open + sFirst;
    }
    before = here, old = stage, stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  let_next_stand_by();
  copy_wait<0>();
  __syncthreads();
  if (first < last) flush(last);
  if (threadIdx.x != 0 || first >= last) return;
  const long long e = borders.cursor - 1;  // is open at the end, or ends just there
  if (e == zero) gPartial[2 * blockIdx.x] = carry;
  else if (borders.at == last && e < E) gOut[e] = T(carry);
  else gPartial[2 * blockIdx.x + 1] = carry;
}

// Of the segments that `chunks` could not finish: none (NaN), empty ones, and those in several stretches, which a warp adds in one order.
template <typename T, typename I, int EACH>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets, long long M,
                                            long long E, int tiles) {
  constexpr int SIZE = Tile<T, EACH>::SIZE;
  const long long i_e = blockIdx.x * (long long)THREADS + threadIdx.x;
  const long long begin = i_e < E ? (long long)gOffsets[i_e] : 0, end = i_e < E ? (long long)gOffsets[i_e + 1] : 0;
  const bool right = 0 <= begin && begin <= end && end <= M;
  earlier_done();  // offsets are of before the launch before
  if (i_e < E && (!right || begin == end)) gOut[i_e] = T(right ? 0.0f : __int_as_float(0x7fc00000));
  const unsigned from = right ? unsigned(begin / SIZE) / tiles : 0, to = right && end > begin ? unsigned((end - 1) / SIZE) / tiles : from;
  for (unsigned cut = __ballot_sync(ALL_LANES, to > from); cut; cut &= cut - 1) {
    const int l = __ffs(int(cut)) - 1;
    const unsigned one = __shfl_sync(ALL_LANES, from, l), two = __shfl_sync(ALL_LANES, to, l);
    float sum = lane() == 0 ? gPartial[2ll * one + 1] : 0.0f;
#pragma unroll 4
    for (long long c = one + 1ll + lane(); c <= two; c += WARP) sum += gPartial[2 * c];
    sum = warp_reduce(sum, Sum());
    if (lane() == 0) gOut[i_e + l] = T(sum);
  }
}
