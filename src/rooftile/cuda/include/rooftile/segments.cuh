// Sums over segments of rows of one number: a block walks a stretch of them tile by tile. What is read of a tile and where segments begin in it, what is
// open between its threads, and where the sums go: into the result, or as a partial sum to whoever joins stretches.
#pragma once
#include "rooftile/async.cuh"
#include "rooftile/early.cuh"
#include "rooftile/ragged.cuh"

namespace rooftile {

constexpr int THREADS = 256;
constexpr long long NEVER = 0x7fffffffffffffffll;

// A tile in shared memory, EACH neighbours a thread: an odd number of vectors lies between two threads, so that 8 of them meet no bank twice.
template <typename T, int EACH> struct Tile {
  static constexpr int WIDTH = 16 / sizeof(T), VECTORS = EACH / WIDTH, STRIDE = VECTORS | 1, SIZE = THREADS * EACH, ROOM = THREADS * STRIDE;
  static constexpr int WORDS = SIZE / WARP;  // a bit a number
  static constexpr int LOOK = SIZE / 32;  // offsets a turn: in segments of 64 there are half as many, and who looks twice waits for memory
  static_assert(EACH % WIDTH == 0 && EACH <= 32, "a thread has whole vectors, and a bit of one word for every number");

  static ROOFTILE_DEVICE int place(int i) { return i / VECTORS * STRIDE + i % VECTORS; }
  static ROOFTILE_DEVICE void clear(unsigned* sBits) {
    for (int i = threadIdx.x; i < WORDS; i += THREADS) sBits[i] = 0;
  }
  // Those of this thread's numbers.
  static ROOFTILE_DEVICE unsigned bits(const unsigned* sBits) {
    return sBits[threadIdx.x * EACH / WARP] >> threadIdx.x * EACH % WARP & (0xffffffffu >> (WARP - EACH));
  }
  // The tile from `from` on, by copy(to, from) for each 16 bytes, as one group; nothing of a tile behind the stretch's last, zeros behind M.
  template <typename Copy> static ROOFTILE_DEVICE void ask(uint4* sTile, const T* gX, long long from, long long last, long long M, Copy copy) {
    for (int v = threadIdx.x; v < THREADS * VECTORS && from < last; v += THREADS) {
      const long long i = from + v * WIDTH;
      uint4* sTo = sTile + place(v);
      if (i + WIDTH <= M) copy(sTo, gX + i);
      else
        for (int k = 0; k < WIDTH; ++k) reinterpret_cast<T*>(sTo)[k] = i + k < M ? gX[i + k] : T(0.0f);
    }
    copy_commit();
  }
};

// Where segments begin in a tile: a bit a number, and `mark` is told. cursor is the first offset that is not before the tile; LOOK of them
// are always on their way, each with its neighbour on one SIDE, -1 or 1.
template <typename I, int SIDE, int LOOK> struct Borders {
  static_assert(LOOK <= THREADS, "a thread looks at one offset a turn");
  const I* gOffsets;
  long long E, cursor, at, other;

  ROOFTILE_DEVICE Borders(const I* gOffsets, long long E, long long first) : gOffsets(gOffsets), E(E) {
    cursor = rooftile::find<WARP>(gOffsets, E, first - 1);
    ask();
  }
  ROOFTILE_DEVICE void ask() {
    const long long i = cursor + threadIdx.x;
    at = threadIdx.x < LOOK && i <= E ? (long long)gOffsets[i] : NEVER;
    other = threadIdx.x < LOOK && 0 <= i + SIDE && i + SIDE <= E ? (long long)gOffsets[i + SIDE] : -1;
  }
  // A place has one mark: of several offsets that are equal, with empty segments between, the one whose neighbour is another.
  template <typename Mark> ROOFTILE_DEVICE void find(unsigned* sBits, long long first, long long last, Mark mark) {
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

// What is open before this thread's numbers, where `run` is open behind them and `border` says whether they have one. All threads make theirs, meet at a
// barrier, and ask for the rest; another lies before the next tile's.
struct Open {
  float before;  // in this warp
  bool on;       // and in those before it: no lane before has a border

  ROOFTILE_DEVICE Open(float run, bool border, float2 (&sWarp)[THREADS / WARP]) {
    const unsigned any = __ballot_sync(ALL_LANES, border), mine = any & (0xffffffffu >> (WARP - 1 - lane()));
    const int from = mine ? WARP - 1 - __clz(int(mine)) : 0;  // lanes are added up as far back as the last that has a border
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const float other = __shfl_up_sync(ALL_LANES, run, distance);
      if (lane() - distance >= from) run += other;
    }
    if (lane() == WARP - 1) sWarp[warp()] = {run, any ? 1.0f : 0.0f};
    before = __shfl_up_sync(ALL_LANES, run, 1);
    if (lane() == 0) before = 0.0f;
    on = !(any & ((1u << lane()) - 1));
  }
  // carry is what is open before the tile, and becomes what is open behind it.
  ROOFTILE_DEVICE float joined(float& carry, const float2 (&sWarp)[THREADS / WARP]) const {
    float prior = carry;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; ++w) {
      if (w == warp()) prior = carry;
      const float2 part = sWarp[w];
      carry = part.y != 0.0f ? part.x : carry + part.x;
    }
    return on ? before + prior : before;
  }
};

// Where a stretch's sums go. gPartial has two numbers a stretch: of the segment that comes in from before, and of the one that goes on behind.
template <typename T> struct Sums {
  T* gOut;
  float* gPartial;
  long long zero;  // the segment that comes in

  ROOFTILE_DEVICE void ends(long long e, float sum) const {
    if (e == zero) gPartial[2 * blockIdx.x] = sum;
    else gOut[e] = T(sum);
  }
  // The segment that is open at the stretch's end, or ends just there.
  template <typename I, int LOOK> ROOFTILE_DEVICE void rest(const Borders<I, -1, LOOK>& borders, long long last, float sum) const {
    const long long e = borders.cursor - 1;
    if (e == zero || (borders.at == last && e < borders.E)) ends(e, sum);
    else gPartial[2 * blockIdx.x + 1] = sum;
  }
};

// Of the segments that stretches of `tiles` tiles could not finish: none (NaN), empty ones, and those in several, which a warp adds in one order. JOINED a
// thread. Launched early: offsets are older than the launch before, which is the stretches'.
constexpr int JOINED = 4;
template <int SIZE, typename T, typename I>
ROOFTILE_DEVICE void join_stretches(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets, long long M, long long E,
                                    int tiles) {
  const long long first = blockIdx.x * (long long)(JOINED * THREADS) + threadIdx.x;
  long long begin[JOINED], end[JOINED];
#pragma unroll
  for (int k = 0; k < JOINED; ++k) {
    const long long i_e = first + k * THREADS;
    begin[k] = i_e < E ? (long long)gOffsets[i_e] : 0, end[k] = i_e < E ? (long long)gOffsets[i_e + 1] : 0;
  }
  earlier_done();
#pragma unroll
  for (int k = 0; k < JOINED; ++k) {
    const long long i_e = first + k * THREADS;
    const bool right = 0 <= begin[k] && begin[k] <= end[k] && end[k] <= M;
    if (i_e < E && (!right || begin[k] == end[k])) gOut[i_e] = T(right ? 0.0f : __int_as_float(0x7fc00000));
    const unsigned from = right ? unsigned(begin[k] / SIZE) / tiles : 0, to = right && end[k] > begin[k] ? unsigned((end[k] - 1) / SIZE) / tiles : from;
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
}

}  // namespace rooftile
