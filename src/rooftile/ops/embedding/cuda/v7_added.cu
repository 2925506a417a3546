// adds: who sorts a range of rows adds its tokens too, where they have just been sorted; a row of many is left in chunks of 16 tokens to a second launch
// costs: in a block sorting and adding follow each other: there are several in a multiprocessor, so that some add while others sort
// loses when: most tokens are of rows of many: then the second launch does the work, a look more at every 8th place
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/places.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Tokens are dealt to ranges of rows by `deal` in v5_dealt.cu.
//
// A row of more than FEW tokens is cut evenly, into chunks of 9 to 16, or of 8 and 9. So each has a multiple of FEW among its sorted places, its slot, and no
// two have the same one: a task, a counter and a float32 row of partial sums lie there, and nobody needs to be asked where.
constexpr int FEW = 8, CHUNK = 16, CHILDREN = 16;

ROOFTILE_DEVICE int chunks_of(int tokens) { return (tokens + CHUNK - 1) / CHUNK; }
ROOFTILE_DEVICE int chunk_begins(int begin, int tokens, int chunk) { return begin + int((long long)tokens * chunk / chunks_of(tokens)); }
ROOFTILE_DEVICE int slot_of(int begin, int tokens, int chunk) { return (chunk_begins(begin, tokens, chunk) + FEW - 1) / FEW; }

// Up to 32 tokens added in their order, a lane's columns of them; TOKENS at a time are on their way.
template <int TOKENS, typename T, int WIDTH, int VECTORS>
ROOFTILE_DEVICE void add(float (&rSum)[VECTORS][WIDTH], const T* gDout, const int* gOrder, int count, long long N, long long stride, long long i_n) {
  const int i_m = lane() < count ? gOrder[lane()] : 0;
  for (int l = 0; l < count; l += TOKENS) {
    Vec<T, WIDTH> rX[TOKENS][VECTORS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const T* gRow = gDout + __shfl_sync(ALL_LANES, i_m, (l + t) % WARP) * stride + i_n;
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
        if (l + t < count && i_n + k * WARP * WIDTH < N) load_global(rX[t][k], gRow + k * WARP * WIDTH);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (l + t >= count) break;  // the same for the warp
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
    }
  }
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

// Warps of a multiprocessor whose registers hold so many vectors on their way, and the sums.
constexpr int resident(int vectors) { return vectors > 6 ? 16 : vectors > 3 ? 24 : 32; }

// The tokens of a range, which lie in all parts, sorted by row and stably; rows of none and of few are written, of more are tasks. A warp has a row and 32 *
// VECTORS * WIDTH of its columns at a time.
template <typename T, int WIDTH, int VECTORS, int TOKENS, int WARPS>
__global__ void ROOFTILE_EARLY __launch_bounds__(WARPS * 32, resident(TOKENS * VECTORS) / WARPS)
    few(T* __restrict__ gDw, int4* __restrict__ gTasks, int* __restrict__ gArrived, int* __restrict__ gOrder, const T* __restrict__ gDout,
        const int2* __restrict__ gDealt, const int* __restrict__ gBegins, int V, int rows, int parts, int part, int slots, long long N, long long stride, int strips) {
  constexpr int AHEAD = 4, THREADS = WARPS * WARP;
  extern __shared__ __align__(128) int sAll[];  // counters [WARPS][rows]; where rows begin; of every part where it begins among the range's tokens, and where it lies
  __shared__ int sTotal[WARPS];
  int *own = sAll + warp() * rows, *sRows = sAll + WARPS * rows, *sPrefix = sRows + rows + 1, *sLies = sPrefix + parts;
  const int low = blockIdx.x * rows, here = min(rows, V - low);
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
    const int2 found = gDealt[sLies[p] + j];
    return int2{found.x - low, found.y};
  };
  int2 rFirst[AHEAD];  // kept for the second walk, which most ranges' tokens are then not asked for again
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) rFirst[k] = token(k);
  const int after = low + here == V ? slots : (start + count + FEW - 1) / FEW;  // behind the last are those of tokens that go nowhere
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
      if (t[k].x >= 0) gOrder[place] = t[k].y;
    }
  }
  __syncthreads();
  for (int unit = warp(); unit < here * strips; unit += WARPS) {
    const int r = unit / strips, strip = unit % strips, begin = sRows[r], tokens = sRows[r + 1] - begin;
    if (tokens > FEW) {
      if (strip == 0)
        for (int i = lane(); i < chunks_of(tokens); i += WARP) {
          const int slot = slot_of(begin, tokens, i);
          gTasks[slot] = {low + r, begin, tokens, i};
          for (int s = 0; s < strips; ++s) gArrived[(long long)slot * strips + s] = 0;
        }
      continue;
    }
    const long long i_n = (strip * VECTORS * WARP + lane()) * (long long)WIDTH;
    float rSum[VECTORS][WIDTH] = {};
    add<TOKENS>(rSum, gDout, gOrder + begin, tokens, N, stride, i_n);
    write(gDw + (low + r) * N, rSum, N, i_n);
  }
}

// A warp looks at a slot for a chunk and adds it. Of a row of several, whoever comes last of 16 neighbours adds their sums in their order and goes on as one of
// 16 such, until it is the row: in which order they come changes nothing.
template <typename T, int WIDTH, int VECTORS, int TOKENS>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, TOKENS * VECTORS > 12 ? 1 : 2)
    many(T* __restrict__ gDw, float* gPartial, int* gArrived, const T* __restrict__ gDout, const int4* __restrict__ gTasks, const int* __restrict__ gOrder,
         int slots, long long N, long long stride, int strips) {
  earlier_done();
  const long long i_w = blockIdx.x * 8ll + warp();
  const int slot = int(i_w / strips), strip = int(i_w % strips);
  if (slot >= slots) return;
  const int4 task = gTasks[slot];  // row, where it begins, its tokens, which chunk
  if (task.x < 0) return;
  const int begin = task.y, tokens = task.z, all = chunks_of(tokens), from = chunk_begins(begin, tokens, task.w);
  const long long i_n = (strip * VECTORS * WARP + lane()) * (long long)WIDTH;
  const auto partial = [&](int i) { return gPartial + slot_of(begin, tokens, i) * N; };
  float rSum[VECTORS][WIDTH] = {};
  add<TOKENS>(rSum, gDout, gOrder + from, chunk_begins(begin, tokens, task.w + 1) - from, N, stride, i_n);
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
#pragma unroll
    for (int k = 0; k < VECTORS; ++k)
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) rSum[k][c] = 0.0f;
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
