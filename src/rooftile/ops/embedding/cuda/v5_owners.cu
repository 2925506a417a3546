// adds: one launch: the block that sorts a range of rows sums it too, from tokens in its own shared memory, and no block waits for another's
// costs: the sort's M 8 bytes a block as before; a row of more than 64 tokens is its block's together, one multiprocessor's
// loses when: one range has much of the batch: 6 % of all tokens are 3 MB of 50, 25 us for one multiprocessor, about what all take; half are 230
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/places.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Block x owns `rows` rows from x rows on. gOrder [M] takes what of its sorted tokens shared memory has no room for.
template <typename T, int WIDTH, int VECTORS, int TOKENS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1) owners(T* __restrict__ gDw, int* gOrder, const T* __restrict__ gDout, const long long* __restrict__ gIndices,
                                                     int M, int V, long long N, long long stride, int padding, int rows, int steps, int strips) {
  constexpr int AHEAD = 8, THREADS = WARPS * WARP, HELD = 2048, LONG = 64, COLUMNS = WARP * WIDTH;
  extern __shared__ __align__(128) int sAll[];  // counters [WARPS][rows]; lanes in the range, of every step [WARPS][steps]; long rows [rows]
  __shared__ int sTotal[WARPS], sOrder[HELD], sLongs, sNext;
  __shared__ float sPart[WARPS][COLUMNS];
  int* own = sAll + warp() * rows;
  int* sHits = sAll + WARPS * rows + warp() * steps;
  int* sLong = sAll + WARPS * (rows + steps);
  const int low = blockIdx.x * rows, here = min(rows, V - low), first = warp() * steps * WARP;
  if (threadIdx.x == 0) sLongs = sNext = 0;
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
  const int begin = block_reduce(below, Sum());
  int start = begin;
  for (int tile = 0; tile < here; tile += THREADS) {  // counts become places: by row, then by warp
    __syncthreads();
    const int r = tile + int(threadIdx.x);
    int total = 0;
    if (r < here)
      for (int w = 0; w < WARPS; ++w) total += sAll[w * rows + r];
    if (total > LONG) sLong[atomicAdd(&sLongs, 1)] = r;  // in any order: each is added by itself
    int place = places(total, start, sTotal);
    if (r < here)
      for (int w = 0; w < WARPS; ++w) {
        const int count = sAll[w * rows + r];
        sAll[w * rows + r] = place;
        place += count;
      }
  }
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
      const int place = take(own, row[k] >= 0, row[k]), token = first + step[k] * WARP + lane();
      if (row[k] >= 0 && place - begin < HELD) sOrder[place - begin] = token;
      else if (row[k] >= 0) gOrder[place] = token;
    }
  }
  __syncthreads();

  const int* sEnd = sAll + (WARPS - 1) * rows;  // the last warp's counters stand behind its tokens of a row, which are the row's last
  const auto token_at = [&](int i) { return i - begin < HELD ? sOrder[i - begin] : gOrder[i]; };
  const auto add = [&](float(&rSum)[VECTORS][WIDTH], int from, int to, long long i_n) {
    for (int i = from; i < to; i += TOKENS) {
      Vec<T, WIDTH> rX[TOKENS][VECTORS];
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        if (i + t >= to) break;  // the same for the warp
        const T* gRow = gDout + token_at(i + t) * stride + i_n;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
          if (i_n + k * COLUMNS < N) load_global(rX[t][k], gRow + k * COLUMNS);
      }
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        if (i + t >= to) break;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
      }
    }
  };
  while (true) {  // a warp takes the next row and strip that nobody has
    int item = 0;
    if (lane() == 0) item = atomicAdd(&sNext, 1);
    item = __shfl_sync(ALL_LANES, item, 0);
    if (item >= here * strips) break;
    const int r = item / strips, from = r ? sEnd[r - 1] : begin, to = sEnd[r];
    const long long i_n = (item % strips * VECTORS * WARP + lane()) * WIDTH;
    if (to - from > LONG) continue;
    float rSum[VECTORS][WIDTH] = {};
    add(rSum, from, to, i_n);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      Vec<T, WIDTH> rOut;
      from_float(rOut, rSum[k]);
      if (i_n + k * COLUMNS < N) store_global(gDw + (long long)(low + r) * N + i_n + k * COLUMNS, rOut);
    }
  }
  for (int l = 0; l < sLongs * strips; ++l) {  // the block together: its warps' shares of the tokens, in their order
    const int r = sLong[l / strips], from = r ? sEnd[r - 1] : begin, to = sEnd[r], each = ceil_div(to - from, WARPS), mine = min(to, from + warp() * each);
    const long long i_n = (l % strips * VECTORS * WARP + lane()) * WIDTH;
    float rSum[VECTORS][WIDTH] = {};
    add(rSum, mine, min(to, mine + each), i_n);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      __syncthreads();  // sPart has been read to the end
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) sPart[warp()][c * WARP + lane()] = rSum[k][c];
      __syncthreads();
      for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += sPart[w][c % WIDTH * WARP + c / WIDTH];
        const long long at = ((l % strips * VECTORS + k) * (long long)WARP) * WIDTH + c;
        if (at < N) gDw[(long long)(low + r) * N + at] = static_cast<T>(sum);
      }
    }
  }
}
