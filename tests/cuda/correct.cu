// Kernels without a fault, of every pattern that the checks must understand: no finding may be made in any of them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/async.cuh"
#include "rooftile/sync.cuh"

template <typename T, int BLOCK>
__global__ void tree(float* gOut, const T* gX, int N) {
  __shared__ float sSum[BLOCK / 32];
  float sum = 0;
  for (int i = blockIdx.x * BLOCK + threadIdx.x; i < N; i += gridDim.x * BLOCK) sum += static_cast<float>(gX[i]);
  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) sSum[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < BLOCK / 32 ? sSum[threadIdx.x] : 0.0f;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x == 0) atomicAdd(gOut, sum);
  }
}

template <int TILE>
__global__ void matmul(float* gC, const float* gA, const float* gB, int M, int N, int K) {
  __shared__ float sA[TILE][TILE], sB[TILE][TILE + 1];
  const int m = blockIdx.y * TILE + threadIdx.y, n = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < K; k += TILE) {
    sA[threadIdx.y][threadIdx.x] = m < M && k + threadIdx.x < K ? gA[m * K + k + threadIdx.x] : 0.0f;
    sB[threadIdx.y][threadIdx.x] = k + threadIdx.y < K && n < N ? gB[(k + threadIdx.y) * N + n] : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) sum += sA[threadIdx.y][i] * sB[i][threadIdx.x];
    __syncthreads();
  }
  if (m < M && n < N) gC[m * N + n] = sum;
}

// Two stages: the copy of the next tile is under way while this one is summed.
__global__ void pipeline(float* gOut, const float* gX, int tiles) {
  constexpr int BLOCK = 64;
  __shared__ __align__(16) float sX[2][4 * BLOCK];
  const int t = threadIdx.x;
  auto fetch = [&](int i) {
    if (i < tiles) rooftile::copy_async<16>(&sX[i % 2][4 * t], gX + i * 4 * BLOCK + 4 * t);
    rooftile::copy_commit();
  };
  float sum = 0;
  fetch(0);
  for (int i = 0; i < tiles; ++i) {
    fetch(i + 1);
    rooftile::copy_wait<1>();
    __syncthreads();
    for (int k = 0; k < 4; ++k) sum += sX[i % 2][k * BLOCK + (t + 1) % BLOCK];
    __syncthreads();
  }
  gOut[t] = sum;
}

// Inclusive sums in one pass: a block takes a number, adds up its part, and looks back over what the blocks before it have published.
template <int BLOCK>
__global__ void look_back(int* gOut, const int* gX, int* gPrefix, int* gPart, int* gState, int* gTicket, int N) {
  __shared__ int sBlock, sBefore;
  __shared__ int sX[BLOCK];
  const int t = threadIdx.x;
  if (t == 0) sBlock = atomicAdd(gTicket, 1);
  __syncthreads();
  const int block = sBlock, i = block * BLOCK + t;
  sX[t] = i < N ? gX[i] : 0;
  __syncthreads();
  for (int d = 1; d < BLOCK; d *= 2) {
    const int x = t >= d ? sX[t - d] : 0;
    __syncthreads();
    sX[t] += x;
    __syncthreads();
  }
  if (t == 0) {
    const int total = sX[BLOCK - 1];
    gPart[block] = total;
    rooftile::store_release(gState + block, 1);
    int before = 0;
    for (int b = block - 1; b >= 0; --b) {
      int state;
      while ((state = rooftile::load_acquire(gState + b)) == 0) rooftile::spin_pause();
      if (state == 2) {
        before += gPrefix[b];
        break;
      }
      before += gPart[b];
    }
    gPrefix[block] = before + total;
    rooftile::store_release(gState + block, 2);
    sBefore = before;
  }
  __syncthreads();
  if (i < N) gOut[i] = sBefore + sX[t];
}

