// adds: one read: a tile publishes its sum and looks back at those before it; 16-byte accesses, sums in registers and shuffles, 2 barriers
// costs: a launch that clears 8 bytes a tile; 3 loads from the L2 that a tile waits for, so 3 or more tiles a multiprocessor must be in flight
// loses when: a tensor is a few tiles: clearing, a ticket and the look back are 3 waits of 700 ns; rows of one tile go without them

// Same bits every run, whenever blocks come: a tile's start is always P + (G + A), with A the sum of the tiles before it in its group of 32, G of
// the groups before it in their super-group of 32, P of all super-groups before: each added in one order, none replaced by what came sooner.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/scan.cuh"

using namespace rooftile;

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
