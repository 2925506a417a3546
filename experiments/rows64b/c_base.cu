// adds: the row waits in the shared memory of a cluster of blocks, a share each, so that however long it is nothing of it is read twice
// costs: blocks wait for each other's sums, told by an exchange of 8 bytes a warp; Hopper and later
// loses when: a row fits one block with another beside it, as v6's do up to 110 KB: those wait for nobody
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"
#include "rooftile/cross_entropy_ahead.cuh"

using namespace rooftile;

// A cluster a row, `share` vectors of 16 bytes a block.
template <typename T, bool SMOOTH, bool CAP, int CLUSTER, int THREADS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, CAP ? 1024 / THREADS : THREADS > 512 ? 1 : 3)
    cross_entropy_ahead(float* gLoss, T* gX, const long long* gTarget, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap,
                        int share) {
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Exchange<Online, CLUSTER, THREADS, 2> sExchange;
  const long long i_m = blockIdx.x / CLUSTER, t = gTarget[i_m];
  T* gRow = gX + i_m * stride_x;
  uint4* gVec = reinterpret_cast<uint4*>(gRow);
  const int rank = cluster_rank(), first = rank * share + int(threadIdx.x), end = min(V * int(sizeof(T)) / 16, (rank + 1) * share);
  uint4* sMine = sX - rank * share;  // by a vector's place in the row
  if (!is_class(t, ignore, V)) {
    const float value = no_loss(t, ignore).loss;
    give_nothing<T>(gVec, value, first, end, THREADS);
    if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = value;
    return;
  }
  exchange_open(sExchange);
  for (int i = first; i < end; i += THREADS) copy_async<16>(sMine + i, gVec + i);  // all of it in flight
  copy_commit();
  Taken<T, SMOOTH, CAP> take(gRow, t, softcap);  // of another's share, maybe
  cluster_wait();  // all blocks are there: from here on they may be told of sums
  __syncthreads();
  cluster_arrive();  // this one has read what is not its own
  copy_wait<0>();
  take.hide(sMine, first, end, THREADS);
  for (int i = take.fours(sMine, first, end, THREADS); i < end; i += THREADS) take(sMine[i], i);
  take.show(sMine);
  exchange_send(sExchange, 0, group_reduce<WARP>(take.settled(), Combine()));
  if (SMOOTH) exchange_send(sExchange, 1, Online{warp_reduce(take.spread, Sum()), 0.0f});  // in a maximum's place
  const RowLoss r = row_loss(exchange_reduce(sExchange, 0, Combine()), take.known);
  const Given<T, CAP> give(r, V, smoothing, z, take);
  cluster_wait();
  for (int i = first; i < end; i += THREADS) give(gVec, sMine[i], i, take);
  const auto add = [](Online a, Online b) { return Online{a.max + b.max, 0.0f}; };
  const float spread = SMOOTH ? exchange_reduce(sExchange, 1, add).max : 0.0f;  // by all blocks: none may leave before it was told
  if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = whole_loss(r, spread, V, smoothing, z);
}
