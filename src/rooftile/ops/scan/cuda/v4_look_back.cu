// adds: one read: a tile publishes its sum and looks back at those before it; 16-byte accesses, sums in registers and shuffles, 2 barriers
// costs: a launch that clears 8 bytes a tile; 3 loads from the L2 that a tile waits for, so 3 or more tiles a multiprocessor must be in flight
// loses when: a tensor is a few tiles: clearing, a ticket and the look back are 3 waits of 700 ns; rows of one tile go without them

// Same bits every run, whenever blocks come: a tile's start is always P + (G + A), with A the sum of the tiles before it in its group of 32, G of
// the groups before it in their super-group of 32, P of all super-groups before: each added in one order, none replaced by what came sooner.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/sync.cuh"
#include "rooftile/vec.cuh"

using rooftile::ALL_LANES;
using rooftile::lane;
using Word = unsigned long long;  // the bits of a sum, and above them 1 where it is there: one access brings both, so nothing else is ordered
constexpr Word THERE = 1ull << 32;

__device__ __forceinline__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned bits(unsigned x) { return x; }
__device__ __forceinline__ void value(float& x, Word w) { x = __uint_as_float(unsigned(w)); }
__device__ __forceinline__ void value(unsigned& x, Word w) { x = unsigned(w); }

// A row as vectors of WIDTH elements at multiples of their size, the first and the last perhaps in part. Counted from the end where REVERSE.
template <typename T, int WIDTH, bool REVERSE> struct Row {
  const T* gX;
  T* gOut;
  long long N, vectors;
  int shift;  // elements of the first vector that lie before the row: the same in x and out

  __device__ __forceinline__ Row(T* gOut, const T* gX, long long N) : gX(gX), gOut(gOut), N(N) {
    shift = WIDTH == 1 ? 0 : int(reinterpret_cast<size_t>(gOut) / sizeof(T) % WIDTH);
    vectors = (N + shift + WIDTH - 1) / WIDTH;
  }
  __device__ __forceinline__ long long first(long long i) const { return (REVERSE ? vectors - 1 - i : i) * WIDTH - shift; }
  __device__ __forceinline__ bool whole(long long i, int count) const {
    const long long a = first(i), b = first(i + count - 1);
    return a >= 0 && a + WIDTH <= N && b >= 0 && b + WIDTH <= N;
  }
};

// What a warp has of a row: VECTORS x 32 vectors, of which lane l has every 32nd.
template <typename T, typename S, int WIDTH, int VECTORS, bool EXCLUSIVE, bool REVERSE> struct Strip {
  rooftile::Vec<T, WIDTH> rX[VECTORS];
  S rBefore[VECTORS];  // the sum of the strip before each vector

  __device__ __forceinline__ void load(const Row<T, WIDTH, REVERSE>& row, long long i) {
    if (row.whole(i, 32 * VECTORS)) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) rooftile::load_once(rX[v], row.gX + row.first(i + 32 * v + lane()));
    } else {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const long long at = row.first(i + 32 * v + lane());
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rX[v][k] = at + k >= 0 && at + k < row.N ? row.gX[at + k] : T(0);
      }
    }
  }

  __device__ __forceinline__ S sum() {  // of the strip; lanes by doubling, VECTORS of them side by side
    S rSum[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      S sum = 0;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += S(rX[v][REVERSE ? WIDTH - 1 - k : k]);
      rSum[v] = sum;
    }
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const S left = __shfl_up_sync(ALL_LANES, rSum[v], reach);
        if (lane() >= reach) rSum[v] += left;
      }
    }
    S sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const S left = __shfl_up_sync(ALL_LANES, rSum[v], 1);
      rBefore[v] = lane() ? sum + left : sum;
      sum += __shfl_sync(ALL_LANES, rSum[v], 31);
    }
    return sum;
  }

  __device__ __forceinline__ void store(const Row<T, WIDTH, REVERSE>& row, long long i, S before) {
    const bool whole = row.whole(i, 32 * VECTORS);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const S start = before + rBefore[v];
      rooftile::Vec<T, WIDTH> rOut;
      S sum = 0;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const int e = REVERSE ? WIDTH - 1 - k : k;
        const S x = S(rX[v][e]);
        rOut[e] = T(start + (EXCLUSIVE ? sum : sum + x));
        sum += x;
      }
      const long long at = row.first(i + 32 * v + lane());
      if (whole) {
        rooftile::store_once(row.gOut + at, rOut);
      } else {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k)
          if (at + k >= 0 && at + k < row.N) row.gOut[at + k] = rOut[k];
      }
    }
  }
};

// The sum of the warps before this one; `sum` becomes that of the block. sSum has a place for each of WARPS.
template <int WARPS, typename S> __device__ __forceinline__ S warps_before(S* sSum, S& sum) {
  if (lane() == 0) sSum[threadIdx.x / 32] = sum;
  __syncthreads();
  S before = sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    if (w == int(threadIdx.x / 32)) before = sum;
    sum += sSum[w];
  }
  return before;
}

