// adds: rows whose copies are in flight while others are worked on, reads that stay in the L2, and a row of partial sums a block, not a warp or three
// costs: 24 bytes of shared memory a thread and a stage of 16-bit elements, and a block's sums are added when its last row is written
// loses when: rows are few: a second launch for the sums, and blocks that begin and end
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// 40 registers a thread: beside one such block a multiprocessor has room for who adds up the partial sums, standing by.
constexpr int THREADS = 768;

// gridDim.x strips of blockDim.x vectors lie side by side; a block takes blockDim.y rows at a time, every gridDim.y-th of `groups` such groups and
// the `rest` of one more, and STAGES of them wait or arrive. A thread keeps its columns and their sums; those over the block's rows go to gPartial
// [gridDim.y, N].
template <typename T, int STAGES>
__global__ void __launch_bounds__(THREADS, 2)
    backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask, int groups,
             int rest, int N, float scale, long long stride_dout, long long stride_mask) {
  constexpr int WIDTH = 16 / sizeof(T);
  using Kept = Vec<unsigned char, WIDTH>;
  extern __shared__ __align__(128) uint4 sDout[];  // a slot is read by the thread that has it filled: no barrier stands between
  const int threads = blockDim.x * blockDim.y, columns = blockDim.x * WIDTH, i_t = threadIdx.y * blockDim.x + threadIdx.x;
  Kept* const sMask = reinterpret_cast<Kept*>(sDout + STAGES * threads);
  const int first = blockIdx.x * columns, i_n = first + threadIdx.x * WIDTH;
  const int turns = i_n < N ? groups + (int(threadIdx.y) < rest) : 0;
  const long long step = (long long)gridDim.y * blockDim.y, i_m = blockIdx.y * (long long)blockDim.y + threadIdx.y;
  const Policy policy = evict_last(((long long)groups * blockDim.y + rest) * N * (sizeof(T) + 1));
  const T* gDout_next = gDout + i_m * stride_dout + i_n;
  const unsigned char* gMask_next = gMask + i_m * stride_mask + i_n;
  const auto fetch = [&](int slot, bool there) {
    copy_async(sDout + slot, gDout_next, there, policy);
    copy_async<WIDTH>(sMask + slot, gMask_next, there);
    copy_commit();
    gDout_next += step * stride_dout, gMask_next += step * stride_mask;
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(s * threads + i_t, int(blockIdx.y + s * gridDim.y) < turns);
  float rSum[WIDTH] = {};
  let_next_stand_by();  // who adds up the partial sums
  T* gTo = gDx + i_m * N + i_n;
  for (int i = blockIdx.y, slot = i_t; i < turns; i += gridDim.y, gTo += step * N) {
    copy_wait<STAGES - 1>();
    uint4 rDout = sDout[slot];
    const Kept rMask = sMask[slot];
    fetch(slot, i + STAGES * int(gridDim.y) < turns);
    slot = slot + threads < STAGES * threads ? slot + threads : i_t;
    float rF[WIDTH];
    unpack<T>(rF, rDout);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = rMask[k] ? rF[k] * scale : 0.0f, rSum[k] += rF[k];
    pack<T>(rDout, rF);
    __stwb(reinterpret_cast<uint4*>(gTo), rDout);
  }
  copy_wait<0>();
  __syncthreads();
  float* sSum = reinterpret_cast<float*>(sDout);  // the slots are free
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4)
    *reinterpret_cast<float4*>(sSum + threadIdx.y * columns + threadIdx.x * WIDTH + k) = {rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]};
  __syncthreads();
  for (int i = i_t; i < columns && first + i < N; i += threads) {
    float sum = 0.0f;
#pragma unroll 4
    for (int y = 0; y < int(blockDim.y); ++y) sum += sSum[y * columns + i];
    gPartial[blockIdx.y * (long long)N + first + i] = sum;
  }
}
