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
  extern __shared__ __align__(128) uint4 sX[];  // STAGES tiles; a slot is read by the warp that has it filled: no barrier stands between
  __shared__ S sSum[LEAD + 2][WARPS], sBefore[2], sLane[LEAD + 2][WARPS * 32];  // what a warp's part has before a lane's
  __shared__ uint2 sPlace[STAGES + 2];  // row and tile of a ticket; a row from M on is none
  // Where vector i of a warp's part lies: neither a lane's neighbours nor 32 side by side meet in a bank.
  const auto lies = [](int i) { return i ^ (i >> 3 & (VECTORS - 1)); };
  const int i_lane = warp() * VECTORS * 32 + lane();  // this thread's first vector of a tile
  const auto take = [&](int k) {  // a block's tile k. What a tile waits for is a block's that runs: tiles are given out in their order
    const unsigned ticket = tiles == 1 ? blockIdx.x + unsigned(k) * gridDim.x : unsigned(atomicAdd(gState, 1ull));
    return uint2{ticket / unsigned(tiles), ticket % unsigned(tiles)};
  };
  const Policy policy = evict_last(M * N * (long long)sizeof(T));
  const auto left = [&](uint2 place) { return place.x < M ? N / WIDTH - place.y * (long long)TILE - i_lane : 0; };  // vectors of the row from this thread's first on
  const auto fill = [&](uint2 place, int slot) {
    const long long more = left(place);
    const T* gFrom = gX + place.x * stride + (REVERSE ? more - 1 : place.y * (long long)TILE + i_lane) * WIDTH;
    uint4* sTo = sX + slot * TILE + warp() * VECTORS * 32;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) copy_async(sTo + lies(v * 32 + lane()), gFrom + (REVERSE ? -v : v) * 32 * WIDTH, v * 32 < more, policy);
    copy_commit();
  };
  // A lane has VECTORS neighbouring vectors; they came side by side, as they will be written.
  const auto add_up = [&](int slot, int ring) {
    const uint4* sFrom = sX + slot * TILE + warp() * VECTORS * 32;
    S sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      Vec<T, WIDTH> rX;
      rX.whole = sFrom[lies(lane() * VECTORS + v)];
      S part = 0;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) part += S(rX[REVERSE ? WIDTH - 1 - k : k]);
      sum += part;
    }
    S before = sum;
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
      const S other = __shfl_up_sync(ALL_LANES, before, reach);
      if (lane() >= reach) before += other;
    }
    if (lane() == 31) sSum[ring][warp()] = before;
    before = __shfl_up_sync(ALL_LANES, before, 1);
    sLane[ring][threadIdx.x] = lane() ? before : S(0);
  };
  const auto tell = [&](int ring, uint2 place) {  // one lane
    S sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += sSum[ring][w];
    if (place.x < M) store_relaxed(gState + 1 + place.x * (long long)tiles + place.y, THERE | bits(sum));
  };

  const bool looks = warp() == WARPS;  // the last warp has no part of a tile: it looks back while the others write
  for (int s = 0; s <= STAGES; ++s) {  // each ticket when the last is there: blocks take turns from the start
    if (threadIdx.x == 0) sPlace[s] = take(s);
    __syncthreads();
    if (!looks && s < STAGES) fill(sPlace[s], s);
  }
  copy_wait<STAGES - LEAD>();
  __syncwarp();
  if (!looks)
    for (int k = 0; k < LEAD; ++k) add_up(k, k);
  __syncthreads();
  if (looks && tiles > 1 && lane() == 0)
    for (int k = 0; k < LEAD; ++k) tell(k, sPlace[k]);
  Before<S> before;
  const auto look = [&](uint2 place, int k) {
    if (place.x >= M) return;
    const S sum = tiles > 1 ? before(gState + 1 + place.x * (long long)tiles, place.x, int(place.y)) : S(0);
    if (lane() == 0) sBefore[k % 2] = sum;
  };
  if (looks) look(sPlace[0], 0);
  int slot = 0, ahead = LEAD, ring = 0, ring_ahead = LEAD, turn = 0;  // of tile k and of LEAD behind it: k % STAGES, k % (LEAD + 2), k % (STAGES + 2)
  const auto next_of = [](int i, int count, int by = 1) { return i + by >= count ? i + by - count : i + by; };
  for (int k = 0;; ++k) {
    const uint2 place = sPlace[turn];
    if (place.x >= M) break;  // the whole block: the tickets after it are larger
    if (!looks) {
      copy_wait<STAGES - LEAD - 1>();
      __syncwarp();
      add_up(ahead, ring_ahead);
    }
    __syncthreads();
    if (looks) {  // two ways through the L2, a microsecond each, have as long as a tile takes to be written and the next one to be summed
      if (tiles > 1 && lane() == 0) tell(ring_ahead, sPlace[next_of(turn, STAGES + 2, LEAD)]);
      uint2 next;
      if (lane() == 0) next = take(k + 1 + STAGES);
      look(sPlace[next_of(turn, STAGES + 2)], k + 1);
      if (lane() == 0) sPlace[next_of(turn, STAGES + 2, STAGES + 1)] = next;
    } else {
      uint4* sTile = sX + slot * TILE + warp() * VECTORS * 32;
      S start = sBefore[k % 2];
#pragma unroll
      for (int w = 0; w < WARPS - 1; ++w)
        if (w < warp()) start += sSum[ring][w];
      start += sLane[ring][threadIdx.x];
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        Vec<T, WIDTH> rX;
        rX.whole = sTile[lies(lane() * VECTORS + v)];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const int e = REVERSE ? WIDTH - 1 - k : k;
          const S x = S(rX[e]);
          if (EXCLUSIVE) rX[e] = T(start);
          start += x;
          if (!EXCLUSIVE) rX[e] = T(start);
        }
        sTile[lies(lane() * VECTORS + v)] = rX.whole;
      }
      __syncwarp();
      const long long more = left(place);
      T* gTo = gOut + place.x * N + (REVERSE ? more - 1 : place.y * (long long)TILE + i_lane) * WIDTH;
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        Vec<T, WIDTH> rOut;
        rOut.whole = sTile[lies(v * 32 + lane())];
        if (v * 32 < more) store_global(gTo + (REVERSE ? -v : v) * 32 * WIDTH, rOut);
      }
      fill(sPlace[next_of(turn, STAGES + 2, STAGES)], slot);
    }
    slot = next_of(slot, STAGES), ahead = next_of(ahead, STAGES), ring = next_of(ring, LEAD + 2), ring_ahead = next_of(ring_ahead, LEAD + 2);
    turn = next_of(turn, STAGES + 2);
  }
  copy_wait<0>();
}
