// A tile for all blocks of a cluster, a part from each: the same file runs on the GPU and in the simulator.
#include "rooftile/multicast.cuh"

using namespace rooftile;

constexpr int ROWS = 8, COLUMNS = 32, STAGES = 2;  // of a part, and of the ring

// gOut [blocks, steps, CLUSTER ROWS, COLUMNS]: to every block all rows of every step, which are x [.., CLUSTER ROWS, COLUMNS]'s. A warp asks, the other reads.
template <int CLUSTER>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(64) everybody(float* gOut, const __grid_constant__ TensorMap tX, int steps) {
  __shared__ __align__(128) float sX[STAGES][CLUSTER][ROWS * COLUMNS];
  __shared__ Pipeline<STAGES> sRing;
  if (threadIdx.x == 0) pipeline_init(sRing, 1, CLUSTER);
  cluster_sync();
  Stage<STAGES> at;
  if (threadIdx.x == 0) {
    for (int k = 0; k < steps; ++k, ++at) {
      producer_acquire(sRing, at, sizeof sX[0]);
#pragma unroll
      for (int p = 0; p < CLUSTER; ++p)
        if (brings<CLUSTER, CLUSTER>(p)) multicast_load<CLUSTER>(sX[at.index][p], tX, &sRing.full[at.index], 0, (k * CLUSTER + p) * ROWS);
    }
  } else if (threadIdx.x >= WARP) {
    for (int k = 0; k < steps; ++k, ++at) {
      consumer_wait(sRing, at);
      for (int i = lane(); i < CLUSTER * ROWS * COLUMNS; i += WARP)
        gOut[(blockIdx.x * steps + k) * CLUSTER * ROWS * COLUMNS + i] = sX[at.index][0][i];
      cluster_release<CLUSTER>(sRing, at);
    }
  }
  cluster_sync();
}
