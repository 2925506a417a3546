// adds: one read: a running maximum and sum, the row waiting in shared memory as it came; the part that finds no room is read again
// costs: up to 227 KB of shared memory a block (so 1 block a multiprocessor for a row above 113 KB), and a second exponential an element
// loses when: a block waits for its row and nothing else is there to run: rows that leave room for one block, and the first row of every block
#include "rooftile/async.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

template <int WIDTH>
__device__ __forceinline__ void add(Online& rS, const float (&rF)[WIDTH]) {
  float max = rS.max;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rF[k]);
  const float base = base_of(max);
  rS = {max, rS.sum * exp_fast(rS.max - base)};
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(rF[k] - base);
}

// `parked`: how many of the row's vectors of 16 bytes shared memory holds
template <typename T>
__global__ void softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x, int parked) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ uint4 sX[];
  __shared__ Online sPartial[2][WARP];
  const T* gRow = gX + blockIdx.x * stride_x;
  T* gTo = gOut + blockIdx.x * (long long)N;
  const int V = N / WIDTH;
  for (int i_v = threadIdx.x; i_v < parked; i_v += blockDim.x) copy_async<16>(sX + i_v, gRow + i_v * WIDTH);  // all of it in flight
  copy_commit();
  Online rS = online_start();
  uint4 rX;
  float rF[WIDTH];
#pragma unroll 4
  for (int i_v = parked + threadIdx.x; i_v < V; i_v += blockDim.x) {
    rX = reinterpret_cast<const uint4*>(gRow)[i_v];
    unpack<T>(rF, rX);
    add(rS, rF);
  }
  copy_wait<0>();  // a thread reads what it has itself copied: no barrier
  for (int i_v = threadIdx.x; i_v < parked; i_v += blockDim.x) {
    rX = sX[i_v];
    unpack<T>(rF, rX);
    add(rS, rF);
  }
  // blocks of any number of warps: those that are missing count as nothing
  rS = group_reduce<WARP>(rS, Combine());
  if (lane() == 0) sPartial[0][warp()] = rS;
  __syncthreads();
  rS = group_reduce<WARP>(lane() < warps() ? sPartial[0][lane()] : online_start(), Combine());
  const float base = base_of(rS.max), scale = 1.0f / rS.sum;  // of a row of -inf 0 * inf = NaN, as PyTorch has it
  for (int i_v = threadIdx.x; i_v < V; i_v += blockDim.x) {
    if (i_v < parked) rX = sX[i_v];
    else rX = reinterpret_cast<const uint4*>(gRow)[i_v];
    unpack<T>(rF, rX);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = exp_fast(rF[k] - base) * scale;
    pack<T>(rX, rF);
    reinterpret_cast<uint4*>(gTo)[i_v] = rX;
  }
}
