// adds: nothing is sorted: a warp keeps 32 columns of all rows' sums in shared memory and walks down its share of the tokens as they come
// costs: 128 bytes of shared memory a row and warp, so 256 rows leave 6 warps a multiprocessor; a table of float32 for each share
// loses when: the weight has more than 512 rows: then it refuses
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/reduce.cuh"

using namespace rooftile;

// Warp w of block (x, y) adds up columns (x WARPS + w) 32 and the next 31 of tokens y share to (y + 1) share, to gTo [gridDim.y, V, N]. A lane has
// its column of every row, row V for tokens that go nowhere; it adds in the tokens' order. 16 tokens are on their way while 16 are added.
template <typename T, typename To, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) table(To* __restrict__ gTo, const T* __restrict__ gDout, const long long* __restrict__ gIndices, int M,
                                                   int V, int N, long long stride, int padding, int share) {
  constexpr int BATCH = 16;
  extern __shared__ __align__(128) float sAll[];
  const int i_n = (blockIdx.x * WARPS + warp()) * WARP + lane(), first = blockIdx.y * share, last = min(M, first + share);
  if (i_n - lane() >= N) return;  // whole warps, which wait for no other
  float* sOwn = sAll + warp() * (V + 1) * WARP + lane();
  for (int v = 0; v <= V; ++v) sOwn[v * WARP] = 0.0f;
  const auto row_of = [&](int i) {  // a lane's token of a batch; the upper half repeats the lower
    const int i_m = i + lane() % BATCH;
    const long long v = i_m < last ? gIndices[i_m] : -1;
    return 0 <= v && v < V && v != padding ? int(v) : V;
  };
  const auto fetch = [&](T(&rX)[BATCH], int i) {
#pragma unroll
    for (int j = 0; j < BATCH; ++j) rX[j] = i + j < last && i_n < N ? gDout[(i + j) * stride + i_n] : static_cast<T>(0.0f);
  };
  T rNow[BATCH], rNext[BATCH];
  int row = row_of(first), row_next = V;
  fetch(rNow, first);
  for (int i = first; i < last; i += BATCH) {
    row_next = row_of(i + BATCH);
    fetch(rNext, i + BATCH);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) sOwn[__shfl_sync(ALL_LANES, row, j) * WARP] += static_cast<float>(rNow[j]);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) rNow[j] = rNext[j];
    row = row_next;
  }
  if (i_n < N)
    for (int v = 0; v < V; ++v) gTo[(blockIdx.y * (long long)V + v) * N + i_n] = static_cast<To>(sOwn[v * WARP]);
}
