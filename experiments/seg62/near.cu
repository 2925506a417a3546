// adds: the gradient of rows of one number by warps alone: a bit where a segment begins, and every number counts the bits up to its own place
// costs: 4 KB of shared memory a warp for the gradients of the segments that begin in a tile
// loses when: a row is more than one number: it takes no other
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/ragged.cuh"

using namespace rooftile;

template <bool VALUE> struct Whether {
  static constexpr bool value = VALUE;
};

// The number of offsets that are not beyond number i_m, by a warp; it is from `low` to `high`. 33 parts a turn, the last FEW a lane all at once.
template <int FEW, typename I> ROOFTILE_DEVICE unsigned passed(const I* gOffsets, unsigned low, unsigned high, long long i_m) {
  while (high - low > FEW * WARP) {
    const unsigned step = (high - low) / (WARP + 1) + 1, at = low + (lane() + 1) * step - 1;
    low += __popc(__ballot_sync(ALL_LANES, at < high && gOffsets[at] <= i_m)) * step;
    high = min(high, low + step - 1);
  }
  I seen[FEW];
#pragma unroll
  for (int k = 0; k < FEW; ++k) {
    const unsigned at = low + k * WARP + lane();
    if (at < high) seen[k] = gOffsets[at];
  }
  unsigned found = low;
#pragma unroll
  for (int k = 0; k < FEW; ++k) found += __popc(__ballot_sync(ALL_LANES, low + k * WARP + lane() < high && seen[k] <= i_m));
  return found;
}

// The same, of all E + 1. Of lengths that are alike as many begin before a number as its part of x says: the first turn looks there, and where it is not
// found there the next ones look on that side.
template <typename I> ROOFTILE_DEVICE unsigned find_near(const I* gOffsets, long long M, long long E, long long i_m) {
  const float about = float(i_m) / float(M) * float(E), away = 2.0f * sqrtf(float(E));  // cuts at random are off by a quarter of it
  const long long step = (long long)(away * (2.0f / (WARP - 1))) + 1, from = (long long)(about - away), at = from + lane() * step;
  const int before = __popc(__ballot_sync(ALL_LANES, at < 0 || (at <= E && gOffsets[at] <= i_m)));
  const long long low = before > 0 ? from + (before - 1) * step + 1 : 0, high = before < WARP ? from + before * step : E + 1;
  return passed<8>(gOffsets, unsigned(max(low, 0ll)), unsigned(min(high, E + 1)), i_m);
}


constexpr int SIZE = 1024;  // numbers of a tile: a word of bits a lane

// A warp's stretch is `tiles` tiles.
template <typename T, typename I, int BLOCK>
__global__ void __launch_bounds__(BLOCK, 1024 / BLOCK) spread(T* __restrict__ gDx, const T* __restrict__ gDout, const I* __restrict__ gOffsets, long long M,
                                                              long long E, int tiles) {
  constexpr int WIDTH = 16 / sizeof(T), WARPS = BLOCK / WARP;
  __shared__ T sBegun[WARPS][SIZE + 1];        // of the segment that comes in, and of those that begin in the tile
  __shared__ __align__(8) uint2 sBits[WARPS][WARP];  // where these begin; beside each word how many bits are in those before it
  const int l = lane(), w = warp();
  const long long first = (blockIdx.x * (long long)WARPS + w) * tiles * SIZE, last = min(first + (long long)tiles * SIZE, M);
  if (first >= last) return;
  const unsigned before = (1u << l) - 1;
  long long cursor = find_near(gOffsets, M, E, first - 1);  // the first offset that is not before the tile
  I at, other;
  T value;
  auto look = [&] {  // each offset with its neighbour and its segment's gradient
    const long long i = cursor + l;
    at = i <= E ? gOffsets[i] : I(-1), other = i < E ? gOffsets[i + 1] : I(-1), value = i < E ? gDout[i] : T(0.0f);
  };
  look();
  if (l == 0) sBegun[w][0] = 0 < cursor && cursor <= E ? gDout[cursor - 1] : T(0.0f);
  const unsigned from = l * WIDTH % WARP, below = (1u << from) - 1;  // of a lane's vector in its word, the same in every row
  T* gTile = gDx + first + l * WIDTH;
  for (long long tile = first; tile < last; tile += SIZE) {
    const int size = int(min((long long)SIZE, last - tile));
    sBits[w][l].x = 0;
    __syncwarp();
    int begun = 0;
    for (bool again = true; again;) {
      const bool in = cursor + l <= E && at < tile + size, marks = in && at >= tile && at != other;  // of offsets that are equal the last one's segment is not empty
      const unsigned all = __ballot_sync(ALL_LANES, marks);
      const int place = begun + __popc(all & before) + 1;
      if (marks && place <= SIZE) {  // it is more only where offsets fall
        sBegun[w][place] = value;
        atomicOr(&sBits[w][unsigned(at - tile) / WARP].x, 1u << unsigned(at - tile) % WARP);
      }
      begun += __popc(all);
      const int found = __popc(__ballot_sync(ALL_LANES, in));
      const I same = __shfl_sync(ALL_LANES, at, 0);
      again = found == WARP;
      if (again && !all && same == __shfl_sync(ALL_LANES, other, WARP - 1)) cursor = max(cursor + 1, find<WARP>(gOffsets, E, same) - 1);  // past equal ones
      else cursor += found;
      look();
    }
    __syncwarp();
    const int mine = __popc(sBits[w][l].x);
    int sum = mine;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const int more = __shfl_up_sync(ALL_LANES, sum, distance);
      if (l >= distance) sum += more;
    }
    sBits[w][l].y = sum - mine;
    __syncwarp();
    auto lay = [&](auto whole) {
#pragma unroll
      for (int r = 0; r < SIZE; r += WARP * WIDTH) {
        const int i = r + l * WIDTH;
        const uint2 word = sBits[w][r / WARP + l * WIDTH / WARP];
        const unsigned bits = word.x >> from;
        const T* sRun = sBegun[w] + word.y + __popc(word.x & below);
        Wide<T> rDx;
        T run = *sRun;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          if (bits >> k & 1) run = *++sRun;
          rDx[k] = run;
        }
        if constexpr (decltype(whole)::value) {
          store_global(gTile + r, rDx);
        } else {
          for (int k = 0; k < WIDTH && i + k < size; ++k) gTile[r + k] = rDx[k];
        }
      }
    };
    if (size == SIZE) lay(Whether<true>());
    else lay(Whether<false>());
    gTile += SIZE;
    const T open = sBegun[w][min(begun, SIZE)];
    __syncwarp();
    if (l == 0) sBegun[w][0] = open;
  }
}
