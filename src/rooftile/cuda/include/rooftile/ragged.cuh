// Sums over segments of rows that lie together: which segment a row is in, the walk from one to the next, and a sum's way out.
#pragma once
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

// The number of offsets that are not beyond number i_m, by a group of LANES lanes; it is from `low` to `high`. LANES + 1 parts a turn, the last FEW a lane all at
// once, which takes their registers.
template <int FEW, int LANES = WARP, typename I, typename N> ROOFTILE_DEVICE N passed(const I* gOffsets, N low, N high, long long i_m) {
  const int l = lane() % LANES, group = lane() - l;
  const auto votes = [&](bool vote) { return __popc(__ballot_sync(ALL_LANES, vote) >> group & (0xffffffffu >> (WARP - LANES))); };
  const auto many = [&] { return LANES == WARP ? high - low > FEW * LANES : __any_sync(ALL_LANES, high - low > FEW * LANES); };
  while (many()) {
    const N step = (high - low) / (LANES + 1) + 1, at = low + (l + 1) * step - 1;
    low += votes(at < high && gOffsets[at] <= i_m) * step;
    high = min(high, low + step - 1);
  }
  I seen[FEW];
#pragma unroll
  for (int k = 0; k < FEW; ++k) {
    const N at = low + k * LANES + l;
    if (at < high) seen[k] = gOffsets[at];
  }
  N found = low;
#pragma unroll
  for (int k = 0; k < FEW; ++k) found += votes(low + k * LANES + l < high && seen[k] <= i_m);
  return found;
}

// The same, of all E + 1. Of lengths that are alike as many begin before a number as its part of x says: the first turn looks there, and where it is not
// found there the next ones look on that side.
template <int LANES = WARP, int FEW = 8, typename I> ROOFTILE_DEVICE long long find_near(const I* gOffsets, long long M, long long E, long long i_m) {
  const int l = lane() % LANES, group = lane() - l;
  const float about = float(i_m) / float(M) * float(E), away = 2.0f * sqrtf(float(E));  // cuts at random are off by a quarter of it
  const long long step = (long long)(away * (2.0f / (LANES - 1))) + 1, from = (long long)(about - away), at = from + l * step;
  const unsigned is_before = __ballot_sync(ALL_LANES, at < 0 || (at <= E && gOffsets[at] <= i_m)) >> group;
  const int before = __popc(is_before & (0xffffffffu >> (WARP - LANES)));
  const long long low = before > 0 ? from + (before - 1) * step + 1 : 0, high = before < LANES ? from + before * step : E + 1;
  return passed<FEW, LANES>(gOffsets, max(low, 0ll), min(high, E + 1), i_m);
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

}  // namespace rooftile
