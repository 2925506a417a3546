// adds: a cluster of blocks a row: each holds a part, and they meet in each other's shared memory
// costs: a barrier over the cluster a row, about a microsecond; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"

using namespace rooftile;

// 64 registers a thread, or 80 where more than 4 vectors are held and there is room: of 512 threads and more two blocks are wanted
template <int VECS, int THREADS> constexpr int BLOCKS = (VECS > 4 && THREADS < 512 ? 768 : 1024) / THREADS;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive.
template <typename T, int CLUSTER, int VECS, int THREADS, int STAGES>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;  // elements from a vector of a thread to its next
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Online sPartial[2][CLUSTER * THREADS / WARP];
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH;
  const unsigned zero = hidden_zero(N);
  const long long step = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
  long long i_m = first, i_next = first;  // the row worked on, the row to be asked for
  const auto fetch = [&](int stage, int v) {
    const int left = i_next < M ? N - i_l : 0;
    copy_async<16>(sX + (stage * VECS + v) * THREADS + threadIdx.x, gX + i_next * stride_x + i_l + v * NEXT, v * NEXT < left);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  int stage = 0, parity = 0;
  const int left = N - i_l;
  cluster_sync();  // nobody's shared memory is written before its block is there
  for (; i_m < M; i_m += step, i_next += step, parity ^= 1) {
    uint4 rX[VECS];
    float rF[WIDTH];
    Online rS = online_start();
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      rX[v] = sX[(stage * VECS + v) * THREADS + threadIdx.x];
      unpack<T>(rF, rX[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS.max = fmaxf(rS.max, rF[k]);
      stay_packed(rX[v], zero);
      fetch(stage, v);
    }
    float base = base_of(rS.max);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(rF[k] - base);
      stay_packed(rX[v], zero);
    }
    rS = cluster_reduce<CLUSTER, THREADS>(rS, Combine(), sPartial, parity);
    base = base_of(rS.max);
    const float scale = 1.0f / rS.sum;  // of a row of -inf 0 * inf = NaN, as PyTorch has it
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = exp_fast(rF[k] - base) * scale;
      pack<T>(rX[v], rF);
      if (v * NEXT < left) __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rX[v]);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}

// dx = out (dout - sum(dout out)): a slot of each tensor a vector
template <typename T, int CLUSTER, int VECS, int THREADS, int STAGES>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, 1024 / THREADS)
    softmax_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gOut, long long M, int N, long long stride_dout,
                     long long stride_out) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ float sPartial[2][CLUSTER * THREADS / WARP];
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH;
  const unsigned zero = hidden_zero(N);
  const long long step = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
  long long i_m = first, i_next = first;
  const auto fetch = [&](int stage, int v) {
    const int left = i_next < M ? N - i_l : 0;
    uint4* sTo = sX + (stage * VECS + v) * 2 * THREADS + threadIdx.x;
    copy_async<16>(sTo, gDout + i_next * stride_dout + i_l + v * NEXT, v * NEXT < left);
    copy_async<16>(sTo + THREADS, gOut + i_next * stride_out + i_l + v * NEXT, v * NEXT < left);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  int stage = 0, parity = 0;
  const int left = N - i_l;
  cluster_sync();  // nobody's shared memory is written before its block is there
  for (; i_m < M; i_m += step, i_next += step, parity ^= 1) {
    uint4 rG[VECS], rY[VECS];
    float rFG[WIDTH], rFY[WIDTH], dot = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();
      const uint4* sFrom = sX + (stage * VECS + v) * 2 * THREADS + threadIdx.x;
      rG[v] = sFrom[0], rY[v] = sFrom[THREADS];  // zeros beyond the row
      unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) dot += rFG[k] * rFY[k];
      stay_packed(rG[v], zero), stay_packed(rY[v], zero);
      fetch(stage, v);
    }
    dot = cluster_reduce<CLUSTER, THREADS>(dot, Sum(), sPartial, parity);
    T* gTo = gDx + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rFY[k] *= rFG[k] - dot;
      pack<T>(rY[v], rFY);
      if (v * NEXT < left) __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rY[v]);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}
