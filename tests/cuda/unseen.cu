// Kernels without a fault in which compute-sanitizer reports one: what it does not see (tests/test_sanitizer.py). The simulator, which sees it, reports none.
#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"

using namespace rooftile;

// 128 numbers into memory by a bulk copy; `read` adds them up, and is told by initcheck that nobody has written them.
__global__ void written_by_a_bulk_copy(float* gOut, const float* gX) {
  __shared__ __align__(128) float sX[128];
  sX[threadIdx.x] = gX[threadIdx.x];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, sizeof(sX));
    bulk_commit();
    bulk_wait<0>();
  }
}
__global__ void read(float* gOut, const float* gX) { gOut[threadIdx.x] = 2 * gX[threadIdx.x]; }

// A warp fills one place after another, another reads what other lanes wrote; of each, one lane tells for all, behind a __syncwarp.
__global__ void handed_over_by_one_lane(float* gOut, const float* gX, int N) {
  __shared__ float sX[2][WARP];
  __shared__ Pipeline<2> sRing;
  if (threadIdx.x == 0) pipeline_init(sRing, 1, 1);
  __syncthreads();
  Stage<2> at;
  for (int i = 0; i < N; ++i, ++at) {
    if (threadIdx.x < WARP) {
      producer_acquire(sRing, at);
      sX[at.index][lane()] = gX[i * WARP + lane()];
      __syncwarp();
      if (lane() == 0) producer_commit(sRing, at);
    } else {
      consumer_wait(sRing, at);
      gOut[i * WARP + lane()] = sX[at.index][WARP - 1 - lane()];
      consumer_release(sRing, at);
    }
  }
}
