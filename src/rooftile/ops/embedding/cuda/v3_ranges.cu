// adds: a sort of our own in one launch: a block owns a range of rows, reads all indices, lays down its tokens and borders, and zeros where there are none
// costs: M 8 bytes for every block, out of the L2: 17 MB for 66 blocks and 32768 tokens, 3 us; 64 bytes of shared memory a row of the range
// loses when: M is large: from about 2^17 tokens on a radix sort, which passes over its keys a few times whatever the blocks are, moves less
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/places.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Order is the tokens sorted by row, stably; of padding and of what is outside the weight there is none. A warp has `steps` times 32 neighbouring
// indices and counters of its own, so that the places of a row's tokens are those of warp 0, then of warp 1, and no atomics are needed.
template <int WARPS, typename T, int WIDTH>
__global__ void __launch_bounds__(WARPS * 32, 1) sort(T* __restrict__ gDw, int* __restrict__ gKeys, int* __restrict__ gOrder, int* __restrict__ gBorders,
                                                   const long long* __restrict__ gIndices, int M, int V, long long N, int padding, int rows, int steps) {
  constexpr int AHEAD = 8, THREADS = WARPS * WARP;
  extern __shared__ __align__(128) int sAll[];  // counters [WARPS][rows]; of every step the lanes whose row is in the range [WARPS][steps]
  __shared__ int sTotal[WARPS];
  int* own = sAll + warp() * rows;
  int* sHits = sAll + WARPS * rows + warp() * steps;
  const int low = blockIdx.x * rows, here = min(rows, V - low), first = warp() * steps * WARP;
  let_next_stand_by();
  for (int r = lane(); r < rows; r += WARP) own[r] = 0;
  __syncwarp();
  int below = 0;  // tokens of rows before the range: where it begins
  for (int s = 0; s < steps; s += AHEAD) {
    long long i_v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int i = first + (s + k) * WARP + lane();
      i_v[k] = s + k < steps && i < M ? gIndices[i] : -1;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const bool counts = 0 <= i_v[k] && i_v[k] < V && i_v[k] != padding, in = counts && low <= i_v[k] && i_v[k] < low + here;
      below += counts && i_v[k] < low;
      const unsigned hits = __ballot_sync(ALL_LANES, in);
      if (s + k < steps && lane() == 0) sHits[s + k] = int(hits);
      if (hits) take(own, in, int(i_v[k]) - low);
    }
  }
  int start = block_reduce(below, Sum());
  Vec<T, WIDTH> none;
  fill(none, T(0.0f));
  counts_become_places(sAll, rows, here, start, sTotal, [&](int r, int place, int count) {
    if (r < here) gBorders[low + r] = place;
    for (unsigned empty = __ballot_sync(ALL_LANES, r < here && count == 0); empty; empty &= empty - 1) {
      T* gRow = gDw + (low + r - lane() + __ffs(int(empty)) - 1ll) * N;
      for (long long i_n = lane() * WIDTH; i_n < N; i_n += WARP * WIDTH) store_global(gRow + i_n, none);
    }
  });
  if (low + here == V && threadIdx.x == 0) gBorders[V] = start;
  __syncthreads();
  for (int s = 0; s < steps;) {  // steps without hits are passed over; of the others AHEAD are loaded again at a time
    int step[AHEAD], row[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      while (s < steps && sHits[s] == 0) ++s;
      step[k] = s++;
      row[k] = step[k] < steps && (sHits[step[k]] >> lane() & 1) ? int(gIndices[first + step[k] * WARP + lane()]) - low : -1;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (step[k] >= steps) break;
      const int place = take(own, row[k] >= 0, row[k]);
      if (row[k] >= 0) gKeys[place] = low + row[k], gOrder[place] = first + step[k] * WARP + lane();
    }
  }
}
