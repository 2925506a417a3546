// Kernels for Hopper with one fault each. The line that the simulator must name ends in a comment that says which kind it is.
#include <cuda_bf16.h>

#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/wgmma.cuh"

using namespace rooftile;

ROOFTILE_DEVICE void make(MBarrier* sBarrier, int arrivals) {
  if (threadIdx.x == 0) mbarrier_init(sBarrier, arrivals), mbarrier_fence();
  __syncthreads();
}

__global__ void bytes_never_announced(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) bulk_load(sX, gX, 256, &sBarrier);
  mbarrier_wait(&sBarrier, 0);  // timeout
  gOut[threadIdx.x] = sX[threadIdx.x];
}

__global__ void arrives_without_bytes(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive(&sBarrier);
    bulk_load(sX, gX, 256, &sBarrier);
  }
  mbarrier_wait(&sBarrier, 0);
  gOut[threadIdx.x] = sX[threadIdx.x];  // uninitialised
}

__global__ void too_many_bytes_announced(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 512);
    bulk_load(sX, gX, 256, &sBarrier);
  }
  mbarrier_wait(&sBarrier, 0);  // timeout
  gOut[threadIdx.x] = sX[threadIdx.x];
}

__global__ void wrong_parity(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 256);
    bulk_load(sX, gX, 256, &sBarrier);
  }
  mbarrier_wait(&sBarrier, 1);
  gOut[threadIdx.x] = sX[threadIdx.x];  // uninitialised
}

// The parity is not turned after the first round: in the second nobody waits.
__global__ void parity_never_turns(float* gOut, const float* gX) {
  __shared__ float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 32);
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x >= 32) {
      sX[threadIdx.x] = gX[i * 32 + threadIdx.x - 32];
      mbarrier_arrive(&sBarrier);
    } else {
      mbarrier_wait(&sBarrier, 0);
      gOut[threadIdx.x] = sX[threadIdx.x + 32];  // race
    }
    __syncthreads();
  }
}

// The phase that is waited for was over before the write; that the writer has arrived since says nothing.
__global__ void phase_of_before(float* gOut, const float* gX) {
  __shared__ float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 64);
  sX[threadIdx.x] = gX[threadIdx.x];
  mbarrier_arrive(&sBarrier);
  mbarrier_wait(&sBarrier, 0);
  if (threadIdx.x == 63) {
    sX[0] = 1.0f;
    mbarrier_arrive(&sBarrier);
  } else if (threadIdx.x < 32) {
    mbarrier_wait(&sBarrier, 0);
    gOut[threadIdx.x] = sX[0];  // race
  }
}

__global__ void too_few_arrive(float* gOut) {
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 33);
  if (threadIdx.x < 32) mbarrier_arrive(&sBarrier);
  mbarrier_wait(&sBarrier, 0);  // timeout
  gOut[threadIdx.x] = 1.0f;
}

__global__ void too_many_arrive(float* gOut) {
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  mbarrier_expect(&sBarrier, 16);
  mbarrier_arrive(&sBarrier);  // divergent_barrier
  gOut[threadIdx.x] = 1.0f;
}

__global__ void never_initialised(float* gOut) {
  __shared__ MBarrier sBarrier;
  mbarrier_wait(&sBarrier, 0);  // uninitialised
  gOut[threadIdx.x] = 1.0f;
}

__global__ void names_other_threads(float* gOut) {
  if (threadIdx.x < 32) {
    barrier_sync(1, 64);
  } else {
    barrier_sync(1, 32);  // divergent_barrier
  }
  gOut[threadIdx.x] = 1.0f;
}

__global__ void waits_alone(float* gOut) {
  if (threadIdx.x < 32) barrier_sync(1, 64);  // timeout
  gOut[threadIdx.x] = 1.0f;
}

__global__ void misaligned_source(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 128);
    bulk_load(sX, gX + 1, 128, &sBarrier);  // misaligned
  }
  mbarrier_wait(&sBarrier, 0);
  gOut[threadIdx.x] = sX[threadIdx.x % 32];
}

__global__ void misaligned_size(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) sX[i] = gX[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, 60);  // misaligned
    bulk_commit();
    bulk_wait<0>();
  }
}

__global__ void misaligned_tile(__nv_bfloat16* gOut, const __grid_constant__ TensorMap tX) {
  __shared__ __align__(64) __nv_bfloat16 sX[64 * 64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 64 * 128);
    tensor_load(sX + 32, tX, &sBarrier, 0, 0);  // misaligned
  }
  mbarrier_wait(&sBarrier, 0);
  gOut[threadIdx.x] = sX[threadIdx.x];
}

__global__ void load_out_of_bounds(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 256);
    bulk_load(sX, gX + 16, 256, &sBarrier);  // out_of_bounds
  }
  mbarrier_wait(&sBarrier, 0);
  gOut[threadIdx.x] = sX[threadIdx.x];
}

__global__ void tile_read_before_its_barrier(__nv_bfloat16* gOut, const __grid_constant__ TensorMap tX) {
  __shared__ __align__(1024) __nv_bfloat16 sX[64 * 64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 64 * 128);
    tensor_load(sX, tX, &sBarrier, 0, 0);
  }
  __syncthreads();
  gOut[threadIdx.x] = sX[threadIdx.x];  // uninitialised
  mbarrier_wait(&sBarrier, 0);
}

