// adds: a block walks a stretch of neighbouring rows, whose tiles the copy engine brings; a warp has 128 bytes of every row, 4 rows at a time
// costs: shared memory for all that is under way; rows side by side, of whole 16 bytes and 2 KB at most; Hopper and later
// loses when: segments are a few rows: each is a reduction over the lanes of every warp
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/ragged.cuh"

using namespace rooftile;

// `share` rows a block, in tiles of `rows`. The last warp fills the ring; each other has LANES vectors of every row, as many rows at a time as it has groups of LANES
// lanes. gPartial has two rows a stretch: of the segment that comes in from before, and of the one that goes on behind.
template <typename T, typename I, int LANES, int STAGES>
__global__ void __launch_bounds__(544) stretches(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX, const I* __restrict__ gOffsets,
                                                 long long M, long long E, int N, int share, int rows) {
  constexpr int WIDTH = 16 / sizeof(T), GROUPS = WARP / LANES;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ Pipeline<STAGES> ring;
  const long long first = blockIdx.x * (long long)share, last = min(first + share, M);
  const int consumers = warps() - 1;
  if (threadIdx.x == 0) pipeline_init(ring, 1, consumers);
  let_next_stand_by();
  __syncthreads();
  Stage<STAGES> at;
  if (warp() == consumers) {
    if (lane() > 0) return;
    const Policy policy = evict_first(M * N * (long long)sizeof(T));
    for (long long here = first; here < last; here += rows, ++at) {
      const int bytes = int(min((long long)rows, last - here)) * N * int(sizeof(T));
      producer_acquire(ring, at, bytes);
      bulk_load(reinterpret_cast<T*>(sAll) + at.index * rows * N, gX + here * N, bytes, &ring.full[at.index], policy);
    }
    return;
  }
  const int group = lane() / LANES, i_n = (warp() * LANES + lane() % LANES) * WIDTH;
  const bool mine = i_n < N;
  Cursor<I> segment(gOffsets, E, find<WARP>(gOffsets, E, first));
  float rSum[WIDTH] = {};
  auto finish = [&] {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
#pragma unroll
      for (int distance = LANES; distance < WARP; distance *= 2) rSum[k] += shuffle_xor(rSum[k], distance);
    }
    if (group == 0 && mine && segment.is_one()) {
      const bool whole = segment.begin >= first && segment.end <= last;
      if (whole) write(gOut + segment.i_e * N + i_n, rSum);
      else write(gPartial + (2ll * blockIdx.x + (segment.begin >= first)) * N + i_n, rSum);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
  };
  for (long long here = first; here < last; here += rows, ++at) {
    const int count = int(min((long long)rows, last - here));
    const T* sX = reinterpret_cast<const T*>(sAll) + at.index * rows * N + i_n;
    consumer_wait(ring, at);
    for (int r = 0; r < count;) {
      if (here + r >= segment.end) {
        finish();
        segment.advance(here + r);
      }
      const int until = int(max(min((long long)count, segment.end - here), r + 1ll));  // a row at least, whatever the offsets say
#pragma unroll 4
      for (int i = r + group; i < until; i += GROUPS) {
        Vec<T, WIDTH> rX;
        if (mine) load(rX, sX + i * N);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] += mine ? float(rX[k]) : 0.0f;
      }
      r = until;
    }
    consumer_release(ring, at);
  }
  finish();
}

// Of the segments that stretches could not finish: none (NaN), empty ones, and those in several, whose partial sums are added in one order: by a warp, where there
// are more than FEW by the block. Launched early: offsets are older than the launch before, which is the stretches'.
template <typename T, typename I>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets, long long M,
                                                           long long E, int N, int share) {
  constexpr int FEW = 16, WARPS = 8, WIDTH = 4;
  __shared__ float4 sSum[WARPS][WARP];
  __shared__ unsigned sLong[WARPS];
  __shared__ int2 sFrom[WARPS][WARP];
  const long long i_first = blockIdx.x * 256ll + warp() * WARP, i_e = i_first + lane();
  const long long begin = i_e < E ? (long long)gOffsets[i_e] : 0, end = i_e < E ? (long long)gOffsets[i_e + 1] : 0;
  const bool right = 0 <= begin && begin <= end && end <= M;
  const int from = right ? int(begin / share) : 0, to = right && end > begin ? int((end - 1) / share) : from;
  auto add = [&](float4& rSum, long long row, int i_n) {
    const float4 rMore = *reinterpret_cast<const float4*>(gPartial + row * N + i_n);
    rSum.x += rMore.x, rSum.y += rMore.y, rSum.z += rMore.z, rSum.w += rMore.w;
  };
  auto out = [&](long long i, int i_n, const float4& rSum) {
    const float rOut[WIDTH] = {rSum.x, rSum.y, rSum.z, rSum.w};
    write(gOut + i * N + i_n, rOut);
  };
  const unsigned vain = __ballot_sync(ALL_LANES, i_e < E && (!right || begin == end)), wrong = __ballot_sync(ALL_LANES, i_e < E && !right);
  const unsigned cut = __ballot_sync(ALL_LANES, to > from), many = __ballot_sync(ALL_LANES, to - from > FEW);
  for (unsigned left = vain; left; left &= left - 1) {
    const int l = __ffs(int(left)) - 1;
    const float value = wrong >> l & 1 ? __int_as_float(0x7fc00000) : 0.0f;
    for (int i_n = lane() * WIDTH; i_n < N; i_n += WARP * WIDTH) out(i_first + l, i_n, float4{value, value, value, value});
  }
  sFrom[warp()][lane()] = int2{from, to};
  if (lane() == 0) sLong[warp()] = many;
  earlier_done();
  for (unsigned left = cut & ~many; left; left &= left - 1) {
    const int l = __ffs(int(left)) - 1, one = __shfl_sync(ALL_LANES, from, l), two = __shfl_sync(ALL_LANES, to, l);
    for (int i_n = lane() * WIDTH; i_n < N; i_n += WARP * WIDTH) {
      float4 rSum = {};
      add(rSum, 2ll * one + 1, i_n);
#pragma unroll 4
      for (int c = one + 1; c <= two; ++c) add(rSum, 2ll * c, i_n);
      out(i_first + l, i_n, rSum);
    }
  }
  __syncthreads();
  for (int w = 0; w < WARPS; ++w)
    for (unsigned left = sLong[w]; left; left &= left - 1) {  // the same for all
      const int l = __ffs(int(left)) - 1, one = sFrom[w][l].x, two = sFrom[w][l].y;
      for (int i_n = lane() * WIDTH; i_n - lane() * WIDTH < N; i_n += WARP * WIDTH) {
        float4 rSum = {};
        if (i_n < N) {
          if (warp() == 0) add(rSum, 2ll * one + 1, i_n);
#pragma unroll 8
          for (int c = one + 1 + warp(); c <= two; c += WARPS) add(rSum, 2ll * c, i_n);
        }
        sSum[warp()][lane()] = rSum;
        __syncthreads();
        if (warp() == 0 && i_n < N) {
          for (int other = 1; other < WARPS; ++other) {
            const float4 rMore = sSum[other][lane()];
            rSum.x += rMore.x, rSum.y += rMore.y, rSum.z += rMore.z, rSum.w += rMore.w;
          }
          out(blockIdx.x * 256ll + w * WARP + l, i_n, rSum);
        }
        __syncthreads();
      }
    }
}
