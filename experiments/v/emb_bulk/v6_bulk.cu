// adds: rows that the copy engine brings into shared memory and takes out again: ROWS of them a warp, in flight as a whole, and no registers
// costs: rows are whole multiples of 16 bytes and begin at them; a barrier's start, and shared memory for all that is in flight
// loses when: rows are short: the engine takes about as long for one of 128 bytes as for one of 1024
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/policy.cuh"

using namespace rooftile;

// out[i_m] = weight[indices[i_m]]: a block is a warp, and a lane asks for a row. A row outside the weight is NaN.
template <typename T, int ROWS>
__global__ void __launch_bounds__(32) gather(T* __restrict__ gOut, const long long* __restrict__ gIndices, const T* __restrict__ gW, long long M,
                                             long long V, long long N, long long stride) {
  static_assert(ROWS <= WARP, "a lane a row");
  extern __shared__ __align__(128) uint4 sRows[];
  __shared__ MBarrier sCome;
  const long long first = blockIdx.x * (long long)ROWS, i_m = first + lane();
  const bool mine = lane() < ROWS && i_m < M;
  const long long i_v = mine ? gIndices[i_m] : 0;
  const int bytes = int(N * (long long)sizeof(T));
  if (lane() == 0) mbarrier_init(&sCome, 1), mbarrier_fence();
  const bool right = mine && 0 <= i_v && i_v < V;
  const unsigned all = __ballot_sync(ALL_LANES, mine), good = __ballot_sync(ALL_LANES, right);
  if (lane() == 0) mbarrier_arrive_expect(&sCome, __popc(good) * bytes);
  __syncwarp();
  if (right) bulk_load(sRows + lane() * (bytes / 16), gW + i_v * stride, bytes, &sCome, evict_last(M * N * (long long)sizeof(T)));
  if (all != good) {
    for (unsigned bad = all & ~good; bad; bad &= bad - 1) {
      T* sTo = reinterpret_cast<T*>(sRows) + (__ffs(int(bad)) - 1) * N;
      for (long long i = lane(); i < N; i += WARP) sTo[i] = T(__int_as_float(0x7fc00000));
    }
    fence_async();
    __syncwarp();
  }
  if (lane() != 0) return;
  mbarrier_wait(&sCome, 0);
  bulk_store(gOut + first * N, sRows, __popc(all) * bytes);
  bulk_commit();
  bulk_wait_read<0>();
}
