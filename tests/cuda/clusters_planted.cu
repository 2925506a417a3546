// Kernels of two blocks a cluster with one fault each. The line that the simulator must name ends in a comment that says which kind it is.
#include "rooftile/cluster.cuh"

using namespace rooftile;

__global__ void ROOFTILE_CLUSTER(2) sends_to_who_has_not_begun(float* gOut, const float* gX) {
  __shared__ float sX[64];
  store_cluster(&sX[threadIdx.x], cluster_rank() ^ 1, gX[threadIdx.x]);  // race
  cluster_sync();
  gOut[blockIdx.x * 64 + threadIdx.x] = sX[threadIdx.x];
}

__global__ void ROOFTILE_CLUSTER(2) reads_what_is_sent_too_soon(float* gOut, const float* gX) {
  __shared__ float sX[64];
  sX[threadIdx.x] = 0.0f;
  cluster_sync();
  store_cluster(&sX[threadIdx.x], cluster_rank() ^ 1, gX[threadIdx.x]);
  gOut[blockIdx.x * 64 + threadIdx.x] = sX[threadIdx.x];  // race
  cluster_sync();
}

__global__ void ROOFTILE_CLUSTER(2) leaves_before_it_is_sent_to(float* gOut, const float* gX) {
  __shared__ float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  cluster_sync();
  gOut[blockIdx.x * 64 + threadIdx.x] = sX[threadIdx.x];
  if (cluster_rank() == 1) return;
  store_cluster(&sX[threadIdx.x], 1, 1.0f);  // race
}

__global__ void ROOFTILE_CLUSTER(2) half_of_it_does_not_come(float* gOut, const float* gX) {
  gOut[blockIdx.x * 64 + threadIdx.x] = gX[threadIdx.x];
  if (cluster_rank() == 0) cluster_sync();  // timeout
}

__global__ void ROOFTILE_CLUSTER(2) arrives_twice(float* gOut, const float* gX) {
  gOut[blockIdx.x * 64 + threadIdx.x] = gX[threadIdx.x];
  cluster_arrive();
  cluster_arrive();  // divergent_barrier
  cluster_wait();
}

__global__ void ROOFTILE_CLUSTER(2) names_a_third(float* gOut, const float* gX) {
  __shared__ float sX[64];
  cluster_sync();
  store_cluster(&sX[threadIdx.x], 2, gX[threadIdx.x]);  // out_of_bounds
  cluster_sync();
  gOut[blockIdx.x * 64 + threadIdx.x] = sX[threadIdx.x];
}

__global__ void ROOFTILE_CLUSTER(2) counted_by_nobody(float* gOut, const float* gX) {
  __shared__ float sX[64];
  __shared__ MBarrier sBarrier;
  sX[threadIdx.x] = 0.0f;
  cluster_sync();
  store_async(&sX[threadIdx.x], cluster_rank() ^ 1, gX[threadIdx.x], &sBarrier);  // uninitialised
  cluster_sync();
  gOut[blockIdx.x * 64 + threadIdx.x] = sX[threadIdx.x];
}

__global__ void ROOFTILE_CLUSTER(2) read_before_it_is_counted(float* gOut, const float* gX) {
  __shared__ float sX[64];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sBarrier, 256);
  }
  sX[threadIdx.x] = 0.0f;
  cluster_sync();
  store_async(&sX[threadIdx.x], cluster_rank() ^ 1, gX[threadIdx.x], &sBarrier);
  gOut[blockIdx.x * 64 + threadIdx.x] = sX[threadIdx.x];  // race
  mbarrier_wait(&sBarrier, 0);
}
