// adds: a cluster of blocks a row: each holds a part of it and of the parameters, and they meet in each other's shared memory
// costs: a barrier over the cluster a sum, about a microsecond; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"

using namespace rooftile;

// 64 registers a thread, or 80 where more than 4 vectors are held and there is room: of 512 threads and more two blocks are wanted
template <int VECS, int THREADS> constexpr int BLOCKS = (VECS > 4 && THREADS < 512 ? 768 : 1024) / THREADS;

// The backward holds 8 sums a vector of 16-bit elements: 80 registers, 64 where 512 threads and more want them twice, 128 for 4 vectors there
template <int VECS, int THREADS> constexpr int BLOCKS_BACKWARD = (THREADS < 512 ? 768 : VECS > 2 ? 512 : 1024) / THREADS;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive.
template <typename T, typename W, bool WEIGHT, int CLUSTER, int VECS, int THREADS, int STAGES>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW, long long M, int N,
            long long stride_x, float eps, float offset) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;  // elements from a vector of a thread to its next
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ float sPartial[2][CLUSTER * THREADS / WARP];
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
    float rF[WIDTH], rW[WIDTH], sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      rX[v] = sX[(stage * VECS + v) * THREADS + threadIdx.x];  // zeros beyond the row
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rF[k];
      stay_packed(rX[v], zero);
      fetch(stage, v);
    }
    const float rstd = rsqrtf(cluster_reduce<CLUSTER, THREADS>(sum, Sum(), sPartial, parity) / N + eps);
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT >= left) break;
      unpack<T>(rF, rX[v]);
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT, offset);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] *= WEIGHT ? rstd * rW[k] : rstd;
      pack<T>(rX[v], rF);
      __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rX[v]);
    }
    if (gRstd && i_l == 0) gRstd[i_m] = rstd;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}

// n = x rstd, g = w dout: dx = rstd (g - n mean(g n)), and of dout n the sum over the cluster's rows to gPartial [clusters, N].
// A thread has the same columns of every row, so its share of dweight stays in registers; both rows are read from their slots twice.
template <typename T, typename W, bool WEIGHT, int CLUSTER, int VECS, int THREADS, int STAGES>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS_BACKWARD<VECS, THREADS>)
    rmsnorm_backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const T* __restrict__ gX,
                     const W* __restrict__ gW, const float* __restrict__ gRstd, long long M, int N, long long stride_dout, long long stride_x,
                     float offset) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ float sPartial[2][CLUSTER * THREADS / WARP];
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH;
  const long long step = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
  long long i_m = first, i_next = first;
  const auto slot = [&](int stage, int v) { return sX + (stage * VECS + v) * 2 * THREADS + threadIdx.x; };
  const auto fetch = [&](int stage, int v) {
    const int left = i_next < M ? N - i_l : 0;
    copy_async<16>(slot(stage, v), gDout + i_next * stride_dout + i_l + v * NEXT, v * NEXT < left);
    copy_async<16>(slot(stage, v) + THREADS, gX + i_next * stride_x + i_l + v * NEXT, v * NEXT < left);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  float rDw[VECS][WIDTH] = {}, rG[WIDTH], rX[WIDTH], rW[WIDTH];
  int stage = 0, parity = 0;
  const int left = N - i_l;
  cluster_sync();  // nobody's shared memory is written before its block is there
  for (; i_m < M; i_m += step, i_next += step, parity ^= 1) {
    const float rstd = gRstd[i_m];
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not
      if (v * NEXT >= left) break;
      unpack<T>(rG, *slot(stage, v)), unpack<T>(rX, slot(stage, v)[THREADS]);
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT, offset);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += (WEIGHT ? rG[k] * rW[k] : rG[k]) * rX[k];
    }
    const float along = cluster_reduce<CLUSTER, THREADS>(sum * rstd, Sum(), sPartial, parity) / N;
    T* gTo = gDx + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT < left) {
        unpack<T>(rG, *slot(stage, v)), unpack<T>(rX, slot(stage, v)[THREADS]);
        if (WEIGHT) parameters(rW, gW + i_l + v * NEXT, offset);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = rX[k] * rstd;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          rX[k] = rstd * ((WEIGHT ? rG[k] * rW[k] : rG[k]) - n * along);
        }
        uint4 rDx;
        pack<T>(rDx, rX);
        __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rDx);
      }
      fetch(stage, v);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
  if (!WEIGHT) return;
  float* gTo = gPartial + first * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < left)
#pragma unroll
      for (int k = 0; k < WIDTH; k += 4)
        *reinterpret_cast<float4*>(gTo + v * NEXT + k) = {rDw[v][k], rDw[v][k + 1], rDw[v][k + 2], rDw[v][k + 3]};
}
