// adds: the loss and the gradient in one pass: the row waits in shared memory while it is summed up, and leaves it as its gradient; what finds no room is read again, from L2
// costs: dloss must be known ahead, here 1; 110 KB of shared memory a block, of which two share a multiprocessor, so that one writes while the other's row arrives
// loses when: rows are short: a block's copies, sums and stores follow each other, and two blocks do not cover the gaps
#include "rooftile/async.cuh"
#include "rooftile/cross_entropy_ahead.cuh"

using namespace rooftile;

// A block a row. `parked`: how many of a row's vectors of 16 bytes shared memory holds.
template <typename T, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(1024)
    cross_entropy_ahead(float* gLoss, T* gX, const long long* gTarget, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap,
                        int parked) {
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Online sPartial[WARP];
  __shared__ float sSpread[WARP];
  const long long i_m = blockIdx.x, t = gTarget[i_m];
  T* gRow = gX + i_m * stride_x;
  uint4* gVec = reinterpret_cast<uint4*>(gRow);
  const int vectors = V * int(sizeof(T)) / 16, near = min(parked, vectors), each = blockDim.x;
  if (!is_class(t, ignore, V)) {
    const float value = no_loss(t, ignore).loss;
    give_nothing<T>(gVec, value, threadIdx.x, vectors, each);
    if (threadIdx.x == 0) gLoss[i_m] = value;
    return;
  }
  for (int i = threadIdx.x; i < near; i += each) copy_async<16>(sX + i, gVec + i);  // all of it in flight
  copy_commit();
  Taken<T, SMOOTH, CAP> take(gRow, t, softcap);
#pragma unroll 4
  for (int i = near + threadIdx.x; i < vectors; i += each) take(gVec[i], i);
  copy_wait<0>();
  take.hide(sX, threadIdx.x, near, each);
  for (int i = take.fours(sX, threadIdx.x, near, each); i < near; i += each) take(sX[i], i);
  take.show(sX);
  const Online mine = group_reduce<WARP>(take.settled(), Combine());
  if (SMOOTH) take.spread = warp_reduce(take.spread, Sum());
  if (lane() == 0) sPartial[warp()] = mine, sSpread[warp()] = take.spread;
  __syncthreads();  // and from here on the row may be written: all have read what they wanted of it
  const RowLoss r = row_loss(group_reduce<WARP>(lane() < warps() ? sPartial[lane()] : online_start(), Combine()), take.known);
  const Given<T, CAP> give(r, V, smoothing, z, take);
  for (int i = threadIdx.x; i < near; i += each) give(gVec, sX[i], i, take);
#pragma unroll 4
  for (int i = near + threadIdx.x; i < vectors; i += each) give(gVec, gVec[i], i, take);
  if (warp() > 0) return;
  const float spread = SMOOTH ? warp_reduce(lane() < warps() ? sSpread[lane()] : 0.0f, Sum()) : 0.0f;
  if (lane() == 0) gLoss[i_m] = whole_loss(r, spread, V, smoothing, z);
}
