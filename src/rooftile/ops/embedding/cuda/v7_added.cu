// adds: a text's frequent tokens do not pile up: range b has rows b, b + ranges, ...; who sorts a range adds its rows of few tokens, and of many leaves chunks of
//       16 tokens to a second launch, where whoever comes last joins 16 of them
// costs: a counter and a float32 row of sums for every 8 tokens; in a block sorting and adding follow each other, so several share a multiprocessor
// loses when: tokens are drawn evenly: then v5_dealt is as fast
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/places.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// A row of more than FEW tokens is cut evenly, into chunks of 9 to 16, or of 8 and 9. So each has a multiple of FEW among its sorted places, its slot, and no
// two have the same one: a task, a counter and a float32 row of partial sums lie there, and nobody needs to be asked where.
constexpr int FEW = 8, CHUNK = 16, CHILDREN = 16;

ROOFTILE_DEVICE int chunks_of(int tokens) { return (tokens + CHUNK - 1) / CHUNK; }
ROOFTILE_DEVICE int chunk_begins(int begin, int tokens, int chunk) { return begin + int((long long)tokens * chunk / chunks_of(tokens)); }
ROOFTILE_DEVICE int slot_of(int begin, int tokens, int chunk) { return (chunk_begins(begin, tokens, chunk) + FEW - 1) / FEW; }

// The tokens of those lanes that `mine` names, in their order, a lane's columns of them and TOKENS at a time on their way; after(l, sums) where lane l's is added.
template <int TOKENS, typename T, int WIDTH, int VECTORS, typename After>
ROOFTILE_DEVICE void add(float (&rSum)[VECTORS][WIDTH], const T* gDout, int i_m, unsigned mine, long long N, long long stride, long long i_n, After after) {
  while (mine) {  // the same for the warp
    Vec<T, WIDTH> rX[TOKENS][VECTORS];
    int who[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      who[t] = __ffs(int(mine)) - 1;
      mine &= mine - 1;
      const T* gRow = gDout + __shfl_sync(ALL_LANES, i_m, who[t] & (WARP - 1)) * stride + i_n;
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
        if (who[t] >= 0 && i_n + k * WARP * WIDTH < N) load_global(rX[t][k], gRow + k * WARP * WIDTH);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (who[t] < 0) break;
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
      after(who[t]);
    }
  }
}

template <int WIDTH, int VECTORS> ROOFTILE_DEVICE void clear(float (&rSum)[VECTORS][WIDTH]) {
#pragma unroll
  for (int k = 0; k < VECTORS; ++k)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) rSum[k][c] = 0.0f;
}

// A lane's columns of a row, in vectors of at most 16 bytes; each(address, vector).
template <typename T, int WIDTH, int VECTORS, typename Each> ROOFTILE_DEVICE void each_vector(T* gRow, long long N, long long i_n, Each each) {
  constexpr int PART = sizeof(T) * WIDTH > 16 ? int(16 / sizeof(T)) : WIDTH;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k)
#pragma unroll
    for (int c = 0; c < WIDTH; c += PART)
      if (i_n + k * WARP * WIDTH < N) each(gRow + i_n + k * WARP * WIDTH + c, k, c, Vec<T, PART>());
}

template <typename T, int WIDTH, int VECTORS> ROOFTILE_DEVICE void write(T* gRow, const float (&rSum)[VECTORS][WIDTH], long long N, long long i_n) {
  each_vector<T, WIDTH, VECTORS>(gRow, N, i_n, [&](T* g, int k, int c, auto rOut) {
#pragma unroll
    for (int p = 0; p < int(sizeof(rOut) / sizeof(T)); ++p) rOut[p] = T(rSum[k][c + p]);
    store_global(g, rOut);
  });
}

// A part's tokens, their row within their range first, sorted by range and stably, to where the part lies; and where each range begins there: gBegins
// [ranges + 1, parts]. Of padding and of what is outside the weight there is none. A warp has `steps` times 32 neighbouring indices and counters of its own.
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32) deal(int2* __restrict__ gDealt, int* __restrict__ gBegins, const long long* __restrict__ gIndices, int M, int V,
                                                   int padding, int ranges, int steps) {
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
  for (int r = lane(); r < ranges; r += WARP) own[r] = 0;
  __syncwarp();
  for (int s = 0; s < steps; ++s) {
    const int i_v = row(s);
    take(own, i_v >= 0, i_v % ranges);
  }
  int start = begin;
  counts_become_places(sAll, ranges, ranges, start, sTotal, [&](int r, int place, int) {
    if (r < ranges) gBegins[(long long)r * gridDim.x + blockIdx.x] = place;
  });
  if (threadIdx.x == 0) gBegins[(long long)ranges * gridDim.x + blockIdx.x] = start;
  __syncthreads();
  for (int s = 0; s < steps; ++s) {
    const int i_v = row(s), place = take(own, i_v >= 0, i_v % ranges);
    if (i_v >= 0) gDealt[place] = {i_v / ranges, first + s * WARP};
  }
}

