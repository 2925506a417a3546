// adds: sorted tokens are dealt out and not rows: a warp has `span` of them, whoever's, and writes zeros for its share of the rows before it waits for them; full strips are not looked over
// costs: a float32 row of partial sums where a segment of more than 16 tokens crosses into the next span, added by a second launch
// loses when: every segment crosses: partial sums are then written and read at 4 bytes an element for every span of dout, 1/4 of it at 16 tokens
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// Keys, tokens and borders are those of `keys`, a sort and `search` in v1_warp_row.cu, or of v3_ranges.cu.
//
// A segment of at most SHORT tokens is added by the warp in whose span it begins, which reads beyond its span for it; a longer one is cut where
// spans end. span is 16 + 32 n: a warp's n + 1 turns of 32 lanes are the span and the SHORT - 1 places that it may need behind it.
constexpr int SHORT = 16;

// A token's place in sorted order, as a lane knows it: one load of key and token, then one of the borders of its row's segment.
struct Place {
  int i_v, begin, end;
  long long i_m;
  bool mine, last;  // whether this warp adds it, and writes behind it
};

template <typename Key, typename Token>
__device__ __forceinline__ Place look(const Key* gKeys, const Token* gOrder, const int* gBorders, int i, int count, int base, int first, int span) {
  Place p = {};
  if (i >= count) return p;
  p.i_v = int(gKeys[i]) - base, p.i_m = (long long)gOrder[i];
  p.begin = gBorders[p.i_v], p.end = gBorders[p.i_v + 1];
  const bool cut = p.end - p.begin > SHORT;
  p.mine = cut ? i < first + span : first <= p.begin && p.begin < first + span;
  p.last = p.mine && (i + 1 == p.end || (cut && i + 1 == first + span));
  return p;
}

template <int BYTES, typename T, int WIDTH> __device__ __forceinline__ void write(T* g, const float (&rSum)[WIDTH]) {
  constexpr int PART = sizeof(T) * WIDTH > BYTES ? int(BYTES / sizeof(T)) : WIDTH;
#pragma unroll
  for (int k = 0; k < WIDTH; k += PART) {
    Vec<T, PART> rOut;
#pragma unroll
    for (int p = 0; p < PART; ++p) rOut[p] = T(rSum[k + p]);
    store_global(g + k, rOut);
  }
}

// A row's sums, or as much as a lane has of them; ADDED: to what is there, and rounded once.
template <bool ADDED, typename T, int WIDTH> __device__ __forceinline__ void finish(T* g, float (&rSum)[WIDTH]) {
  if constexpr (ADDED) {
    constexpr int PART = sizeof(T) * WIDTH > 16 ? int(16 / sizeof(T)) : WIDTH;
#pragma unroll
    for (int k = 0; k < WIDTH; k += PART) {
      Vec<T, PART> rOld;
      load(rOld, g + k);
#pragma unroll
      for (int p = 0; p < PART; ++p) rSum[k + p] += float(rOld[p]);
    }
  }
  write<16>(g, rSum);
}

// Zeros for rows of an `empty` bit from i_v on: no loads, so that stores follow each other, and nobody waits for them.
template <typename T, int WIDTH> __device__ __forceinline__ void zeros(T* gDw, long long i_v, unsigned empty, long long N) {
  const float rZero[WIDTH] = {};
  for (; empty; empty &= empty - 1) {
    T* gRow = gDw + (i_v + __ffs(int(empty)) - 1) * N;
    for (long long i_n = lane() * WIDTH; i_n < N; i_n += WARP * WIDTH) write<16>(gRow + i_n, rZero);
  }
}

// For the empty ones of `share` rows, at most 32, by their borders.
template <typename T, int WIDTH>
__device__ __forceinline__ void clear(T* gDw, const int* gBorders, long long i_v, int share, int V, long long N) {
  const bool there = lane() < share && i_v + lane() < V;
  zeros<T, WIDTH>(gDw, i_v, __ballot_sync(ALL_LANES, there && gBorders[i_v + lane()] == gBorders[i_v + lane() + 1]), N);
}

