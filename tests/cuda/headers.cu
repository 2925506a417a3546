// The device headers at work, one kernel a header; the same file runs on the GPU and in the simulator.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/async.cuh"
#include "rooftile/mma.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/sync.cuh"
#include "rooftile/tables.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T, int N>
__global__ void twice(T* gOut, const T* gX, int count) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (i + N > count) return;
  Vec<T, N> rX;
  float rF[N];
  load_global(rX, gX + i);
  to_float(rF, rX);
  for (int k = 0; k < N; ++k) rF[k] *= 2.0f;
  from_float(rX, rF);
  blockIdx.x % 2 ? store(gOut + i, rX) : store_global(gOut + i, rX);
}

// gOut: sum, max, min of the block; then for each group of eight lanes its sum; then twice in a row to see the scratch reused.
__global__ void reductions(float* gOut, const float* gX) {
  const float x = gX[threadIdx.x];
  const float sum = block_reduce(x, Sum()), most = block_reduce(x, Max()), least = block_reduce(x, Min());
  const float eight = warp_reduce<8>(x, Sum());
  float* out = gOut + 4 * threadIdx.x;
  out[0] = sum, out[1] = most, out[2] = least, out[3] = eight;
}

__global__ void softmax_online(float* gOut, const float* gX, int N) {
  Online rS = online_start();
  for (int i = threadIdx.x; i < N; i += blockDim.x) online_add(rS, gX[blockIdx.x * N + i]);
  rS = block_reduce(rS, Combine());
  for (int i = threadIdx.x; i < N; i += blockDim.x) gOut[blockIdx.x * N + i] = __expf(gX[blockIdx.x * N + i] - rS.max) / rS.sum;
}

template <int BYTES>
__global__ void copies(float* gOut, const float* gX, int count) {
  extern __shared__ __align__(16) float sX[];
  constexpr int N = BYTES / 4;
  const int i = threadIdx.x * N;
  copy_async<BYTES>(sX + i, gX + i, i + N <= count);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  for (int k = threadIdx.x; k < int(blockDim.x) * N; k += blockDim.x) gOut[k] = sX[k];
}

// One tile: D[16,8] = A[16,16] B[16,8]. B is kept as it lies in memory, rows of 8, and turned by ldmatrix.
template <typename T>
__global__ void tile_product(float* gD, const T* gA, const T* gB) {
  __shared__ __align__(16) T sA[16][16];
  __shared__ __align__(16) T sB[16][8];
  for (int i = threadIdx.x; i < 256; i += 32) sA[i / 16][i % 16] = gA[i];
  for (int i = threadIdx.x; i < 128; i += 32) sB[i / 8][i % 8] = gB[i];
  __syncwarp();
  const int l = threadIdx.x;
  unsigned a[4], b[2];
  float d[4] = {};
  ldmatrix(a, &sA[l % 16][l / 16 * 8]);
  ldmatrix_transposed(b, &sB[l % 16][0]);
  mma_m16n8k16<T>(d, a, b);
  const int g = l / 4, t = l % 4;
  gD[g * 8 + 2 * t] = d[0], gD[g * 8 + 2 * t + 1] = d[1];
  gD[(g + 8) * 8 + 2 * t] = d[2], gD[(g + 8) * 8 + 2 * t + 1] = d[3];
}

// What ldmatrix hands out, without and with the turn: 32 lanes, four words then two words.
__global__ void fragments(unsigned* gOut, const __half* gX) {
  __shared__ __align__(16) __half sX[32][8];
  for (int i = threadIdx.x; i < 256; i += 32) sX[i / 8][i % 8] = gX[i];
  __syncwarp();
  unsigned four[4], two[2];
  ldmatrix_transposed(four, &sX[threadIdx.x][0]);
  ldmatrix(two, &sX[threadIdx.x % 16][0]);
  for (int i = 0; i < 4; ++i) gOut[threadIdx.x * 6 + i] = four[i];
  for (int i = 0; i < 2; ++i) gOut[threadIdx.x * 6 + 4 + i] = two[i];
}

// Block 0 tells the others a number.
__global__ void message(int* gOut, int* gWord, int* gFlag) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
      *gWord = 42;
      store_release(gFlag, 1);
    }
    while (load_acquire(gFlag) == 0) spin_pause();
    gOut[blockIdx.x] = *gWord;
  }
}

// Each block adds its index to the word that the block before has left, and passes it on: bit 32 says that it is there.
__global__ void relay(int* gOut, unsigned long long* gWords) {
  if (threadIdx.x == 0) {
    unsigned long long word = 1ull << 32;
    if (blockIdx.x > 0)
      while (!((word = load_relaxed(gWords + blockIdx.x - 1)) >> 32)) spin_pause();
    word += blockIdx.x;
    store_relaxed(gWords + blockIdx.x, word);
    gOut[blockIdx.x] = int(word);
  }
}

// A block a chunk, of tensors that only a table of addresses says where to find.
__global__ void number_tensors(const long long* gTable, const long long* gLayout, int count, int chunk) {
  const Chunk c = chunk_of(gLayout, count, blockIdx.x, chunk);
  const long long i = c.first + threadIdx.x;
  if (int(threadIdx.x) < chunk && i < c.size) tensor_of<float>(gTable, c.t)[i] = c.t * 1000.0f + i;
}
