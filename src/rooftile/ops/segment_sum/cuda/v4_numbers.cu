// adds: for rows of one number: a block walks a stretch of x tile by tile; EACH neighbours a thread, whose sums are joined by a scan over the block
// costs: 3 barriers a tile, and some 13 instructions a number: two thirds of what a multiprocessor can issue while the numbers come from memory
// loses when: a row is more than one number (it takes no other), or x is a few tiles, which one multiprocessor or two then walk alone
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/async.cuh"
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
  template <typename Mark> __device__ __forceinline__ void find(unsigned* sBits, long long first, long long last, Mark mark) {
    for (int found = LOOK; found == LOOK;) {
      const bool in = at < last;
      if (in && at >= first && at != other) {
        atomicOr(sBits + (at - first) / WARP, 1u << (at - first) % WARP);
        mark(int(at - first), cursor + threadIdx.x);
      }
      found = __syncthreads_count(in);
      cursor += found;
      ask();
    }
  }
};

// gPartial has two numbers a stretch of `tiles` tiles: of the segment that comes in from before, and of the one that goes on behind.
template <typename T, typename I, int EACH>
__global__ void __launch_bounds__(256, 5) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX,
                                                 const I* __restrict__ gOffsets, long long M, long long E, int tiles) {
  using tile = Tile<T, EACH>;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ unsigned sBits[tile::SIZE / WARP];
  __shared__ float sSum[THREADS / WARP];
  __shared__ bool sAny[THREADS / WARP];
  int* sEnds = reinterpret_cast<int*>(sAll + 2 * tile::ROOM);  // of a place where a bit is set: the segment that ends there, from `zero` on
  const long long first = blockIdx.x * (long long)tiles * tile::SIZE, last = min(first + (long long)tiles * tile::SIZE, M);
  auto ask = [&](long long from, int stage) {
    for (int v = threadIdx.x; v < THREADS * tile::VECTORS && from < last; v += THREADS) {
      const long long i = from + v * tile::WIDTH;
      uint4* sTo = sAll + stage * tile::ROOM + tile::place(v);
      if (i + tile::WIDTH <= M) copy_async<16>(sTo, gX + i);
      else
        for (int k = 0; k < tile::WIDTH; ++k) reinterpret_cast<T*>(sTo)[k] = i + k < M ? gX[i + k] : T(0.0f);
    }
    copy_commit();
  };
  ask(first, 0);
  Borders<I, -1> borders(gOffsets, E, first);
  const long long zero = borders.cursor - 1;  // the segment that comes in
  float carry = 0.0f;
  for (int t = 0; first + t * (long long)tile::SIZE < last; ++t) {
    const long long here = first + t * (long long)tile::SIZE, behind = min(here + tile::SIZE, last);
    ask(here + tile::SIZE, (t + 1) % 2);
    for (int i = threadIdx.x; i < tile::SIZE / WARP; i += THREADS) sBits[i] = 0;
    copy_wait<1>();
    __syncthreads();
    borders.find(sBits, here, behind, [&](int i, long long e) { sEnds[i] = int(e - 1 - zero); });
    auto write = [&](int i, float sum) {
      const long long e = zero + sEnds[i];
      if (e == zero) gPartial[2 * blockIdx.x] = sum;
      else gOut[e] = T(sum);
    };
    const unsigned bits = sBits[threadIdx.x * EACH / WARP] >> threadIdx.x * EACH % WARP & (0xffffffffu >> (WARP - EACH));
    float run = 0.0f, head = 0.0f;
    unsigned seen = 0;
#pragma unroll
    for (int v = 0; v < tile::VECTORS; ++v) {
      Wide<T> rX;
      load(rX, reinterpret_cast<const T*>(sAll + t % 2 * tile::ROOM + threadIdx.x * tile::STRIDE + v));
#pragma unroll
      for (int k = 0; k < tile::WIDTH; ++k) {
        const int r = v * tile::WIDTH + k;
        if (bits >> r & 1) {
          if (seen) write(threadIdx.x * EACH + r, run);
          else head = run;
          seen = 1, run = 0.0f;
        }
        run += float(rX[k]);
      }
    }
    // run is what is open behind this thread's numbers; lanes are added up as far back as the last that has a border
    const unsigned any = __ballot_sync(ALL_LANES, seen), mine = any & (0xffffffffu >> (WARP - 1 - lane()));
    const int from = mine ? WARP - 1 - __clz(int(mine)) : 0;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const float other = __shfl_up_sync(ALL_LANES, run, distance);
      if (lane() - distance >= from) run += other;
    }
    if (lane() == WARP - 1) sSum[warp()] = run, sAny[warp()] = any != 0;
    float open = __shfl_up_sync(ALL_LANES, run, 1);
    if (lane() == 0) open = 0.0f;
    __syncthreads();
    float prior = carry;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; ++w) {
      if (w == warp()) prior = carry;
      carry = sAny[w] ? sSum[w] : carry + sSum[w];
    }
    if (!(any & ((1u << lane()) - 1))) open += prior;
    if (seen) write(threadIdx.x * EACH + __ffs(int(bits)) - 1, open + head);
  }
  if (threadIdx.x != 0 || first >= last) return;
  const long long e = borders.cursor - 1;  // is open at the end, or ends just there
  if (e == zero) gPartial[2 * blockIdx.x] = carry;
  else if (borders.at == last && e < E) gOut[e] = T(carry);
  else gPartial[2 * blockIdx.x + 1] = carry;
}