// Warps of a multiprocessor whose registers hold so many vectors on their way, and the sums.
constexpr int resident(int vectors) { return vectors > 12 ? 8 : vectors > 6 ? 16 : 24; }

// The tokens of a range, which lie in all parts, sorted by row and stably; rows of none and of few are written, of more are tasks. A warp takes rows of few that
// begin in TURN sorted places, and 32 * VECTORS * WIDTH columns of them, at a time.
template <typename T, int WIDTH, int VECTORS, int TOKENS, int WARPS>
__global__ void ROOFTILE_EARLY __launch_bounds__(WARPS * 32, resident(TOKENS * VECTORS) / WARPS)
    few(T* __restrict__ gDw, int4* __restrict__ gTasks, int* __restrict__ gArrived, int2* __restrict__ gSorted, const T* __restrict__ gDout,
        const int2* __restrict__ gDealt, const int* __restrict__ gBegins, int V, int rows, int parts, int part, int slots, long long N, long long stride, int strips) {
  constexpr int AHEAD = 4, THREADS = WARPS * WARP, TURN = WARP - FEW;
  extern __shared__ __align__(128) int sAll[];  // counters [WARPS][rows]; where rows begin; of every part where it begins among the range's tokens, and where it lies
  __shared__ int sTotal[WARPS];
  int *own = sAll + warp() * rows, *sRows = sAll + WARPS * rows, *sPrefix = sRows + rows + 1, *sLies = sPrefix + parts;
  const int ranges = int(gridDim.x), here = (V - int(blockIdx.x) + ranges - 1) / ranges;  // row r of the range is row(r) of all
  const auto row = [&](int r) { return r * (long long)ranges + blockIdx.x; };
  let_next_stand_by();
  for (int r = lane(); r < rows; r += WARP) own[r] = 0;
  earlier_done();
  int below = 0, count = 0;  // tokens of rows before the range, which is where it begins; its own
  for (int tile = 0; tile < parts; tile += THREADS) {
    __syncthreads();
    const int p = tile + int(threadIdx.x);
    const int* gBegin = gBegins + (long long)blockIdx.x * parts + p;
    const int lies = p < parts ? gBegin[0] : 0, size = p < parts ? gBegin[parts] - lies : 0;
    const int prefix = places(size, count, sTotal);
    if (p < parts) sPrefix[p] = prefix, sLies[p] = lies - prefix, below += lies - p * part;
  }
  const int start = block_reduce(below, Sum());  // and all parts are told
  const int steps = (count + THREADS - 1) / THREADS, first = warp() * steps * WARP + lane();
  const auto token = [&](int s) {  // its row within the range, and its place in the text
    const int j = first + s * WARP;
    if (s >= steps || j >= count) return int2{-1, 0};
    int p = 0;  // the last part that begins at j or before
    for (int wide = 1 << (31 - __clz(parts)); wide; wide /= 2)
      if (p + wide < parts && sPrefix[p + wide] <= j) p += wide;
    return gDealt[sLies[p] + j];
  };
  int2 rFirst[AHEAD];  // kept for the second walk, which most ranges' tokens are then not asked for again
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) rFirst[k] = token(k);
  const int after = int(blockIdx.x) == ranges - 1 ? slots : (start + count + FEW - 1) / FEW;  // behind the last are those of tokens that go nowhere
  for (int slot = (start + FEW - 1) / FEW + int(threadIdx.x); slot < after; slot += THREADS) gTasks[slot] = {-1, 0, 0, 0};
  for (int s = 0; s < steps; s += AHEAD) {
    int2 t[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) t[k] = s ? token(s + k) : rFirst[k];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
      if (s + k < steps) take(own, t[k].x >= 0, t[k].x);
  }
  int behind = start;
  counts_become_places(sAll, rows, here, behind, sTotal, [&](int r, int place, int) {
    if (r < here) sRows[r] = place;
  });
  if (threadIdx.x == 0) sRows[here] = behind;
  __syncthreads();
  for (int s = 0; s < steps; s += AHEAD) {
    int2 t[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) t[k] = s ? token(s + k) : rFirst[k];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (s + k >= steps) break;
      const int place = take(own, t[k].x >= 0, t[k].x);
      if (t[k].x >= 0) gSorted[place] = t[k];
    }
  }
  __syncthreads();
  for (int tile = warp() * WARP; tile < here; tile += THREADS) {
    const int r = tile + lane(), tokens = r < here ? sRows[r + 1] - sRows[r] : -1;
    for (unsigned empty = __ballot_sync(ALL_LANES, tokens == 0); empty; empty &= empty - 1) {
      T* gRow = gDw + row(tile + __ffs(int(empty)) - 1) * N;
      Vec<T, (sizeof(T) * WIDTH > 16 ? int(16 / sizeof(T)) : WIDTH)> rZero;
      fill(rZero, T(0.0f));
      for (long long i_n = lane() * WIDTH; i_n < N; i_n += WARP * WIDTH) store_global(gRow + i_n, rZero);
    }
    for (unsigned frequent = __ballot_sync(ALL_LANES, tokens > FEW); frequent; frequent &= frequent - 1) {
      const int many = tile + __ffs(int(frequent)) - 1, begin = sRows[many], size = sRows[many + 1] - begin;
      for (int i = lane(); i < chunks_of(size); i += WARP) {
        const int slot = slot_of(begin, size, i);
        gTasks[slot] = {int(row(many)), begin, size, i};
        for (int s = 0; s < strips; ++s) gArrived[(long long)slot * strips + s] = 0;
      }
    }
  }
  for (int unit = warp(); unit < (count + TURN - 1) / TURN * strips; unit += WARPS) {
    const int turn = start + unit / strips * TURN, place = turn + lane();
    const int2 mine = place < behind ? gSorted[place] : int2{-1, 0};
    const int begin = mine.x < 0 ? 0 : sRows[mine.x], end = mine.x < 0 ? 0 : sRows[mine.x + 1];
    const bool here = end - begin <= FEW && turn <= begin && begin < turn + TURN && place < end;
    const unsigned last = __ballot_sync(ALL_LANES, here && place + 1 == end);
    const long long i_n = (unit % strips * VECTORS * WARP + lane()) * (long long)WIDTH;
    float rSum[VECTORS][WIDTH] = {};
    add<TOKENS>(rSum, gDout, mine.y, __ballot_sync(ALL_LANES, here), N, stride, i_n, [&](int l) {
      if (!(last >> l & 1)) return;
      write(gDw + row(__shfl_sync(ALL_LANES, mine.x, l)) * N, rSum, N, i_n);
      clear(rSum);
    });
  }
}