// For those of a range's rows that v5_dealt.cu's `deal` has no token of, while `sort` is at it. A range is `pieces` blocks', and 8 rows at a time a warp's.
template <typename T, int WIDTH>
__device__ __forceinline__ void clear_early(T* gDw, const int2* gDealt, const int* gBegins, int rows, int parts, int pieces, int V, long long N) {
  extern __shared__ __align__(128) unsigned sSeen[];  // a bit a row
  const int range = int(blockIdx.x) / pieces, low = range * rows, here = min(rows, V - low);
  for (int i = threadIdx.x; i * WARP < rows; i += blockDim.x) sSeen[i] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < parts; p += blockDim.x) {
    const int* gBegin = gBegins + (long long)range * parts + p;
    const int end = gBegin[parts];
#pragma unroll 4
    for (int j = gBegin[0]; j < end; ++j) {
      const int r = gDealt[j].x - low;
      atomicOr(&sSeen[r / WARP], 1u << r % WARP);
    }
  }
  __syncthreads();
  for (int r = (int(blockIdx.x) % pieces * warps() + warp()) * 8; r < here; r += pieces * warps() * 8)
    zeros<T, WIDTH>(gDw, low + r, ~(sSeen[r / WARP] >> r % WARP) & ((1u << min(8, here - r)) - 1), N);
}

// gPartial has two rows a span: of the segment that comes in from before, and of the one that goes on behind. Every warp sees to the zeros of `share` rows
// first, none where they have been written or are not wanted, or sees to them before it waits for the sort (`pieces`); blocks behind the last span do
// nothing else. Rows that are added to come with the tokens where those come one or two at a time. FULL: strips end where rows do, and no lane looks whether
// its columns are there.
template <typename T, typename Key, typename Token, int WIDTH, int VECTORS, int TOKENS, bool FULL, bool ADDED = false>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, TOKENS * VECTORS > 12 ? 1 : 2)
    sums(T* __restrict__ gDw, float* __restrict__ gPartial, const T* __restrict__ gDout, const Key* __restrict__ gKeys,
         const Token* __restrict__ gOrder, const int* __restrict__ gBorders, int V, int base, long long N, long long stride, int strips, int span,
         int share, const int2* __restrict__ gDealt, const int* __restrict__ gBegins, int rows, int parts, int pieces) {
  constexpr bool TOGETHER = ADDED && (TOKENS == 1 || TOKENS * VECTORS <= 6);  // for more there are no registers
  if (!ADDED && pieces) clear_early<T, WIDTH>(gDw, gDealt, gBegins, rows, parts, pieces, V, N);
  earlier_done();
  let_next_stand_by();  // not before: who joins looks at keys and borders while this goes on
  if (share) clear<T, WIDTH>(gDw, gBorders, (blockIdx.x * 8ll + warp()) * share, share, V, N);
  const long long i_w = blockIdx.x * 8ll + warp(), i_s = i_w / strips, i_n = (i_w % strips * VECTORS * WARP + lane()) * WIDTH;
  const auto inside = [&](int k) { return FULL || i_n + k * WARP * WIDTH < N; };
  const int count = gBorders[V];
  if (i_s * span >= count) return;
  const int first = int(i_s * span);
  const Policy policy = evict_first(count * N * (long long)sizeof(T));  // dout is read once
  float rSum[VECTORS][WIDTH] = {};
  for (int turn = first; turn < first + span; turn += WARP) {
    const Place place = look(gKeys, gOrder, gBorders, turn + lane(), count, base, first, span);
    const unsigned mine = __ballot_sync(ALL_LANES, place.mine), last = __ballot_sync(ALL_LANES, place.last);
    const int stop = mine ? WARP - __clz(int(mine)) : 0;  // mine are neighbours
    for (int l = mine ? __ffs(int(mine)) - 1 : 0; l < stop; l += TOKENS) {
      Vec<T, WIDTH> rX[TOKENS][VECTORS], rOld[TOGETHER ? TOKENS : 1][VECTORS];
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        const T* gRow = gDout + __shfl_sync(ALL_LANES, place.i_m, (l + t) % WARP) * stride + i_n;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
          if (l + t < stop && inside(k)) {
            if constexpr (sizeof(T) * WIDTH == 16) rX[t][k].whole = load_global(reinterpret_cast<const uint4*>(gRow + k * WARP * WIDTH), policy);
            else load_global(rX[t][k], gRow + k * WARP * WIDTH);
          }
      }
      if constexpr (TOGETHER) {
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
          if (l + t >= stop || !(last >> (l + t) & 1)) continue;
          const T* gRow = gDw + (long long)__shfl_sync(ALL_LANES, place.i_v, l + t) * N + i_n;
#pragma unroll
          for (int k = 0; k < VECTORS; ++k)
            if (inside(k)) load_global(rOld[t][k], gRow + k * WARP * WIDTH);
        }
      }
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        if (l + t >= stop) break;  // the same for the warp
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
        if (!(last >> (l + t) & 1)) continue;
        const int i_v = __shfl_sync(ALL_LANES, place.i_v, l + t), begin = __shfl_sync(ALL_LANES, place.begin, l + t);
        const int end = __shfl_sync(ALL_LANES, place.end, l + t);
        const bool whole = end - begin <= SHORT || (begin >= first && end <= first + span);
        T* gRow = gDw + i_v * N + i_n;
        float* gPart = gPartial + (2 * i_s + (begin >= first)) * N + i_n;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
          if (inside(k)) {
            if constexpr (TOGETHER)
              if (whole) {
#pragma unroll
                for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rOld[t][k][c]);
              }
            if (whole) finish<ADDED && !TOGETHER>(gRow + k * WARP * WIDTH, rSum[k]);
            else write<16>(gPart + k * WARP * WIDTH, rSum[k]);
          }
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) rSum[k][c] = 0.0f;
        }
      }
    }
    if (!(mine >> (WARP - 1))) break;  // the next turn would find none
  }
}

