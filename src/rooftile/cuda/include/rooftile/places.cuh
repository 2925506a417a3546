// Stable counting sorts in shared memory, without atomics: 32 numbers take their places at once, and counts become places.
#pragma once
#include "rooftile/check.cuh"

namespace rooftile {

// The place own[row] for the first lane that has this row, those behind it for the others in the order of the lanes; own[row] then stands behind the
// last. own is the warp's alone. Lanes with one row are one another's peers.
ROOFTILE_DEVICE int take(int* own, bool in, int row) {
  const unsigned peers = __match_any_sync(ALL_LANES, in ? row : -1);
  const int rank = __popc(peers & ((1u << lane()) - 1)), at = in ? own[row] : 0;
  __syncwarp();
  if (in && rank == 0) own[row] = at + __popc(peers);
  __syncwarp();
  return at + rank;
}

// Where this thread's `count` places begin, in the order of the block's threads, `start` being where the first one's do; start then stands behind the
// last. All threads come; who calls again puts a barrier between.
template <int WARPS> ROOFTILE_DEVICE int places(int count, int& start, int (&sTotal)[WARPS]) {
  int sum = count;
#pragma unroll
  for (int distance = 1; distance < WARP; distance *= 2) {
    const int before = __shfl_up_sync(ALL_LANES, sum, distance);
    if (lane() >= distance) sum += before;
  }
  if (lane() == WARP - 1) sTotal[warp()] = sum;
  __syncthreads();
  int place = start + sum - count;
  for (int w = 0; w < WARPS; ++w) {
    if (w < warp()) place += sTotal[w];
    start += sTotal[w];
  }
  return place;
}

// Each warp's counts of `rows` rows, sAll[w * stride + r], become places: by row, then by warp, from start on, which then stands behind the last.
// each(r, place, count) by every thread: where row r begins and how many it has in all; past the rows too, where there are none.
template <int WARPS, typename Each>
ROOFTILE_DEVICE void counts_become_places(int* sAll, int stride, int rows, int& start, int (&sTotal)[WARPS], Each each) {
  for (int tile = 0; tile < rows; tile += WARPS * WARP) {
    __syncthreads();
    const int r = tile + int(threadIdx.x);
    int count = 0;
    if (r < rows)
      for (int w = 0; w < WARPS; ++w) count += sAll[w * stride + r];
    const int begin = places(count, start, sTotal);
    int place = begin;
    if (r < rows)
      for (int w = 0; w < WARPS; ++w) {
        const int own = sAll[w * stride + r];
        sAll[w * stride + r] = place;
        place += own;
      }
    each(r, begin, count);
  }
}

}  // namespace rooftile
