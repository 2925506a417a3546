// adds: a block sorts its share of the tokens in shared memory, then walks down it row by row: sums are in registers, a table is written, never read
// costs: a float32 table of the weight for each share, written and read again: 17 MB each way for 22 shares of 256 rows by 768
// loses when: a table is larger than the share it sums: rows times 4 bytes beside tokens times 2; it refuses weights of more than 512 rows
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/places.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Block (x, y) adds up the share x of tokens over the 32 WIDTH columns of strip y, to gTo [gridDim.x, V, N]. A token is two numbers of a word: its
// row, and its rank among its warp's tokens of that row or, once sorted, its place in the share. TOKENS are on their way while as many are added.
template <typename T, typename To, int WIDTH, int TOKENS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1) sums(To* __restrict__ gTo, const T* __restrict__ gDout, const long long* __restrict__ gIndices, int M,
                                                   int V, long long N, long long stride, int padding, int share) {
  constexpr int AHEAD = 4, BITS = 16, LOW = (1 << BITS) - 1;
  extern __shared__ __align__(128) float sEdge[];  // [WARPS][2][32 WIDTH]: what of a warp's span belongs to a row of the span before, and behind
  __shared__ int sTotal[WARPS];
  int* sPlace = reinterpret_cast<int*>(sEdge + WARPS * 2 * WARP * WIDTH);  // [WARPS][V]: where a warp's tokens of a row begin
  int* sEnd = sPlace + WARPS * V;                                         // [V]
  int* sOrder = sEnd + V;                                                 // [share]: tokens by row
  int* sToken = sOrder + share;                                           // [steps of all warps]: as they come
  const int first = blockIdx.x * share, here = min(M - first, share), steps = ceil_div(share, WARPS * WARP);
  int* own = sPlace + warp() * V;
  for (int r = lane(); r < V; r += WARP) own[r] = 0;
  __syncwarp();
  for (int s = 0; s < steps; s += AHEAD) {
    long long i_v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int i = (warp() * steps + s + k) * WARP + lane();
      i_v[k] = s + k < steps && i < here ? gIndices[first + i] : -1;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (s + k >= steps) break;
      const bool in = 0 <= i_v[k] && i_v[k] < V && i_v[k] != padding;
      const int rank = take(own, in, int(i_v[k]));
      sToken[(warp() * steps + s + k) * WARP + lane()] = in ? int(i_v[k]) << BITS | rank : -1;
    }
  }
  __syncthreads();
  const int r = threadIdx.x;  // a thread a row: counts become places, by row, then by warp
  int total = 0;
  if (r < V)
    for (int w = 0; w < WARPS; ++w) total += sPlace[w * V + r];
  const unsigned empty = __ballot_sync(ALL_LANES, r < V && total == 0);
  int count = 0, place = places(total, count, sTotal);
  if (r < V) {
    for (int w = 0; w < WARPS; ++w) {
      const int those = sPlace[w * V + r];
      sPlace[w * V + r] = place;
      place += those;
    }
    sEnd[r] = place;
  }
  __syncthreads();
  for (int s = 0; s < steps; ++s) {
    const int i = (warp() * steps + s) * WARP + lane(), token = sToken[i];
    if (token >= 0) sOrder[own[token >> BITS] + (token & LOW)] = (token & ~LOW) | i;
  }
  __syncthreads();

  let_next_stand_by();  // who adds up the tables
  const int each = ceil_div(count, WARPS), from = min(count, warp() * each), to = min(count, from + each);
  const long long i_n = (blockIdx.y * (long long)WARP + lane()) * WIDTH;
  const T* gStrip = gDout + first * stride + i_n;
  To* gTable = gTo + blockIdx.x * (long long)V * N + i_n;
  float* sOwn = sEdge + warp() * 2 * WARP * WIDTH + lane() * WIDTH;
  const auto write = [&](int row, const float(&rX)[WIDTH]) {
    Vec<To, WIDTH> rOut;
    from_float(rOut, rX);
    if (i_n < N) store_global(gTable + row * N, rOut);
  };
  const auto fetch = [&](int(&token)[TOKENS], Vec<T, WIDTH>(&rX)[TOKENS], int l) {
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) token[t] = l + t < to ? sOrder[l + t] : -1;  // the same for the warp
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
      if (token[t] >= 0 && i_n < N) load_global(rX[t], gStrip + (token[t] & LOW) * stride);
  };
  float rSum[WIDTH] = {};
  const auto close = [&](int row) {  // behind the last token of it in the span
    if (sPlace[row] >= from && sEnd[row] <= to) write(row, rSum);
    else
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) sOwn[(sPlace[row] >= from) * WARP * WIDTH + c] = rSum[c];
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) rSum[c] = 0.0f;
  };
  int now[TOKENS], next[TOKENS], row = from < to ? sOrder[from] >> BITS : -1;
  Vec<T, WIDTH> rNow[TOKENS], rNext[TOKENS];
  fetch(now, rNow, from);
  for (int l = from; l < to; l += TOKENS) {
    fetch(next, rNext, l + TOKENS);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (now[t] < 0) break;
      if (now[t] >> BITS != row) {
        close(row);
        row = now[t] >> BITS;
      }
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) rSum[c] += float(rNow[t][c]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) now[t] = next[t], rNow[t] = rNext[t];
  }
  if (row >= 0) close(row);
  const float rZero[WIDTH] = {};
  for (unsigned left = empty; left; left &= left - 1) write(warp() * WARP + __ffs(int(left)) - 1, rZero);
  __syncthreads();
  if (row < 0 || sPlace[row] < from || sEnd[row] <= to) return;  // its last row goes on behind: it adds up what others have of it
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) rSum[c] = sOwn[WARP * WIDTH + c];
  for (int w = warp() + 1; w * each < sEnd[row]; ++w)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) rSum[c] += sEdge[w * 2 * WARP * WIDTH + lane() * WIDTH + c];
  write(row, rSum);
}