// The segments that were cut. A block looks at 256 spans for ones that begin there and go on behind; WIDTH columns of float32 on each of 8 lanes
// add a segment's partial sums in their order. One of more than FAR spans is shared by the block's 32 groups of lanes.
template <typename T, typename Key, int WIDTH, bool ADDED = false>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, 4) join(T* __restrict__ gDw, const float* __restrict__ gPartial, const Key* __restrict__ gKeys,
                                               const int* __restrict__ gBorders, int V, int base, long long N, int span) {
  constexpr int LANES = 8, GROUPS = 256 / LANES, FAR = 32;
  __shared__ float sSum[GROUPS][LANES * WIDTH];
  __shared__ int sRow[256], sFrom[256], sTo[256], sCuts;  // of the segment its row, the span it begins in and the one behind its last
  const int group = int(threadIdx.x) / LANES, l = int(threadIdx.x) % LANES, i_s = int(blockIdx.x) * 256 + int(threadIdx.x);
  const long long i_n = (blockIdx.y * LANES + l) * (long long)WIDTH, behind = (i_s + 1ll) * span;
  if (threadIdx.x == 0) sCuts = 0;
  __syncthreads();
  if (behind < gBorders[V]) {
    const int i_v = int(gKeys[behind - 1]) - base;
    const int begin = gBorders[i_v], end = gBorders[i_v + 1];
    if (end - begin > SHORT && begin >= behind - span && end > behind) {
      const int n = atomicAdd(&sCuts, 1);  // in any order: each is added by itself
      sRow[n] = i_v, sFrom[n] = i_s, sTo[n] = (end - 1) / span + 1;
    }
  }
  __syncthreads();
  earlier_done();  // keys and borders are of a launch before that one
  auto add = [&](float (&rSum)[WIDTH], int from, int to) {  // partial sums of spans that the segment comes into; 8 are asked for before one is added
    constexpr int AT_ONCE = 8;
#pragma unroll 1
    for (; from < to && i_n < N; from += AT_ONCE) {
      Vec<float, WIDTH> rX[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        fill(rX[j], 0.0f);
        if (from + j < to) load_global(rX[j], gPartial + 2ll * (from + j) * N + i_n);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) rSum[c] += rX[j][c];
    }
  };
  auto head = [&](float (&rSum)[WIDTH], int from) {
    Vec<float, WIDTH> rX;
    if (i_n < N) {
      load(rX, gPartial + (2ll * from + 1) * N + i_n);
      to_float(rSum, rX);
    }
  };
  for (int n = 0; n < sCuts; ++n) {
    const int from = sFrom[n], to = sTo[n];
    const bool far = to - from > FAR;  // the same for all
    if (!far && n % GROUPS != group) continue;
    const int each = far ? (to - from - 1 + GROUPS - 1) / GROUPS : to, mine = from + 1 + (far ? group * each : 0);
    float rSum[WIDTH] = {};
    if (!far || group == 0) head(rSum, from);
    add(rSum, mine, min(mine + each, to));
    if (far) {
      __syncthreads();  // sSum has been read to the end
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) sSum[group][l * WIDTH + c] = rSum[c];
      __syncthreads();
      if (group != 0) continue;
      for (int other = 1; other < GROUPS; ++other)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) rSum[c] += sSum[other][l * WIDTH + c];
    }
    if (i_n < N) finish<ADDED>(gDw + (long long)sRow[n] * N + i_n, rSum);
  }
}
