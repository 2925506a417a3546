// Sums along rows cut into tiles: what a warp has of a row, and the words by which blocks tell each other the sums of their tiles.
#pragma once
#include "rooftile/reduce.cuh"
#include "rooftile/sync.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

// A row as vectors of WIDTH elements at multiples of their size, the first and the last perhaps in part. Counted from the end where REVERSE.
template <typename T, int WIDTH, bool REVERSE> struct Row {
  const T* gX;
  T* gOut;
  long long N, vectors;
  int shift;  // elements of the first vector that lie before the row: the same in x and out

  ROOFTILE_DEVICE Row(T* gOut, const T* gX, long long N) : gX(gX), gOut(gOut), N(N) {
    shift = WIDTH == 1 ? 0 : int(reinterpret_cast<size_t>(gOut) / sizeof(T) % WIDTH);
    vectors = (N + shift + WIDTH - 1) / WIDTH;
  }
  ROOFTILE_DEVICE long long first(long long i) const { return (REVERSE ? vectors - 1 - i : i) * WIDTH - shift; }
  ROOFTILE_DEVICE bool whole(long long i, int count) const {
    const long long a = first(i), b = first(i + count - 1);
    return a >= 0 && a + WIDTH <= N && b >= 0 && b + WIDTH <= N;
  }
};

// What a warp has of a row: VECTORS x 32 vectors, of which lane l has every 32nd.
template <typename T, typename S, int WIDTH, int VECTORS, bool EXCLUSIVE, bool REVERSE> struct Strip {
  Vec<T, WIDTH> rX[VECTORS];
  S rBefore[VECTORS];  // the sum of the strip before each vector

  ROOFTILE_DEVICE void load(const Row<T, WIDTH, REVERSE>& row, long long i) {
    if (row.whole(i, 32 * VECTORS)) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) load_global(rX[v], row.gX + row.first(i + 32 * v + lane()));
    } else {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const long long at = row.first(i + 32 * v + lane());
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rX[v][k] = at + k >= 0 && at + k < row.N ? row.gX[at + k] : T(0);
      }
    }
  }

  ROOFTILE_DEVICE S total() const {  // of the strip
    S sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += S(rX[v][k]);
    return warp_reduce(sum, Sum());
  }

  ROOFTILE_DEVICE S sum() {  // the same, and rBefore; lanes by doubling, VECTORS of them side by side
    S rSum[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      S sum = 0;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += S(rX[v][REVERSE ? WIDTH - 1 - k : k]);
      rSum[v] = sum;
    }
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const S left = __shfl_up_sync(ALL_LANES, rSum[v], reach);
        if (lane() >= reach) rSum[v] += left;
      }
    }
    S sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const S left = __shfl_up_sync(ALL_LANES, rSum[v], 1);
      rBefore[v] = lane() ? sum + left : sum;
      sum += __shfl_sync(ALL_LANES, rSum[v], 31);
    }
    return sum;
  }

  ROOFTILE_DEVICE void store(const Row<T, WIDTH, REVERSE>& row, long long i, S before) {
    const bool whole = row.whole(i, 32 * VECTORS);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const S start = before + rBefore[v];
      Vec<T, WIDTH> rOut;
      S sum = 0;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const int e = REVERSE ? WIDTH - 1 - k : k;
        const S x = S(rX[v][e]);
        rOut[e] = T(start + (EXCLUSIVE ? sum : sum + x));
        sum += x;
      }
      const long long at = row.first(i + 32 * v + lane());
      if (whole) {
        store_global(row.gOut + at, rOut);
      } else {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k)
          if (at + k >= 0 && at + k < row.N) row.gOut[at + k] = rOut[k];
      }
    }
  }
};

// The sum of the warps before this one; `sum` becomes that of the block. sSum has a place for each of WARPS.
template <int WARPS, typename S> ROOFTILE_DEVICE S warps_before(S* sSum, S& sum) {
  if (lane() == 0) sSum[threadIdx.x / 32] = sum;
  __syncthreads();
  S before = sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    if (w == int(threadIdx.x / 32)) before = sum;
    sum += sSum[w];
  }
  return before;
}

using Word = unsigned long long;  // the bits of a sum, and above them 1 where it is there: one access brings both, so nothing else is ordered
constexpr Word THERE = 1ull << 32;

ROOFTILE_DEVICE unsigned bits(float x) { return __float_as_uint(x); }
ROOFTILE_DEVICE unsigned bits(unsigned x) { return x; }
ROOFTILE_DEVICE void value(float& x, Word w) { x = __uint_as_float(unsigned(w)); }
ROOFTILE_DEVICE void value(unsigned& x, Word w) { x = unsigned(w); }

ROOFTILE_DEVICE Word peek(const Word* g, bool wanted) { return wanted ? load_relaxed(g) : THERE; }
ROOFTILE_DEVICE void wait(Word& word, const Word* g) {
  while (!(word & THERE)) {
    spin_pause();
    word = load_relaxed(g);
  }
}
template <typename S> ROOFTILE_DEVICE void publish(Word* g, S sum) {
  if (lane() == 0) store_relaxed(g, THERE | bits(sum));
}
template <typename S> ROOFTILE_DEVICE S all_lanes(Word word) {
  S sum;
  value(sum, word);
  return warp_reduce(sum, Sum());
}

}  // namespace rooftile