// A warp looks at a slot for a chunk and adds it. Of a row of several, whoever comes last of 16 neighbours adds their sums in their order and goes on as one of
// 16 such, until it is the row: in which order they come changes nothing.
template <typename T, int WIDTH, int VECTORS, int TOKENS>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, TOKENS * VECTORS > 12 ? 1 : 2)
    many(T* __restrict__ gDw, float* gPartial, int* gArrived, const T* __restrict__ gDout, const int4* __restrict__ gTasks, const int2* __restrict__ gSorted,
         int slots, long long N, long long stride, int strips) {
  earlier_done();
  const long long i_w = blockIdx.x * 8ll + warp();
  const int slot = int(i_w / strips), strip = int(i_w % strips);
  if (slot >= slots) return;
  const int4 task = gTasks[slot];  // row, where it begins, its tokens, which chunk
  if (task.x < 0) return;
  const int begin = task.y, tokens = task.z, all = chunks_of(tokens);
  const int from = chunk_begins(begin, tokens, task.w), mine = chunk_begins(begin, tokens, task.w + 1) - from;
  const long long i_n = (strip * VECTORS * WARP + lane()) * (long long)WIDTH;
  const auto partial = [&](int i) { return gPartial + slot_of(begin, tokens, i) * N; };
  float rSum[VECTORS][WIDTH] = {};
  add<TOKENS>(rSum, gDout, lane() < mine ? gSorted[from + lane()].y : 0, (1u << mine) - 1, N, stride, i_n, [](int) {});
  int chunk = task.w;  // the first of those whose sum it has, which are `span` but at the end
  for (int span = 1, level = 0; span < all; span *= CHILDREN, ++level) {
    const int parent = chunk - chunk % (span * CHILDREN), children = min(CHILDREN, (all - parent + span - 1) / span);
    if (children == 1) continue;
    write(partial(chunk), rSum, N, i_n);
    __syncwarp();
    int before = 0;
    if (lane() == 0) {
      __threadfence();
      // a counter of its own for every level: there are more chunks than levels
      before = atomicAdd(gArrived + (long long)slot_of(begin, tokens, parent + level) * strips + strip, 1);
      __threadfence();
    }
    __syncwarp();
    if (__shfl_sync(ALL_LANES, before, 0) < children - 1) return;
    clear(rSum);
    for (int i = 0; i < children; ++i)
      each_vector<float, WIDTH, VECTORS>(partial(parent + i * span), N, i_n, [&](const float* g, int k, int c, auto rX) {
        load(rX, g);
#pragma unroll
        for (int p = 0; p < int(sizeof(rX) / sizeof(float)); ++p) rSum[k][c + p] += rX[p];
      });
    chunk = parent;
  }
  write(gDw + task.x * N, rSum, N, i_n);
}
