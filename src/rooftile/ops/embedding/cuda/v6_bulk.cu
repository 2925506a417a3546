// adds: forward the copy engine brings rows into shared memory and takes them out again, asked by a lane each; none of it passes through registers
// costs: shared memory for all that is under way; rows of whole 16 bytes; Hopper and later
// loses when: rows are of a few hundred bytes, of which each is two copies
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/policy.cuh"

using namespace rooftile;

// A block is a warp: `rows` tokens, or `strip` bytes of one; of out as of the weight the first to leave the L2 is what was written. A row outside the weight is NaN.
template <typename T>
__global__ void __launch_bounds__(WARP) gather(T* gOut, const long long* gIndices, const T* gW, long long M, long long V, int bytes, long long stride,
                                               int rows, int strip) {
  extern __shared__ __align__(128) uint4 sRows[];
  __shared__ MBarrier sCome;
  const long long i_m = blockIdx.x * (long long)rows + threadIdx.x;
  const int from = blockIdx.y * strip, size = min(strip, bytes - from), vectors = size / 16;
  const bool mine = threadIdx.x < rows && i_m < M;
  const long long i_v = mine ? gIndices[i_m] : 0;
  const bool inside = mine && 0 <= i_v && i_v < V;
  const unsigned come = __ballot_sync(0xffffffff, inside), lost = __ballot_sync(0xffffffff, mine && !inside);
  if (threadIdx.x == 0) {
    mbarrier_init(&sCome, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sCome, __popc(come) * size);
  }
  __syncwarp();
  uint4* sMine = sRows + threadIdx.x * vectors;
  if (inside) bulk_load(sMine, reinterpret_cast<const char*>(gW + i_v * stride) + from, size, &sCome, evict_last(M * bytes));
  if (lost) {
    const T nan = T(__int_as_float(0x7fc00000));
    for (int r = 0; r < rows; ++r)
      if (lost >> r & 1)
        for (int i = threadIdx.x; i < size / int(sizeof(T)); i += WARP) reinterpret_cast<T*>(sRows + r * vectors)[i] = nan;
    fence_async();
    __syncwarp();
  }
  if (!mine) return;
  mbarrier_wait(&sCome, 0);
  bulk_store(reinterpret_cast<char*>(gOut) + i_m * bytes + from, sMine, size);
  bulk_commit();
  bulk_wait_read<0>();
}
