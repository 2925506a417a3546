// adds: blocks stay; tiles arrive in shared memory while others are written; a tile's sum is out LEAD tiles before it is needed; a warp looks back
// costs: a block adds up every sum between two of its tiles, 8 bytes from the L2 for each; 16-byte rows only, of 4 KB and more
// loses when: a tensor is fewer tiles than blocks have slots: nothing arrives behind anything else

// Same bits every run, whenever blocks come: what lies before a tile is P + A, with P the sums of the groups of 32 tiles before its own, added
// one after the other in double, and A those before it in its group. A block goes on from the P of its last tile.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/policy.cuh"
#include "rooftile/scan.cuh"

using namespace rooftile;

template <typename S> struct Exact { using type = double; };
template <> struct Exact<unsigned> { using type = unsigned; };

// What lies before a tile of a row. One warp; it looks at DEEP groups at once and again at all that were not there, so that a wait is one.
template <typename S> struct Before {
  static constexpr int DEEP = 8;  // 16 registers; two rounds for a tile each of 396 blocks
  typename Exact<S>::type groups = 0;  // of the first i_g groups of row i_m
  long long i_m = -1;
  int i_g = 0;

  ROOFTILE_DEVICE void open(long long i_row) {
    if (i_row != i_m) groups = 0, i_m = i_row, i_g = 0;
  }
  ROOFTILE_DEVICE S operator()(const Word* gRow, long long i_row, int i_t) {
    open(i_row);
    S rest = 0;
    for (const int own = i_t / 32;;) {
      Word word[DEEP];
      bool all = true;
#pragma unroll
      for (int d = 0; d < DEEP; ++d) {
        const int i = (i_g + d) * 32 + lane();
        word[d] = peek(gRow + i, i < i_t);
      }
#pragma unroll
      for (int d = 0; d < DEEP; ++d) all &= (word[d] & THERE) != 0;
      while (!__all_sync(ALL_LANES, all)) {
        spin_pause();
        all = true;
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
          if (!(word[d] & THERE)) word[d] = load_relaxed(gRow + (i_g + d) * 32 + lane());
#pragma unroll
        for (int d = 0; d < DEEP; ++d) all &= (word[d] & THERE) != 0;
      }
#pragma unroll
      for (int d = 0; d < DEEP; ++d) {
        if (i_g + d > own) break;
        const S sum = all_lanes<S>(word[d]);
        if (i_g + d < own) groups += sum;
        else rest += sum;
      }
      if (i_g + DEEP > own) {
        i_g = own;
        return S(groups + rest);
      }
      i_g += DEEP;
    }
  }
};

__global__ void clear(Word* gState, long long words) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += gridDim.x * (long long)blockDim.x) gState[i] = 0;
}