// Of the segments that `chunks` could not finish: none (NaN), empty ones, and those in several stretches, which a warp adds in one order.
template <typename T, typename I, int EACH>
__global__ void __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets, long long M,
                                            long long E, int tiles) {
  constexpr int SIZE = Tile<T, EACH>::SIZE;
  const long long i_e = blockIdx.x * (long long)THREADS + threadIdx.x;
  const long long begin = i_e < E ? (long long)gOffsets[i_e] : 0, end = i_e < E ? (long long)gOffsets[i_e + 1] : 0;
  const bool right = 0 <= begin && begin <= end && end <= M;
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

// Backward: where a segment begins its gradient is laid down, and every number takes the nearest at or before it.
template <typename T, typename I, int EACH>
__global__ void __launch_bounds__(256, 5) spread(T* __restrict__ gDx, const T* __restrict__ gDout, const I* __restrict__ gOffsets, long long M,
                                                 long long E, int tiles) {
  using tile = Tile<T, EACH>;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ unsigned sBits[tile::SIZE / WARP];
  __shared__ T sLast[THREADS / WARP];
  __shared__ bool sAny[THREADS / WARP];
  T* sBegins = reinterpret_cast<T*>(sAll + tile::ROOM);
  const long long first = blockIdx.x * (long long)tiles * tile::SIZE, last = min(first + (long long)tiles * tile::SIZE, M);
  Borders<I, 1> borders(gOffsets, E, first);
  T carry = 0 < borders.cursor && borders.cursor <= E ? gDout[borders.cursor - 1] : T(0.0f);
  long long asked;
  T value;
  auto ask = [&] {  // for the gradients of segments that will probably begin in the next tile
    asked = borders.cursor + threadIdx.x;
    value = threadIdx.x < LOOK && asked < E ? gDout[asked] : T(0.0f);
  };
  ask();
  for (long long here = first; here < last; here += tile::SIZE) {
    for (int i = threadIdx.x; i < tile::SIZE / WARP; i += THREADS) sBits[i] = 0;
    __syncthreads();
    borders.find(sBits, here, min(here + tile::SIZE, last), [&](int i, long long e) { sBegins[i] = e == asked ? value : e < E ? gDout[e] : T(0.0f); });
    ask();
    const unsigned bits = sBits[threadIdx.x * EACH / WARP] >> threadIdx.x * EACH % WARP & (0xffffffffu >> (WARP - EACH));
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