__global__ void barrier_not_shown_to_copies(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  if (threadIdx.x == 0) {
    mbarrier_init(&sBarrier, 1);
    mbarrier_arrive_expect(&sBarrier, 256);
    bulk_load(sX, gX, 256, &sBarrier);  // race
  }
  __syncthreads();
  mbarrier_wait(&sBarrier, 0);
  gOut[threadIdx.x] = sX[threadIdx.x];
}

// The second load comes while other threads may still read the first: a vote orders nothing.
__global__ void stage_not_released(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x >= 32) return;
  float sum = 0.0f;
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(&sBarrier, 256);
      bulk_load(sX, gX, 256, &sBarrier);  // race
    }
    mbarrier_wait(&sBarrier, i);
    sum += sX[threadIdx.x];
    __any_sync(ALL_LANES, 1);
  }
  gOut[threadIdx.x] = sum;
}

__global__ void load_nobody_waits_for(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 256);
    bulk_load(sX, gX, 256, &sBarrier);  // race
  }
  gOut[threadIdx.x] = 1.0f;
}

__global__ void store_without_fence(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, 256);  // race
    bulk_commit();
    bulk_wait<0>();
  }
}

__global__ void fence_of_other_memory(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  __shared__ MBarrier sBarrier;
  make(&sBarrier, 1);
  gOut[threadIdx.x] = gX[threadIdx.x];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sBarrier, 256);
    bulk_load(sX, gOut, 256, &sBarrier);  // race
  }
  mbarrier_wait(&sBarrier, 0);
}

__global__ void source_written_too_early(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, 256);
    bulk_commit();
    sX[0] = 1.0f;  // race
    bulk_wait<0>();
  }
}

__global__ void waits_for_too_few_stores(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, 128);
    bulk_commit();
    bulk_store(gOut + 32, sX + 32, 128);
    bulk_commit();
    bulk_wait_read<1>();
    sX[0] = 1.0f;
    sX[32] = 1.0f;  // race
    bulk_wait<0>();
  }
}

// Shared memory has been read, but the result need not be there yet.
__global__ void result_read_too_early(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, 256);
    bulk_commit();
    bulk_wait_read<0>();
    sX[0] = gOut[1];  // race
  }
}

__global__ void ends_before_its_store(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(gOut, sX, 256);  // race
    bulk_commit();
  }
}

// ---- products of 64 x 64 x 16: A and B lie in lines of 32 bytes ------------------------------------------------------------------

ROOFTILE_DEVICE void fill(__nv_bfloat16* sX, const __nv_bfloat16* gX) {
  for (int i = threadIdx.x; i < 64 * 16; i += 128) sX[swizzled<32>(2 * i) / 2] = gX[i];
}
ROOFTILE_DEVICE void empty(float* gD, const float (&d)[32]) {
  for (int i = 0; i < 32; ++i) gD[threadIdx.x * 32 + i] = d[i];
}

__global__ void product_not_waited_for(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[64 * 16];
  float d[32];
  fill(sX, gX);
  fence_async();
  __syncthreads();
  wgmma_fence(d);
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX), k_major<32>(sX), false);  // race
  wgmma_commit();
  empty(gD, d);
}

__global__ void operand_written_too_early(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[64 * 16];
  float d[32];
  fill(sX, gX);
  fence_async();
  __syncthreads();
  wgmma_fence(d);
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX), k_major<32>(sX), false);
  wgmma_commit();
  if (threadIdx.x == 5) sX[0] = gX[1];  // race
  wgmma_wait<0>(d);
  empty(gD, d);
}

__global__ void waits_for_too_few_products(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[2][64 * 16];
  float d[32];
  fill(sX[0], gX);
  fill(sX[1], gX);
  fence_async();
  __syncthreads();
  wgmma_fence(d);
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX[0]), k_major<32>(sX[0]), false);
  wgmma_commit();
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX[1]), k_major<32>(sX[1]));
  wgmma_commit();
  wgmma_wait<1>();
  __syncthreads();
  sX[0][threadIdx.x] = gX[1];
  if (threadIdx.x == 0) sX[1][0] = gX[1];  // race
  wgmma_wait<0>(d);
  empty(gD, d);
}

__global__ void operand_without_fence(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[64 * 16];
  float d[32];
  fill(sX, gX);
  __syncthreads();
  wgmma_fence(d);
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX), k_major<32>(sX), false);  // race
  wgmma_commit();
  wgmma_wait<0>(d);
  empty(gD, d);
}

__global__ void registers_without_fence(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[64 * 16];
  float d[32] = {};
  fill(sX, gX);
  fence_async();
  __syncthreads();
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX), k_major<32>(sX));  // race
  wgmma_commit();
  wgmma_wait<0>(d);
  empty(gD, d);
}

__global__ void too_many_columns(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[64 * 16];
  float d[64];
  fill(sX, gX);
  fence_async();
  __syncthreads();
  wgmma_fence(d);
  wgmma<__nv_bfloat16, 128>(d, k_major<32>(sX), k_major<32>(sX), false);  // out_of_bounds
  wgmma_commit();
  wgmma_wait<0>(d);
  gD[threadIdx.x] = d[0];
}

__global__ void descriptors_differ(float* gD, const __nv_bfloat16* gX) {
  __shared__ __align__(256) __nv_bfloat16 sX[2][64 * 16];
  float d[32];
  fill(sX[0], gX);
  fill(sX[1], gX);
  fence_async();
  __syncthreads();
  wgmma_fence(d);
  wgmma<__nv_bfloat16, 64>(d, k_major<32>(sX[threadIdx.x / 64]), k_major<32>(sX[0]), false);  // divergent_barrier
  wgmma_commit();
  wgmma_wait<0>(d);
  empty(gD, d);
}
