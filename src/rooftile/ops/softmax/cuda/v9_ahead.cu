// adds: the row waits in shared memory, where the copy engine puts it, not in registers: a block more a multiprocessor asks while others work
// costs: a second exponential an element, and shared memory is read three times
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other; Hopper and later
#include "rooftile/cluster.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/softmax.cuh"

using namespace rooftile;

// CLUSTER blocks of THREADS threads a row, each warp VECS vectors a lane of it, which it asks for itself; BLOCKS blocks a multiprocessor.
template <int CLUSTER, int VECS, int THREADS, typename T, typename Form>
__device__ __forceinline__ void ahead(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x, Form form) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = WARP * WIDTH, SPAN = VECS * NEXT;  // elements from a vector of a thread to its next; of a warp
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ MBarrier sFull[THREADS / WARP];
  __shared__ Exchange<Online, CLUSTER, THREADS, 1> sExchange;
  const int part = cluster_rank() * (THREADS / WARP) + warp(), i_l = part * SPAN + lane() * WIDTH, left = N - i_l;
  const int own_columns = min(SPAN, N - part * SPAN);  // of this warp; none where the row ends before them
  const long long i_m = blockIdx.x / CLUSTER;
  uint4* sOwn = sX + warp() * WARP * VECS + lane();
  if (lane() == 0 && own_columns > 0) {
    const int bytes = own_columns * int(sizeof(T));
    mbarrier_init(&sFull[warp()], 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sFull[warp()], bytes);
    bulk_load(sOwn, gX + i_m * stride_x + i_l, bytes, &sFull[warp()], evict_last(gridDim.x / CLUSTER * (long long)N * sizeof(T)));
  }
  if (own_columns < SPAN)
    for (int v = 0; v < VECS; ++v)
      if (v * NEXT >= left) sOwn[v * WARP] = nothing<T>();
  exchange_open(sExchange);
  __syncwarp();
  if (own_columns > 0) mbarrier_wait(&sFull[warp()], 0);
  float rF[WIDTH];
  Online rS = online_start();
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF, sOwn[v * WARP]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rS.max = fmaxf(rS.max, rF[k]);
  }
  rS.max = warp_reduce(rS.max, Max());
  const float own = base_of(rS.max);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF, sOwn[v * WARP]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(rF[k] - own);
  }
  rS.sum = warp_reduce(rS.sum, Sum());
  cluster_wait();  // nobody's shared memory is written before its block is there
  exchange_send(sExchange, 0, rS);
  form.close(exchange_reduce(sExchange, 0, Combine()));
  T* gTo = gOut + i_m * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
    uint4 rOut;
    unpack<T>(rF, sOwn[v * WARP]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = form.out(rF[k]);
    pack<T>(rOut, rF);
    __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rOut);
  }
}

template <typename T, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  ahead<CLUSTER, VECS, THREADS>(gOut, gX, N, stride_x, Softmax{N});
}
template <typename T, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    log_softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  ahead<CLUSTER, VECS, THREADS>(gOut, gX, N, stride_x, LogSoftmax{N});
}