// The last block to come adds up what all of them have left.
__global__ void last_block(float* gOut, float* gPart, const float* gX, unsigned* gCount) {
  __shared__ bool sLast;
  if (threadIdx.x == 0) {
    gPart[blockIdx.x] = gX[blockIdx.x];
    __threadfence();
    sLast = atomicAdd(gCount, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (sLast && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += gPart[i];
    *gOut = sum;
  }
}

__global__ void spin_lock(int* gSum, int* gLock) {
  if (threadIdx.x == 0) {
    while (atomicCAS(gLock, 0, 1) != 0) {
    }
    __threadfence();
    *gSum += 1;
    __threadfence();
    atomicExch(gLock, 0);
  }
}

// A warp's own corner of shared memory, ordered by __syncwarp alone; half warps with masks of their own.
__global__ void warps_alone(float* gOut, const float* gX) {
  __shared__ float sX[4][32];
  const int w = threadIdx.x / 32, l = threadIdx.x % 32;
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    sX[w][l] = gX[threadIdx.x] + i;
    __syncwarp();
    for (int k = 0; k < 32; ++k) sum += sX[w][k];
    __syncwarp();
  }
  if (l < 16) {
    sum += __shfl_xor_sync(0x0000ffffu, sum, 8, 16);
  } else {
    sum -= __shfl_xor_sync(0xffff0000u, sum, 8, 16);
  }
  gOut[threadIdx.x] = sum;
}

// Neighbouring threads write neighbouring bytes; a histogram in shared memory, by atomics.
__global__ void bytes(unsigned char* gOut, const unsigned char* gX, unsigned* gCount) {
  __shared__ unsigned char sX[64];
  __shared__ unsigned sCount[4];
  const int t = threadIdx.x;
  if (t < 4) sCount[t] = 0;
  sX[t] = gX[t];
  __syncthreads();
  atomicAdd(&sCount[sX[t] % 4], 1u);
  gOut[t] = sX[63 - t];
  __syncthreads();
  if (t < 4) gCount[t] = sCount[t];
}

__constant__ float cScale[4] = {1, 2, 3, 4};

__global__ void half_pairs(__half2* gOut, const __half2* gX, const __nv_bfloat16* gB, int N) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) {
    const __half2 x = __hfma2(gX[i], gX[i], __float2half2_rn(cScale[i % 4]));
    gOut[i] = __hadd2(x, __half2half2(__float2half(__bfloat162float(gB[i]))));
  }
}

template <int PAD, bool SWIZZLE>
__global__ void transpose(float* gOut, const float* gX, int N) {
  __shared__ float sTile[32][32 + PAD];
  const int x = threadIdx.x, y = threadIdx.y;
  sTile[y][SWIZZLE ? x ^ y : x] = gX[(blockIdx.y * 32 + y) * N + blockIdx.x * 32 + x];
  __syncthreads();
  gOut[(blockIdx.x * 32 + y) * N + blockIdx.y * 32 + x] =
      sTile[x][SWIZZLE ? y ^ x : y];  // wavefronts
}

__global__ void strided(float* gOut, const float* gX, int stride) {
  gOut[threadIdx.x] =
      gX[threadIdx.x * stride];  // sectors
}

__device__ float opened(__nv_bfloat16 x) { return static_cast<float>(x); }
__global__ void narrow(float* gOut, const __nv_bfloat16* gX) {
  gOut[threadIdx.x] = opened(gX[threadIdx.x]);
}

__global__ void vectors(float4* gOut, const float4* gX) {
  __shared__ float4 sX[32];
  sX[threadIdx.x] = gX[threadIdx.x];
  __syncwarp();
  gOut[threadIdx.x] = sX[threadIdx.x ^ 1];
}

// Variables of the file, of which the first are given and the others, some pages behind them, begin as zero.
__device__ int gGiven[3] = {5, 6, 7};
__device__ int gZero[20000];
__global__ void variables(int* gOut) {
  const int t = threadIdx.x;
  gOut[t] = gGiven[t % 3] + gZero[t * 312];
}
