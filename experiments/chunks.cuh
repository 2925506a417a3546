// Sums over segments of rows: groups of lanes that each have a chunk of neighbouring rows. Where in the segments a chunk is, and who adds what crosses chunks.
#pragma once
#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

// not_beyond by all LANES lanes of a group together: log E of base LANES + 1 instead of 2, 3 loads in a chain instead of 14 for 16384 segments.
// Each was a round trip to memory, 8 us of the first 150. All lanes of the warp must come.
template <int LANES, typename I> ROOFTILE_DEVICE long long find(const I* gOffsets, long long E, long long i_m) {
  const int l = lane() % LANES, group = lane() - l;
  long long low = 0, high = E + 1;
  while (__any_sync(ALL_LANES, low < high)) {
    const long long step = (high - low) / (LANES + 1) + 1, at = low + (l + 1) * step - 1;
    const unsigned passed = __ballot_sync(ALL_LANES, at < high && gOffsets[at] <= i_m) >> group;
    low += __popc(LANES == 32 ? passed : passed & ((1u << LANES % 32) - 1)) * step;
    high = high < low + step - 1 ? high : low + step - 1;
  }
  return low;
}

template <typename I> ROOFTILE_DEVICE long long not_beyond(const I* gOffsets, long long low, long long E, long long i_m) {
  long long high = E + 1;  // the number of offsets that are not beyond row i_m; it is `low` at least
  while (low < high) {
    const long long middle = (low + high) / 2;
    if (gOffsets[middle] <= i_m) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The segment a group of lanes is in, and the one after it, whose end is on its way while this one is added up.
template <typename I> struct Cursor {
  const I* gOffsets;
  long long E, i_e, begin, end, next;

  ROOFTILE_DEVICE Cursor(const I* gOffsets, long long E, long long found) : gOffsets(gOffsets), E(E) { begin_at(found - 1); }
  ROOFTILE_DEVICE long long at(long long i) const { return i > E ? 0x7fffffffffffffffll : (long long)gOffsets[i]; }
  ROOFTILE_DEVICE void begin_at(long long e) {
    i_e = e, begin = i_e < 0 ? -1 : at(i_e), end = at(i_e + 1), next = at(i_e + 2);
  }
  ROOFTILE_DEVICE void advance(long long i_m) {  // to the segment of row i_m, which is not in this one
    for (int tries = 0; i_m >= end; ++tries) {
      if (tries == 8) return begin_at(not_beyond(gOffsets, i_e + 1, E, i_m) - 1);  // many empty segments
      ++i_e, begin = end, end = next, next = at(i_e + 2);
    }
  }
  ROOFTILE_DEVICE bool is_one() const { return i_e >= 0 && i_e < E; }
};

template <typename T, int WIDTH> ROOFTILE_DEVICE void write(T* g, const float (&rSum)[WIDTH]) {
  constexpr int PART = sizeof(T) * WIDTH > 16 ? int(16 / sizeof(T)) : WIDTH;
#pragma unroll
  for (int k = 0; k < WIDTH; k += PART) {
    Vec<T, PART> rOut;
#pragma unroll
    for (int p = 0; p < PART; ++p) rOut[p] = T(rSum[k + p]);
    store(g + k, rOut);
  }
}

// Of the segments that `chunks` could not finish: none (NaN), empty ones, and those in several chunks, whose partial sums are added in their
// order. A group of lanes a segment; where one has more than LONG chunks the block adds it together. Where it is launched early, offsets are older than the
// launch before, which is the chunks'.
template <int WIDTH, int LANES, typename T, typename I>
ROOFTILE_DEVICE void join_chunks(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets, long long M, long long E,
                                 long long N, int strips, int chunk) {
  constexpr int GROUPS = 256 / LANES, LONG = 64;
  __shared__ float sSum[GROUPS][LANES * WIDTH];
  __shared__ long long sLong[GROUPS];
  const int group = int(threadIdx.x / LANES), l = int(threadIdx.x % LANES);
  const long long i_g = blockIdx.x * (long long)GROUPS + group;
  auto add = [&](float (&rSum)[WIDTH], long long i_c, long long until, long long i_n) {  // the rows of chunks that the segment comes into
#pragma unroll 8
    for (; i_c < until; ++i_c)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += gPartial[2 * i_c * N + i_n + k];
  };
  bool later = false, mine = false, right = false;
  long long begin = 0, end = 0, i_c = 0, until = 0;
  const long long i_e = i_g / strips, i_n = (i_g % strips * LANES + l) * WIDTH;
  if (i_e < E) {
    begin = gOffsets[i_e], end = gOffsets[i_e + 1], i_c = begin / chunk, until = end > begin ? (end - 1) / chunk + 1 : i_c;
    right = 0 <= begin && begin <= end && end <= M;
    later = right && until - i_c > LONG;
    mine = i_n < N && !later && (!right || until - i_c != 1);
  }
  earlier_done();
  if (mine) {
    float rSum[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] = !right ? __int_as_float(0x7fc00000) : until > i_c ? gPartial[(2 * i_c + 1) * N + i_n + k] : 0.0f;
    if (right) add(rSum, i_c + 1, until, i_n);
    write(gOut + i_e * N + i_n, rSum);
  }
  if (l == 0) sLong[group] = later ? i_g : -1;
  __syncthreads();
  for (int g = 0; g < GROUPS; ++g) {
    if (sLong[g] < 0) continue;  // the same for all
    const long long i_e = sLong[g] / strips, i_n = (sLong[g] % strips * LANES + l) * WIDTH;
    const long long begin = gOffsets[i_e], i_c = begin / chunk, until = (long long)(gOffsets[i_e + 1] - 1) / chunk + 1;
    const long long share = (until - i_c - 1 + GROUPS - 1) / GROUPS, from = i_c + 1 + group * share;
    float rSum[WIDTH] = {};
    if (i_n < N) {
      if (group == 0)
        for (int k = 0; k < WIDTH; ++k) rSum[k] = gPartial[(2 * i_c + 1) * N + i_n + k];
      add(rSum, from, from + share < until ? from + share : until, i_n);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sSum[group][l * WIDTH + k] = rSum[k];
    __syncthreads();
    if (group == 0 && i_n < N) {
      for (int other = 1; other < GROUPS; ++other)
        for (int k = 0; k < WIDTH; ++k) rSum[k] += sSum[other][l * WIDTH + k];
      write(gOut + i_e * N + i_n, rSum);
    }
    __syncthreads();
  }
}

}  // namespace rooftile
