// adds: 16 bytes an access, EACH in flight before the first is used, a sum for each place in a vector; a block joins its threads once
// costs: EACH x 4 registers a thread for what is in flight, and x must begin at a multiple of 16 bytes
// loses when: N is small: the second stage is a launch of its own, some microseconds, which up to a block's share it does without
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T> struct Accumulator { using type = float; };
template <> struct Accumulator<double> { using type = double; };

// The block's sum of what it meets: all blocks walk through memory together, EACH vectors a thread at every turn.
template <int THREADS, int EACH, typename To, typename From>
ROOFTILE_DEVICE void sum_of_block(To* __restrict__ gOut, const From* __restrict__ gX, long long N) {
  ROOFTILE_CHECK_BLOCK(THREADS);
  using Real = typename Accumulator<From>::type;
  constexpr int WIDTH = 16 / sizeof(From);
  const long long first = blockIdx.x * (long long)THREADS + threadIdx.x, step = gridDim.x * (long long)THREADS, vectors = N / WIDTH;

  Real rSum[WIDTH] = {};
  long long i = first;
  for (; i + (EACH - 1) * step < vectors; i += EACH * step) {
    Wide<From> rX[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) load_global(rX[j], gX + (i + j * step) * WIDTH);
#pragma unroll
    for (int j = 0; j < EACH; ++j)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += static_cast<Real>(rX[j][k]);
  }
  for (; i < vectors; i += step) {
    Wide<From> rX;
    load_global(rX, gX + i * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] += static_cast<Real>(rX[k]);
  }
  i = vectors * WIDTH + first;  // fewer than WIDTH are left, and the first block has more threads than that
  if (i < N) rSum[0] += static_cast<Real>(gX[i]);

#pragma unroll
  for (int distance = WIDTH / 2; distance > 0; distance /= 2)
#pragma unroll
    for (int k = 0; k < distance; ++k) rSum[k] += rSum[k + distance];
  const Real total = block_reduce(rSum[0], Sum());
  if (threadIdx.x == 0) gOut[blockIdx.x] = static_cast<To>(total);
}

// With the type of x in gOut and one block that is the result; else gOut are numbers that `join` adds.
// The bound on blocks allows 64 or 128 registers: left to itself ptxas saves them for 2048 threads, and waits between loads.
template <typename From, typename To, int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS, EACH > 4 ? 512 / THREADS : 1024 / THREADS)
    sum(To* __restrict__ gOut, const From* __restrict__ gX, long long N) {
  let_next_stand_by();  // who adds up the blocks' sums
  sum_of_block<THREADS, EACH>(gOut, gX, N);
}

// One block adds the sums of all.
template <typename From, typename To, int THREADS>
__global__ void ROOFTILE_EARLY __launch_bounds__(THREADS) join(To* __restrict__ gOut, const From* __restrict__ gSums, long long N) {
  earlier_done();
  sum_of_block<THREADS, 4>(gOut, gSums, N);
}

// The gradient: one number into every element. Four stores of 16 bytes a thread, a block's side by side.
template <typename T>
__global__ void __launch_bounds__(256) fill(T* __restrict__ gDx, const T* __restrict__ gDout, long long N) {
  constexpr int WIDTH = 16 / sizeof(T), STORES = 4;
  const long long first = (blockIdx.x * (long long)STORES * 256 + threadIdx.x) * WIDTH;
  Wide<T> rDx;
  rooftile::fill(rDx, *gDout);
#pragma unroll
  for (int j = 0; j < STORES; ++j) {
    const long long i = first + j * 256 * WIDTH;
    if (i + WIDTH <= N) store_global(gDx + i, rDx);
    for (int k = 0; k < WIDTH && i + WIDTH > N && i + k < N; ++k) gDx[i + k] = rDx[k];
  }
}
