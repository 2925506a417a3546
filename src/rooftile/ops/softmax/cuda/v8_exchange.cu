// adds: a warp waits for the numbers of the other blocks alone, counted in by an mbarrier; each exponential is made once
// costs: 32 bits a register an element of the row in work, twice v7's; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"

using namespace rooftile;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive; BLOCKS blocks a multiprocessor.
template <typename T, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH;  // elements from a vector of a thread to its next: a warp has neighbours
  extern __shared__ uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Exchange<Online, CLUSTER, THREADS> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = (part * VECS * WARP + lane()) * WIDTH, left = N - i_l;
  const long long step = gridDim.x / CLUSTER;
  long long i_m = blockIdx.x / CLUSTER, i_next = i_m;  // the row worked on, the row to be asked for
  const auto fetch = [&](int stage, int v) {
    copy_async<16>(sX + (stage * VECS + v) * THREADS + threadIdx.x, gX + i_next * stride_x + i_l + v * NEXT, i_next < M && v * NEXT < left);
    copy_commit();
  };
  exchange_open(sExchange);
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  cluster_wait();  // nobody's shared memory is written before its block is there
  int stage = 0;
  for (int turn = 0; i_m < M; i_m += step, i_next += step, ++turn) {
    float rE[VECS][WIDTH], max = online_start().max, sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      const uint4 rX = sX[(stage * VECS + v) * THREADS + threadIdx.x];
      unpack<T>(rE[v], v * NEXT < left ? rX : nothing<T>());
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rE[v][k]);
      fetch(stage, v);
    }
    const float own = base_of(max);
#pragma unroll
    for (int v = 0; v < VECS; ++v)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rE[v][k] = exp_fast(rE[v][k] - own);
    exchange_send(sExchange, turn, group_reduce<WARP>(Online{max, sum}, Combine()));
    const Online rS = exchange_reduce(sExchange, turn, Combine());
    // of a thread's -inf alone exp(-inf - base) = 0 times 0; of a row of -inf 0 * inf = NaN, as PyTorch has it
    const float scale = exp_fast(max - base_of(rS.max)) * (1.0f / rS.sum);
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rE[v][k] *= scale;
      uint4 rOut;
      pack<T>(rOut, rE[v]);
      if (v * NEXT < left) __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rOut);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}
