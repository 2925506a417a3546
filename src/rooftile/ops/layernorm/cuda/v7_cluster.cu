// adds: a cluster of blocks a row: each holds a part of it and of the parameters, and they meet in each other's shared memory
// costs: a barrier over the cluster a sum, about a microsecond; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"

using namespace rooftile;

// 64 registers a thread, or 80 where more than 4 vectors are held and there is room: of 512 threads and more two blocks are wanted
template <int VECS, int THREADS> constexpr int BLOCKS = (VECS > 4 && THREADS < 512 ? 768 : 1024) / THREADS;

// The backward holds 16 sums a vector of 16-bit elements: 128 registers
template <int VECS, int THREADS> constexpr int BLOCKS_BACKWARD = THREADS < 512 ? 512 / THREADS : 1;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive.
template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int CLUSTER, int VECS, int THREADS, int STAGES>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, long long M, int N, long long stride_x, float eps) {
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
  int stage = 0;
  const int left = N - i_l;
  cluster_sync();  // nobody's shared memory is written before its block is there
  for (; i_m < M; i_m += step, i_next += step) {
    uint4 rX[VECS];
    float rF[WIDTH], rW[WIDTH], rB[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      rX[v] = sX[(stage * VECS + v) * THREADS + threadIdx.x];  // zeros beyond the row
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rF[k];
      stay_packed(rX[v], zero);
      fetch(stage, v);
    }
    const float mean = cluster_reduce<CLUSTER, THREADS>(sum, Sum(), sPartial, 0) / N;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
      stay_packed(rX[v], zero);
    }
    const float rstd = rsqrtf(cluster_reduce<CLUSTER, THREADS>(square, Sum(), sPartial, 1) / N + eps);
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT >= left) break;
      unpack<T>(rF, rX[v]);
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
      if (BIAS) parameters(rB, gB + i_l + v * NEXT);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rW[k] : rstd) + (BIAS ? rB[k] : 0.0f);
      pack<T>(rX[v], rF);
      __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rX[v]);
    }
    if (gRstd && i_l == 0) gMean[i_m] = mean, gRstd[i_m] = rstd;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}

// n = (x - mean) rstd, g = w dout: dx = rstd (g - mean(g) - n mean(g n)), and of dout n and dout the sums over the cluster's rows to
// gPartial [2, clusters, N]. A thread has the same columns of every row, so its share of both stays in registers; the rows are read from
// their slots twice.
template <typename T, typename W, bool WEIGHT, bool BIAS, int CLUSTER, int VECS, int THREADS, int STAGES>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS_BACKWARD<VECS, THREADS>)
    layernorm_backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const T* __restrict__ gX,
                     const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd, long long M, int N,
                       long long stride_dout, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Pair sPartial[2][CLUSTER * THREADS / WARP];
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
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rG[WIDTH], rX[WIDTH], rW[WIDTH];
  int stage = 0, parity = 0;
  const int left = N - i_l;
  cluster_sync();  // nobody's shared memory is written before its block is there
  for (; i_m < M; i_m += step, i_next += step, parity ^= 1) {
    const float rstd = gRstd[i_m];
    const float mean = gMean[i_m];
    Pair sum = {0.0f, 0.0f};  // of g, of g (x - mean)
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not
      if (v * NEXT >= left) break;
      unpack<T>(rG, *slot(stage, v)), unpack<T>(rX, slot(stage, v)[THREADS]);
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const float g = WEIGHT ? rG[k] * rW[k] : rG[k];
        sum.a += g, sum.b += g * (rX[k] - mean);
      }
    }
    sum = cluster_reduce<CLUSTER, THREADS>(sum, SumPair(), sPartial, parity);
    const float level = sum.a / N, along = sum.b * rstd / N;
    T* gTo = gDx + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT < left) {
        unpack<T>(rG, *slot(stage, v)), unpack<T>(rX, slot(stage, v)[THREADS]);
        if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = (rX[k] - mean) * rstd;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          if (BIAS) rDb[v][k] += rG[k];
          rX[k] = rstd * ((WEIGHT ? rG[k] * rW[k] : rG[k]) - level - n * along);
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
  const auto write = [&](float* gTo, const float(&rD)[VECS][WIDTH]) {
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4)
          *reinterpret_cast<float4*>(gTo + i_l + v * NEXT + k) = {rD[v][k], rD[v][k + 1], rD[v][k + 2], rD[v][k + 3]};
  };
  if (WEIGHT) write(gPartial + first * N, rDw);
  if (BIAS) write(gPartial + (step + first) * N, rDb);
}