// Rows of one tile: a block a row, or where WARPS is 1 a warp a row.
template <typename T, typename S, int WIDTH, int VECTORS, int WARPS, bool EXCLUSIVE, bool REVERSE>
__global__ void __launch_bounds__(WARPS == 1 ? 256 : 32 * WARPS) rows(T* __restrict__ gOut, const T* __restrict__ gX, long long M, long long N,
                                                                      long long stride) {
  __shared__ S sSum[WARPS];
  const int i_warp = WARPS == 1 ? 0 : int(threadIdx.x / 32);
  const long long i_m = WARPS == 1 ? blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
  if (i_m >= M) return;  // a whole warp, and only where there is no barrier
  const Row<T, WIDTH, REVERSE> row(gOut + i_m * N, gX + i_m * stride, N);
  Strip<T, S, WIDTH, VECTORS, EXCLUSIVE, REVERSE> strip;
  strip.load(row, i_warp * 32 * VECTORS);
  S sum = strip.sum(), before = 0;
  if (WARPS > 1) before = warps_before<WARPS>(sSum, sum);
  strip.store(row, i_warp * 32 * VECTORS, before);
}

__device__ __forceinline__ Word peek(const Word* g, bool wanted) { return wanted ? rooftile::load_relaxed(g) : THERE; }
__device__ __forceinline__ void wait(Word& word, const Word* g) {
  while (!(word & THERE)) {
    rooftile::spin_pause();
    word = rooftile::load_relaxed(g);
  }
}
template <typename S> __device__ __forceinline__ void publish(Word* g, S sum) {
  if (lane() == 0) rooftile::store_relaxed(g, THERE | bits(sum));
}
template <typename S> __device__ __forceinline__ S all_lanes(Word word) {
  S sum;
  value(sum, word);
#pragma unroll
  for (int reach = 16; reach > 0; reach /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, reach);
  return sum;
}

// Of tile i_t of a row what lies before it; one warp. The three words are asked for at once, and each is passed on as soon as it can be.
template <typename S> __device__ __forceinline__ S look_back(Word* gTiles, Word* gGroups, Word* gSupers, int i_t, S sum) {
  const int i_group = i_t / 32, i_super = i_t / 1024;
  publish(gTiles + i_t, sum);
  const Word *gTile = gTiles + i_group * 32 + lane(), *gGroup = gGroups + i_super * 32 + lane(), *gSuper = gSupers + i_super - 1;
  Word tile = peek(gTile, lane() < i_t % 32), group = peek(gGroup, lane() < i_group % 32), super = peek(gSuper, i_super > 0);
  wait(tile, gTile);
  const S in_group = all_lanes<S>(tile);
  if (i_t % 32 == 31) publish(gGroups + i_group, in_group + sum);
  wait(group, gGroup);
  const S in_super = all_lanes<S>(group);
  wait(super, gSuper);
  S before;
  value(before, super);
  if (i_t % 1024 == 1023) publish(gSupers + i_super, before + (in_super + (in_group + sum)));
  return before + (in_super + in_group);
}

__global__ void clear(unsigned long long* gState, long long words) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += gridDim.x * (long long)blockDim.x) gState[i] = 0;
}

// gState: a counter; then of all rows the tiles; then the groups; then the super-groups.
template <typename T, typename S, int WIDTH, int VECTORS, int WARPS, bool EXCLUSIVE, bool REVERSE>
__global__ void __launch_bounds__(32 * WARPS) tiles(T* __restrict__ gOut, const T* __restrict__ gX, unsigned long long* gState, long long M, long long N,
                                                    long long stride, int tiles, int groups, int supers) {
  __shared__ S sSum[WARPS], sBefore;
  __shared__ unsigned sTicket;
  // A block takes the next tile and not that of its index: whom it waits for has begun, whatever the device starts first.
  if (threadIdx.x == 0) sTicket = unsigned(atomicAdd(gState, 1ull));
  __syncthreads();
  const long long i_m = sTicket / tiles;
  const int i_t = int(sTicket % tiles), i_warp = int(threadIdx.x / 32);
  const Row<T, WIDTH, REVERSE> row(gOut + i_m * N, gX + i_m * stride, N);
  const long long i = (i_t * (long long)WARPS + i_warp) * 32 * VECTORS;
  Strip<T, S, WIDTH, VECTORS, EXCLUSIVE, REVERSE> strip;
  strip.load(row, i);
  S sum = strip.sum();
  const S in_block = warps_before<WARPS>(sSum, sum);
  if (i_warp == 0) {
    Word* const gTiles = gState + 1;
    Word* const gGroups = gTiles + M * tiles;
    const S before = look_back(gTiles + i_m * tiles, gGroups + i_m * groups, gGroups + M * groups + i_m * supers, i_t, sum);
    if (lane() == 0) sBefore = before;
  }
  __syncthreads();
  strip.store(row, i, sBefore + in_block);
}
