// adds: rows in shared memory by the copy engine, ROWS a cluster at once; the parameters of the first AHEAD vectors are asked for while rows arrive
// costs: a cluster comes and leaves for every ROWS rows; registers for AHEAD vectors of parameters; Hopper and later
// loses when: a row fits the registers of one block (below 128 KB): it need not wait for others
#include "rooftile/cluster.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

// CLUSTER blocks of THREADS threads for ROWS rows, each thread VECS vectors of each; BLOCKS blocks a multiprocessor, so that while some wait others
// read and write. A warp tells the sum of its columns and their squared differences from its own mean, so that one exchange does.
template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int CLUSTER, int ROWS, int VECS, int THREADS, int AHEAD, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, long long M, int N, long long stride_x, float eps) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH, SPAN = VECS * NEXT;  // elements from a vector of a thread to its next; of a warp
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[ROWS][THREADS / WARP];
  __shared__ Exchange<Pair, CLUSTER, THREADS, ROWS> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = part * SPAN + lane() * WIDTH, left = N - i_l;
  const int own_columns = min(SPAN, N - part * SPAN);  // of this warp; none where the row ends before them
  const long long i_m = blockIdx.x / CLUSTER * (long long)ROWS;
  const auto slot = [&](int r) { return sX + (r * THREADS + warp() * WARP) * VECS + lane(); };
  const auto there = [&](int r, int v) { return v * NEXT < left && i_m + r < M; };
  if (lane() == 0 && own_columns > 0) {
    const int bytes = own_columns * int(sizeof(T));
#pragma unroll
    for (int r = 0; r < ROWS; ++r) mbarrier_init(&sFull[r][warp()], 1);
    mbarrier_fence();
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (i_m + r < M) {
        mbarrier_arrive_expect(&sFull[r][warp()], bytes);
        bulk_load(slot(r), gX + (i_m + r) * stride_x + i_l, bytes, &sFull[r][warp()], evict_last(M * N * (long long)sizeof(T)));
      }
  }
  if (own_columns < SPAN || i_m + ROWS > M)  // zeros beyond the row and the last row: nothing but a store need ask
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECS; ++v)
        if (!there(r, v)) slot(r)[v * WARP] = {};
  exchange_open(sExchange);
  Parameters<W, WIDTH> rWeight[AHEAD];
  Parameters<B, WIDTH> rBias[AHEAD];
  const auto ask = [&](int v) {
    const int i_n = min(i_l + v * NEXT, N - WIDTH);
    if (WEIGHT) rWeight[v % AHEAD].ask(gW + i_n);
    if (BIAS) rBias[v % AHEAD].ask(gB + i_n);
  };
#pragma unroll
  for (int v = 0; v < AHEAD && v < VECS; ++v) ask(v);
  __syncwarp();
  float rF[WIDTH], rW[WIDTH], rB[WIDTH], rMean[ROWS], rRstd[ROWS];
  Pair rOwn[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float sum = 0.0f, square = 0.0f, rSum[VECS];
    if (own_columns > 0 && i_m + r < M) mbarrier_wait(&sFull[r][warp()], 0);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, slot(r)[v * WARP]);
      rSum[v] = 0.0f;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[v] += rF[k];
      const float own = rSum[v] * (1.0f / WIDTH);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) square += (rF[k] - own) * (rF[k] - own);
      sum += rSum[v];
    }
    sum = warp_reduce(sum, Sum());
    const float own = sum / max(1, own_columns);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const float off = there(r, v) ? rSum[v] * (1.0f / WIDTH) - own : 0.0f;
      square += WIDTH * off * off;
    }
    rOwn[r] = Pair{sum, warp_reduce(square, Sum())};
  }
  cluster_wait();  // nobody's shared memory is written before its block is there
#pragma unroll
  for (int r = 0; r < ROWS; ++r) exchange_send(sExchange, r, rOwn[r]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const Pair both = exchange_moments<SPAN>(sExchange, r, N);
    rMean[r] = both.a, rRstd[r] = rsqrtf(both.b / N + eps);
    if (gRstd && part == 0 && lane() == 0 && i_m + r < M) gMean[i_m + r] = rMean[r], gRstd[i_m + r] = rRstd[r];
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (WEIGHT) rWeight[v % AHEAD].open(rW);
    if (BIAS) rBias[v % AHEAD].open(rB);
    if (v + AHEAD < VECS) ask(v + AHEAD);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      uint4 rX = slot(r)[v * WARP];
      unpack<T>(rF, rX);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = fmaf((rF[k] - rMean[r]) * rRstd[r], WEIGHT ? rW[k] : 1.0f, BIAS ? rB[k] : 0.0f);
      pack<T>(rX, rF);
      if (there(r, v)) __stwb(reinterpret_cast<uint4*>(gOut + (i_m + r) * N + i_l + v * NEXT), rX);
    }
  }
}
