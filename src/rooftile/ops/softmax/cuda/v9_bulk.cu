// adds: backward by v8's exchange: a warp waits for numbers alone; rows come by one copy of up to 4 KB a warp and tensor, by Hopper's copy engine
// costs: a row's slot is filled anew when the warp has read all of it, not vector by vector; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/cluster.cuh"
#include "rooftile/tma.cuh"

using namespace rooftile;

// dx = out (dout - sum(dout out)): a slot of each tensor; in work both are in registers as they came
// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; STAGES rows wait or arrive; BLOCKS blocks a multiprocessor.
template <typename T, int CLUSTER, int VECS, int THREADS, int STAGES, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax_backward(T* __restrict__ gDx, const T* __restrict__ gDout, const T* __restrict__ gOut, long long M, int N, long long stride_dout,
                     long long stride_out) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH;
  extern __shared__ uint4 sX[];
  __shared__ MBarrier sFull[STAGES][THREADS / WARP];
  __shared__ Exchange<float, CLUSTER, THREADS> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = (part * VECS * WARP + lane()) * WIDTH, left = N - i_l;
  const bool none = part * VECS * NEXT >= N;  // the row ends before this warp's columns
  const unsigned zero = hidden_zero(N);
  const long long step = gridDim.x / CLUSTER;
  long long i_m = blockIdx.x / CLUSTER, i_next = i_m;
  const auto slot = [&](int stage) { return sX + (stage * THREADS + warp() * WARP) * 2 * VECS; };
  const auto fetch = [&](int stage) {
    if (lane() == 0 && !none && i_next < M) {
      const int bytes = min(VECS * NEXT, left) * int(sizeof(T));
      mbarrier_arrive_expect(&sFull[stage][warp()], 2 * bytes);
      bulk_load(slot(stage), gDout + i_next * stride_dout + i_l, bytes, &sFull[stage][warp()]);
      bulk_load(slot(stage) + VECS * WARP, gOut + i_next * stride_out + i_l, bytes, &sFull[stage][warp()]);
    }
  };
  if (lane() == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(&sFull[s][warp()], 1);
    mbarrier_fence();
  }
  exchange_open(sExchange);
  for (int s = 0; s < STAGES; ++s, i_next += step) fetch(s);
  cluster_wait();  // nobody's shared memory is written before its block is there
  int stage = 0, parity = 0;
  for (int turn = 0; i_m < M; i_m += step, i_next += step, ++turn) {
    uint4 rG[VECS], rY[VECS];
    float rFG[WIDTH], rFY[WIDTH], dot = 0.0f;
    if (!none) mbarrier_wait(&sFull[stage][warp()], parity);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      rG[v] = rY[v] = {0, 0, 0, 0};
      if (v * NEXT < left) rG[v] = slot(stage)[v * WARP + lane()], rY[v] = slot(stage)[(VECS + v) * WARP + lane()];
      unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) dot += rFG[k] * rFY[k];
      stay_packed(rG[v], zero), stay_packed(rY[v], zero);
    }
    __syncwarp();  // all have read: the slots go to the row STAGES turns on
    fetch(stage);
    exchange_send(sExchange, turn, group_reduce<WARP>(dot, Sum()));
    dot = exchange_reduce(sExchange, turn, Sum());
    T* gTo = gDx + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rFG, rG[v]), unpack<T>(rFY, rY[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rFY[k] *= rFG[k] - dot;
      pack<T>(rY[v], rFY);
      if (v * NEXT < left) __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rY[v]);
    }
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
}