// gState: a counter, then a word a tile; unused where a row is one tile. T's vectors of 16 bytes: x and out are multiples of them in every way.
template <typename T, typename S, int VECTORS, int WARPS, int STAGES, int LEAD, int BLOCKS, bool EXCLUSIVE, bool REVERSE>
__global__ void __launch_bounds__(32 * WARPS + 32, BLOCKS) tiles(T* __restrict__ gOut, const T* __restrict__ gX, Word* gState, long long M, long long N, long long stride,
                                                    int tiles) {
  constexpr int WIDTH = 16 / sizeof(T), TILE = VECTORS * WARPS * 32;  // vectors of a tile
  static_assert(LEAD >= 1 && STAGES > LEAD, "a tile is summed LEAD tiles before it is written");
  extern __shared__ __align__(128) uint4 sX[];  // STAGES tiles; a slot is read by the thread that has it filled: no barrier stands between
  __shared__ S sSum[LEAD + 2][WARPS], sBefore[2];
  __shared__ unsigned sTicket[STAGES + 2];
  const int i_lane = warp() * VECTORS * 32 + lane();  // this thread's first vector of a tile
  const unsigned total = unsigned(M * tiles);
  const auto take = [&](int k) {  // a block's tile k. What a tile waits for is a block's that runs: tiles are given out in their order
    return tiles == 1 ? blockIdx.x + unsigned(k) * gridDim.x : unsigned(atomicAdd(gState, 1ull));
  };
  const Policy policy = evict_last(M * N * (long long)sizeof(T));
  const auto fill = [&](unsigned ticket, int k) {
    const long long vectors = N / WIDTH, i_m = ticket / tiles, i = (ticket % tiles) * (long long)TILE + i_lane;
    const T* gFrom = gX + i_m * stride;
    uint4* sTo = sX + k % STAGES * TILE + i_lane;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const long long at = i + v * 32;
      copy_async(sTo + v * 32, gFrom + (REVERSE ? vectors - 1 - at : at) * WIDTH, ticket < total && at < vectors, policy);
    }
    copy_commit();
  };
  using Part = Strip<T, S, WIDTH, VECTORS, EXCLUSIVE, REVERSE>;
  const auto read = [&](Part& strip, int k) {
    const uint4* sFrom = sX + k % STAGES * TILE + i_lane;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) strip.rX[v].whole = sFrom[v * 32];
  };
  const auto add_up = [&](int k) {
    Part strip;
    read(strip, k);
    const S sum = strip.total();
    if (lane() == 0) sSum[k % (LEAD + 2)][warp()] = sum;
  };
  const auto tell = [&](int k) {  // one lane
    S sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += sSum[k % (LEAD + 2)][w];
    if (sTicket[k % (STAGES + 2)] < total) store_relaxed(gState + 1 + sTicket[k % (STAGES + 2)], THERE | bits(sum));
  };

  const bool looks = warp() == WARPS;  // the last warp has no part of a tile: it looks back while the others write
  for (int s = 0; s <= STAGES; ++s) {  // each ticket when the last is there: blocks take turns from the start
    if (threadIdx.x == 0) sTicket[s] = take(s);
    __syncthreads();
    if (!looks && s < STAGES) fill(sTicket[s], s);
  }
  copy_wait<STAGES - LEAD>();
  if (!looks)
    for (int k = 0; k < LEAD; ++k) add_up(k);
  __syncthreads();
  if (looks && tiles > 1 && lane() == 0)
    for (int k = 0; k < LEAD; ++k) tell(k);
  Before<S> before;
  const auto look = [&](int k) {
    const unsigned ticket = sTicket[k % (STAGES + 2)];
    if (ticket >= total) return;
    const unsigned i_m = ticket / tiles, i_t = ticket % tiles;
    const S sum = tiles > 1 ? before(gState + 1 + i_m * (long long)tiles, i_m, int(i_t)) : S(0);
    if (lane() == 0) sBefore[k % 2] = sum;
  };
  if (looks) look(0);
  for (int k = 0;; ++k) {
    const unsigned ticket = sTicket[k % (STAGES + 2)];
    if (ticket >= total) break;  // the whole block: the tickets after it are larger
    const long long i_m = ticket / tiles;
    const int i_t = int(ticket % tiles);
    if (!looks) {
      copy_wait<STAGES - LEAD - 1>();
      add_up(k + LEAD);
    }
    __syncthreads();
    if (looks) {  // two ways through the L2, a microsecond each, have as long as a tile takes to be written and the next one to be summed
      if (tiles > 1 && lane() == 0) tell(k + LEAD);
      unsigned next;
      if (lane() == 0) next = take(k + 1 + STAGES);
      look(k + 1);
      if (lane() == 0) sTicket[(k + 1 + STAGES) % (STAGES + 2)] = next;
      continue;
    }
    Part strip;
    read(strip, k);
    strip.sum();
    S start = sBefore[k % 2];
#pragma unroll
    for (int w = 0; w < WARPS - 1; ++w)
      if (w < warp()) start += sSum[k % (LEAD + 2)][w];
    const Row<T, WIDTH, REVERSE> row(gOut + i_m * N, nullptr, N);
    strip.store(row, i_t * (long long)TILE + warp() * VECTORS * 32, start);
    fill(sTicket[(k + STAGES) % (STAGES + 2)], k + STAGES);
  }
  copy_wait<0>();
}
