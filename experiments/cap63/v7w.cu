#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"
#include "rooftile/cross_entropy_ahead.cuh"

using namespace rooftile;

template <typename T, bool SMOOTH, bool CAP, int CLUSTER, int THREADS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, CAP ? 1024 / THREADS : THREADS > 512 ? 1 : 3)
    cross_entropy_ahead(float* gLoss, T* gX, const long long* gTarget, int M, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap,
                        int share) {
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Exchange<Online, CLUSTER, THREADS, SMOOTH ? 4 : 2> sExchange;
  const int rank = cluster_rank(), first = rank * share + int(threadIdx.x), end = min(V * int(sizeof(T)) / 16, (rank + 1) * share);
  uint4* sMine = sX - rank * share;
  exchange_open(sExchange);
  int i_m = blockIdx.x / CLUSTER;
  const int clusters = gridDim.x / CLUSTER;
  const uint4* gFirst = reinterpret_cast<const uint4*>(gX + i_m * stride_x);
  for (int i = first; i < end; i += THREADS) copy_async<16>(sMine + i, gFirst + i);
  copy_commit();
  long long t = gTarget[i_m];
  cluster_wait();
  unsigned turn = 0;
  for (; i_m < M; i_m += clusters) {
    const int next = i_m + clusters;
    const bool more = next < M;
    const long long t_next = more ? gTarget[next] : ignore;
    T* gRow = gX + i_m * stride_x;
    uint4* gVec = reinterpret_cast<uint4*>(gRow);
    const uint4* gNext = reinterpret_cast<const uint4*>(gX + next * stride_x);
    if (!is_class(t, ignore, V)) {
      const float value = no_loss(t, ignore).loss;
      copy_wait<0>();
      give_nothing<T>(gVec, value, first, end, THREADS);
      if (more) for (int i = first; i < end; i += THREADS) copy_async<16>(sMine + i, gNext + i);
      copy_commit();
      if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = value;
      t = t_next;
      continue;
    }
    Taken<T, SMOOTH, CAP> take(gRow, t, softcap);
    cluster_arrive();
    copy_wait<0>();
    take.hide(sMine, first, end, THREADS);
    for (int i = take.fours(sMine, first, end, THREADS); i < end; i += THREADS) take(sMine[i], i);
    take.show(sMine);
    exchange_send(sExchange, turn, group_reduce<WARP>(take.settled(), Combine()));
    if (SMOOTH) exchange_send(sExchange, turn + 1, Online{warp_reduce(take.spread, Sum()), 0.0f});
    const RowLoss r = row_loss(exchange_reduce(sExchange, turn, Combine()), take.known);
    const Given<T, CAP> give(r, V, smoothing, z, take);
    cluster_wait();
    if (more) {
      for (int i = first; i < end; i += THREADS) give(gVec, sMine[i], i, take), copy_async<16>(sMine + i, gNext + i);
    } else {
      for (int i = first; i < end; i += THREADS) give(gVec, sMine[i], i, take);
    }
    copy_commit();
    const auto add = [](Online a, Online b) { return Online{a.max + b.max, 0.0f}; };
    const float spread = SMOOTH ? exchange_reduce(sExchange, turn + 1, add).max : 0.0f;
    if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = whole_loss(r, spread, V, smoothing, z);
    turn += SMOOTH ? 2 : 1;
    t = t_next;
  }
  cluster_sync();  // none leaves before it was told
}
