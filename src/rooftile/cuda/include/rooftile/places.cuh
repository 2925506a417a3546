// Stable counting sorts in shared memory, without atomics: 32 numbers take their places at once.
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

}  // namespace rooftile
