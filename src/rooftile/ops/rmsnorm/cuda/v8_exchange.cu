// adds: a warp waits for the numbers of the other blocks alone, counted in by an mbarrier
// costs: 32 bits a register an element of the row in work, twice v7's; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"

using namespace rooftile;

// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive; BLOCKS blocks a multiprocessor.
template <typename T, typename W, bool WEIGHT, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    rmsnorm(T* __restrict__ gOut, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW, long long M, int N,
            long long stride_x, float eps) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH;  // elements from a vector of a thread to its next: a warp has neighbours
  extern __shared__ uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Exchange<float, CLUSTER, THREADS> sExchange;
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
    float rX[VECS][WIDTH], rW[WIDTH], sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      unpack<T>(rX[v], sX[(stage * VECS + v) * THREADS + threadIdx.x]);  // zeros beyond the row
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rX[v][k] * rX[v][k];
      fetch(stage, v);
    }
    exchange_send(sExchange, turn, group_reduce<WARP>(sum, Sum()));
    const float rstd = rsqrtf(exchange_reduce(sExchange, turn, Sum()) / N + eps);
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT >= left) break;
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rX[v][k] *= WEIGHT ? rstd * rW[k] : rstd;
      uint4 rOut;
      pack<T>(rOut, rX[v]);
      __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rOut);
    }
    if (i_l == 0) gRstd[i_m] = rstd;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}
