// adds: tokens are dealt to ranges of rows before they are sorted, a part of the text a block, so that who owns a range reads its own and no others
// costs: one launch more; 8 bytes a token written and read again, and 4 for every part and range
// loses when: there are few tokens a part and range, and with millions of rows hardly one: the table of where they begin is then what moves
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/places.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// A part's tokens with their rows, sorted by range and stably, to where the part lies; and where each range begins there: gBegins [ranges + 1, parts].
// Of padding and of what is outside the weight there is none. A warp has `steps` times 32 neighbouring indices and counters of its own.
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32) deal(int2* __restrict__ gDealt, int* __restrict__ gBegins, const long long* __restrict__ gIndices, int M, int V,
                                                   int padding, int rows, int ranges, int steps) {
  constexpr int THREADS = WARPS * WARP;
  extern __shared__ __align__(128) int sAll[];  // counters [WARPS][ranges]
  __shared__ int sTotal[WARPS];
  int* own = sAll + warp() * ranges;
  const int begin = blockIdx.x * steps * THREADS, first = begin + warp() * steps * WARP + lane();
  const auto row = [&](int s) {
    const long long i_v = s < steps && first + s * WARP < M ? gIndices[first + s * WARP] : -1;
    return 0 <= i_v && i_v < V && i_v != padding ? int(i_v) : -1;
  };
  let_next_stand_by();
  const int i_first = row(0), r_first = i_first / rows;  // kept for the second walk, of which there mostly is no more
  for (int r = lane(); r < ranges; r += WARP) own[r] = 0;
  __syncwarp();
  for (int s = 0; s < steps; ++s) {
    const int i_v = s ? row(s) : i_first;
    take(own, i_v >= 0, s ? i_v / rows : r_first);
  }
  int start = begin;
  counts_become_places(sAll, ranges, ranges, start, sTotal, [&](int r, int place, int) {
    if (r < ranges) gBegins[(long long)r * gridDim.x + blockIdx.x] = place;
  });
  if (threadIdx.x == 0) gBegins[(long long)ranges * gridDim.x + blockIdx.x] = start;
  __syncthreads();
  for (int s = 0; s < steps; ++s) {
    const int i_v = s ? row(s) : i_first, place = take(own, i_v >= 0, s ? i_v / rows : r_first);
    if (i_v >= 0) gDealt[place] = {i_v, first + s * WARP};
  }
}

// The tokens of a range, which lie in all parts, sorted by row and stably; the borders of its rows' segments.
template <int WARPS>
__global__ void ROOFTILE_EARLY __launch_bounds__(WARPS * 32)
    sort(int* __restrict__ gKeys, int* __restrict__ gOrder, int* __restrict__ gBorders, const int2* __restrict__ gDealt, const int* __restrict__ gBegins,
         int V, int rows, int parts, int part) {
  constexpr int AHEAD = 4, THREADS = WARPS * WARP;
  extern __shared__ __align__(128) int sAll[];  // counters [WARPS][rows]; of every part where it begins among the range's tokens, and where it lies
  __shared__ int sTotal[WARPS];
  int *own = sAll + warp() * rows, *sPrefix = sAll + WARPS * rows, *sLies = sPrefix + parts;
  const int low = blockIdx.x * rows, here = min(rows, V - low);
  for (int r = lane(); r < rows; r += WARP) own[r] = 0;
  earlier_done();
  let_next_stand_by();  // not before: who sums reads what the deal has left while this goes on
  int below = 0, count = 0;  // tokens of rows before the range, which is where it begins; its own
  for (int tile = 0; tile < parts; tile += THREADS) {
    __syncthreads();
    const int p = tile + int(threadIdx.x);
    const int* gBegin = gBegins + (long long)blockIdx.x * parts + p;
    const int lies = p < parts ? gBegin[0] : 0, size = p < parts ? gBegin[parts] - lies : 0;
    const int prefix = places(size, count, sTotal);
    if (p < parts) sPrefix[p] = prefix, sLies[p] = lies - prefix, below += lies - p * part;
  }
  int start = block_reduce(below, Sum());  // and all parts are told
  const int steps = (count + THREADS - 1) / THREADS, first = warp() * steps * WARP + lane();
  const auto token = [&](int s) {  // its row within the range, and its place in the text
    const int j = first + s * WARP;
    if (s >= steps || j >= count) return int2{-1, 0};
    int p = 0;  // the last part that begins at j or before
    for (int wide = 1 << (31 - __clz(parts)); wide; wide /= 2)
      if (p + wide < parts && sPrefix[p + wide] <= j) p += wide;
    const int2 found = gDealt[sLies[p] + j];
    return int2{found.x - low, found.y};
  };
  int2 rFirst[AHEAD];  // kept for the second walk, which most ranges' tokens are then not asked for again
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) rFirst[k] = token(k);
  for (int s = 0; s < steps; s += AHEAD) {
    int2 t[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) t[k] = s ? token(s + k) : rFirst[k];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
      if (s + k < steps) take(own, t[k].x >= 0, t[k].x);
  }
  counts_become_places(sAll, rows, here, start, sTotal, [&](int r, int place, int) {
    if (r < here) gBorders[low + r] = place;
  });
  if (low + here == V && threadIdx.x == 0) gBorders[V] = start;
  __syncthreads();
  for (int s = 0; s < steps; s += AHEAD) {
    int2 t[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) t[k] = s ? token(s + k) : rFirst[k];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (s + k >= steps) break;
      const int place = take(own, t[k].x >= 0, t[k].x);
      if (t[k].x >= 0) gKeys[place] = low + t[k].x, gOrder[place] = t[k].y;
    }
  }
}
