// Kernels with one fault each. The line that the simulator must name ends in a comment that says which kind it is.
#include <cuda_bf16.h>

__global__ void no_barrier_before(float* gOut, const float* gX) {
  __shared__ float sX[128];
  const int t = threadIdx.x;
  sX[t] = gX[t];
  gOut[t] = sX[127 - t];  // race
}

__global__ void no_barrier_after(float* gOut, const float* gX) {
  __shared__ float sX[64];
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    sX[t] = gX[i * 64 + t];  // race
    __syncthreads();
    for (int k = 0; k < 64; ++k) sum += sX[k];
  }
  gOut[t] = sum;
}

__global__ void global_off_by_one(float* gOut, const float* gX, int N) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= N) {
    gOut[0] = gX[i];  // out_of_bounds
  }
}

__global__ void shared_off_by_one(float* gOut, const float* gX) {
  __shared__ float sX[64];
  __shared__ float sY[64];
  const int t = threadIdx.x;
  sX[t] = gX[t];
  sY[t] = gX[t];
  __syncthreads();
  gOut[t] = sX[t + 1] + sY[t];  // out_of_bounds
}

__global__ void dynamic_too_small(float* gOut, const float* gX) {
  extern __shared__ float sX[];
  sX[threadIdx.x] = gX[threadIdx.x];  // out_of_bounds
  gOut[threadIdx.x] = sX[threadIdx.x];
}

__global__ void misaligned_float4(float* gOut, const float* gX) {
  const int t = threadIdx.x;
  const float4 x = *reinterpret_cast<const float4*>(gX + 4 * t + 1);  // misaligned
  gOut[t] = x.x + x.y + x.z + x.w;
}

__global__ void misaligned_shared(float* gOut, const float* gX) {
  __shared__ float sX[128];
  const int t = threadIdx.x;
  sX[t] = gX[t];
  __syncthreads();
  if (t < 32) {
    const float4 x = reinterpret_cast<const float4*>(sX)[t];  // misaligned
    gOut[t] = x.x + x.y + x.z + x.w;
  }
}

__global__ void divergent_branches(float* gOut) {
  if (threadIdx.x < 32) {
    gOut[threadIdx.x] = 1;
    __syncthreads();
  } else {
    gOut[threadIdx.x] = 2;
    __syncthreads();  // divergent_barrier
  }
}

__global__ void left_before_barrier(float* gOut, int N) {
  if (threadIdx.x >= N) return;
  __syncthreads();  // divergent_barrier
  gOut[threadIdx.x] = 1;
}

__global__ void mask_of_all(float* gOut, const float* gX) {
  float x = gX[threadIdx.x];
  if (threadIdx.x < 16) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);  // bad_mask
  }
  __syncthreads();
  gOut[threadIdx.x] = x;
}

__global__ void mask_without_me(float* gOut, const float* gX) {
  float x = gX[threadIdx.x];
  x += __shfl_down_sync(0x0000ffffu, x, 1);  // bad_mask
  gOut[threadIdx.x] = x;
}

__global__ void reads_lane_outside(float* gOut, const float* gX) {
  float x = gX[threadIdx.x];
  if (threadIdx.x < 16) x += __shfl_sync(0x0000ffffu, x, 20);  // bad_mask
  gOut[threadIdx.x] = x;
}

__global__ void lane_has_left(float* gOut, const float* gX, int N) {
  if (threadIdx.x >= N) return;
  gOut[threadIdx.x] = __shfl_xor_sync(0xffffffffu, gX[threadIdx.x], 16);  // bad_mask
}

__global__ void blocks_race(float* gOut, const float* gX) {
  const float x = gX[blockIdx.x * blockDim.x + threadIdx.x];
  if (threadIdx.x == 0) {
    gOut[0] += x;  // race
  }
}

__global__ void flag_without_fence(float* gOut, int* gFlag) {
  if (blockIdx.x == 0) {
    gOut[0] = 1;
    *reinterpret_cast<volatile int*>(gFlag) = 1;
  } else {
    while (*reinterpret_cast<volatile int*>(gFlag) == 0) {
    }
    gOut[1] = gOut[0];  // race
  }
}

__global__ void never_written(float* gOut) {
  __shared__ float sX[32];
  if (threadIdx.x < 31) sX[threadIdx.x] = 1;
  __syncthreads();
  gOut[threadIdx.x] = sX[threadIdx.x];  // uninitialised
}

template <typename T>
__global__ void tail_not_masked(T* gOut, const T* gX, int N) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  gOut[i] = gX[i] * T(2.0f);  // out_of_bounds
  (void)N;
}

__global__ void waits_for_ever(int* gOut, volatile int* gFlag) {
  if (threadIdx.x == 0) {
    while (*gFlag == 0) {  // timeout
    }
  }
  __syncthreads();
  gOut[threadIdx.x] = 1;
}

__global__ void counts_for_ever(int* gOut) {
  unsigned n = threadIdx.x + 1;
  while (n != 0) {  // timeout
    n = n * 3 | 1;
  }
  gOut[threadIdx.x] = int(n);
}

#include "rooftile/async.cuh"
__global__ void read_before_wait(float* gOut, const float* gX) {
  __shared__ __align__(16) float sX[2][32];
  for (int stage = 0; stage < 2; ++stage) {
    rooftile::copy_async<4>(&sX[stage][threadIdx.x], gX + 32 * stage + threadIdx.x);
    rooftile::copy_commit();
  }
  rooftile::copy_wait<2>();
  gOut[threadIdx.x] = sX[0][threadIdx.x];  // uninitialised
}

__global__ void syncwarp_forgotten(float* gOut, const float* gX) {
  __shared__ float sX[64];
  sX[threadIdx.x] = gX[threadIdx.x];
  gOut[threadIdx.x] = sX[threadIdx.x ^ 1];  // race
}

// g++ announces no read of a struct that goes straight into a call; the function must be inlined for the read to be seen.
__device__ float doubled(__nv_bfloat16 x) { return 2 * static_cast<float>(x); }
__global__ void narrow_by_value(float* gOut, const __nv_bfloat16* gX) {
  gOut[threadIdx.x] = doubled(gX[threadIdx.x + 1]);  // out_of_bounds
}
