// adds: a warp waits for the numbers of the other blocks alone, counted in by an mbarrier; each exponential once; clusters come as others leave
// costs: a register an element of the row in work, twice v7's; nothing arrives behind the row in work but another block's; Hopper and later
// loses when: a row fits one block with another beside it (below 64 KB): its blocks need not wait for each other
#include "rooftile/activation.cuh"
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"

using namespace rooftile;
constexpr float LOG2E = 1.4426950408889634f;

// All in powers of two: e = 2^(x log2 e - own) with own = max log2 e as it was rounded, so that what warps tell each other of it is exact.
// CLUSTER blocks of THREADS threads a row, each thread VECS vectors of it; BLOCKS blocks a multiprocessor.
template <typename T, int CLUSTER, int VECS, int THREADS, int BLOCKS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, BLOCKS)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, int N, long long stride_x) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH;  // elements from a vector of a thread to its next
  using Parts = Exchange<Online, CLUSTER, THREADS>;
  extern __shared__ uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Parts sExchange;
  const long long i_m = blockIdx.x / CLUSTER;
  const int i_l = (cluster_rank() * VECS * THREADS + int(threadIdx.x)) * WIDTH, left = N - i_l;
  exchange_open(sExchange);
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    copy_async<16>(sX + v * THREADS + threadIdx.x, gX + i_m * stride_x + i_l + v * NEXT, v * NEXT < left);
  copy_commit();
  cluster_wait();  // nobody's shared memory is written before its block is there
  copy_wait<0>();
  float rE[VECS][WIDTH], max = online_start().max, sum = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rE[v], v * NEXT < left ? sX[v * THREADS + threadIdx.x] : nothing<T>());
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rE[v][k]);
  }
  max = warp_reduce(max, Max()) * LOG2E;
  const float own = base_of(max);
#pragma unroll
  for (int v = 0; v < VECS; ++v)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rE[v][k] = exp2_fast(fmaf(rE[v][k], LOG2E, -own));
  exchange_send(sExchange, 0, Online{max, warp_reduce(sum, Sum())});
  exchange_wait(sExchange, 0);
  float top = online_start().max, total = 0.0f;
  for (int i = lane(); i < Parts::PARTS; i += WARP) top = fmaxf(top, sExchange.part[0][i].max);
  const float base = base_of(warp_reduce(top, Max()));
  for (int i = lane(); i < Parts::PARTS; i += WARP) total += sExchange.part[0][i].sum * exp2_fast(sExchange.part[0][i].max - base);
  // elements of a warp that has -inf alone are 0 whatever the base; of a row of -inf 0 * inf = NaN, as PyTorch has it
  const float scale = (max < own ? 1.0f : exp2_fast(own - base)) / warp_reduce(total, Sum());
  T* gTo = gOut + i_m * N + i_l;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (v * NEXT >= left) break;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rE[v][k] *= scale;
    uint4 rOut;
    pack<T>(rOut, rE[v]);
    __stcs(reinterpret_cast<uint4*>(gTo + v * NEXT), rOut);
  }
}
