// A tile that all blocks of a cluster want passes through the L2 once: each block brings a part of it to all of them. Hopper and later. A stage is free
// when the consumers of all blocks have released it.
#pragma once
#include "rooftile/cluster.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"

namespace rooftile {

// Whether this block brings part p of PARTS.
template <int BLOCKS, int PARTS> ROOFTILE_DEVICE bool brings(int p) {
  static_assert(PARTS % BLOCKS == 0, "each block brings as many parts");
  return BLOCKS == 1 || p / (PARTS / BLOCKS) == int(blockIdx.x % BLOCKS);
}

// To the same place of each of the BLOCKS blocks, and counted by the same barrier there. A cluster_sync after the barriers' init comes before it, and
// another before any of them ends.
template <int BLOCKS> ROOFTILE_DEVICE void multicast_load(void* sX, const TensorMap& map, MBarrier* sBarrier, int x, int y) {
  if constexpr (BLOCKS == 1) {
    tensor_load(sX, map, sBarrier, x, y);
  } else {
#ifdef ROOFTILE_SIMULATOR
    const int at[] = {x, y};
    rooftile_sim_multicast_load(sX, &map, sBarrier, 2, at, BLOCKS);
#else
    ROOFTILE_SM90("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                  ::"r"(shared_address(sX)), "l"(&map), "r"(shared_address(sBarrier)), "r"(x), "r"(y), "h"((unsigned short)((1 << BLOCKS) - 1))
                  : "memory");
#endif
  }
}

// consumer_release to the producers of all BLOCKS blocks, whose rings expect BLOCKS times as many.
template <int BLOCKS, int STAGES> ROOFTILE_DEVICE void cluster_release(Pipeline<STAGES>& sRing, const Stage<STAGES>& at) {
  if constexpr (BLOCKS == 1) {
    consumer_release(sRing, at);
  } else {
    __syncwarp();
    if (lane() >= BLOCKS) return;
#ifdef ROOFTILE_SIMULATOR
    rooftile_sim_mbarrier_arrive_at(&sRing.empty[at.index], lane());
#else
    ROOFTILE_SM90("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(&sRing.empty[at.index], lane())) : "memory");
#endif
  }
}

}  // namespace rooftile
