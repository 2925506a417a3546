// adds: a block has a run of neighbouring rows, CHUNK a group of lanes; what crosses from group to group is joined in shared memory, so runs can be short,
// costs: 3 or 4 loads in a chain for each group; a float32 row of partial sums where a segment crosses into the next run, added by a second launch
// loses when: rows are one number or two: a group is then a lane or two, and what they ask for lies apart
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/ragged.cuh"

using namespace rooftile;

// gPartial has two rows a run: of the segment that comes in from before, and of the one that goes on behind, which gOpen names; else that is -1.
template <typename T, typename I, int WIDTH, int LANES, int ROWS, int CHUNK>
__global__ void __launch_bounds__(256, 4) runs(T* __restrict__ gOut, float* __restrict__ gPartial, long long* __restrict__ gOpen, const T* __restrict__ gX,
                                               const I* __restrict__ gOffsets, long long M, long long E, long long N, long long stride, int strips) {
  constexpr int GROUPS = 256 / LANES;
  __shared__ float sHead[GROUPS][LANES * WIDTH];  // of a group's rows, those of the segment that comes in
  const int group = int(threadIdx.x / LANES), l = int(threadIdx.x % LANES);
  const long long run = blockIdx.x / strips, begin = run * (GROUPS * CHUNK), end = min(begin + GROUPS * CHUNK, M);
  const long long first = min(begin + group * CHUNK, M), last = min(first + CHUNK, M), i_n = (blockIdx.x % strips * (long long)LANES + l) * WIDTH;
  const bool mine = i_n < N;
  let_next_stand_by();
  Vec<T, WIDTH> rX[ROWS];
  auto ask = [&](long long i_m) {  // first to leave the caches: nobody reads a row twice, and little is written
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (i_m + r < last && mine) rX[r].whole = __ldcs(reinterpret_cast<const typename Vec<T, WIDTH>::Whole*>(gX + (i_m + r) * stride + i_n));
  };
  ask(first);  // on its way while the first segment is looked for
  Cursor<I> segment(gOffsets, E, find<LANES>(gOffsets, E, first));
  const bool comes = segment.is_one() && segment.begin < first;
  const long long until = segment.end;  // of the segment that comes in, if one does
  float rSum[WIDTH] = {};
  auto keep = [&] {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sHead[group][l * WIDTH + k] = rSum[k];
  };
  if (blockIdx.x % strips == 0 && threadIdx.x == 0) gOpen[run] = -1;
  for (long long i_m = first; i_m < last; i_m += ROWS, ask(i_m)) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (i_m + r >= last) break;
      if (i_m + r >= segment.end) {
        if (segment.begin < first) keep();
        else if (segment.is_one() && mine) write(gOut + segment.i_e * N + i_n, rSum);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
        segment.advance(i_m + r);
      }
      if (mine) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] += float(rX[r][k]);
      }
    }
  }
  if (segment.begin < first) keep();
  __syncthreads();
  auto add = [&](int other, long long behind) {  // what the groups from here on have of a segment that ends at `behind`
    for (; other < GROUPS && begin + other * CHUNK < min(behind, end); ++other)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += sHead[other][l * WIDTH + k];
  };
  if (first < last && mine && segment.is_one() && segment.begin >= first) {
    add(group + 1, segment.end);
    if (segment.end <= end) write(gOut + segment.i_e * N + i_n, rSum);
    else {
      write(gPartial + (2 * run + 1) * N + i_n, rSum);
      if (i_n == 0) gOpen[run] = segment.i_e;
    }
  }
  if (group == 0 && comes && mine) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] = sHead[0][l * WIDTH + k];
    add(1, until);
    write(gPartial + 2 * run * N + i_n, rSum);
  }
}

// Of the segments that runs could not finish: none (NaN), empty ones, and those in several, whose partial sums are added in one order: by a warp, where there are
// more than FEW by the block. A run is 2^log_size rows. Launched early: offsets are older than the launch before, which is the runs'.
template <typename T, typename I>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const long long* __restrict__ gOpen,
                                                           const I* __restrict__ gOffsets, long long M, long long E, long long N, int log_size) {
  constexpr int FEW = 16, WARPS = 8;
  __shared__ float sSum[WARPS][WARP];
  __shared__ long long sOpen[WARPS];
  const long long i_first = blockIdx.x * 256ll + warp() * WARP, i_e = i_first + lane();
  const long long begin = i_e < E ? (long long)gOffsets[i_e] : 0, end = i_e < E ? (long long)gOffsets[i_e + 1] : 0;
  const bool right = 0 <= begin && begin <= end && end <= M;
  const unsigned wrong = __ballot_sync(ALL_LANES, i_e < E && !right), vain = __ballot_sync(ALL_LANES, i_e < E && (!right || begin == end));
  earlier_done();
  for (unsigned left = vain; left; left &= left - 1) {
    const int l = __ffs(int(left)) - 1;
    for (long long i_n = lane(); i_n < N; i_n += WARP) gOut[(i_first + l) * N + i_n] = T(wrong >> l & 1 ? __int_as_float(0x7fc00000) : 0.0f);
  }
  const auto last_run = [&](long long e) { return int((long long)(gOffsets[e + 1] - 1) >> log_size); };
  const int runs = int((M - 1) >> log_size) + 1, run = int(blockIdx.x) * WARPS + warp();
  long long open = run < runs ? gOpen[run] : -1;
  if (open >= 0 && gOffsets[open + 1] > M) open = -1;  // none, and NaN
  const int until = open < 0 ? run : last_run(open);
  if (lane() == 0) sOpen[warp()] = until - run > FEW ? open : -1;
  if (open >= 0 && until - run <= FEW)
    for (long long i_n = lane(); i_n < N; i_n += WARP) {
      const float* gFrom = gPartial + 2 * run * N + i_n;
      float sum = gFrom[N];
#pragma unroll 4
      for (int c = run; c < until; ++c) sum += *(gFrom += 2 * N);
      gOut[open * N + i_n] = T(sum);
    }
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) {
    const long long e = sOpen[w];
    if (e < 0) continue;  // the same for all
    const int from = int(blockIdx.x) * WARPS + w, to = last_run(e);
    for (long long i_strip = 0; i_strip < N; i_strip += WARP) {
      const long long i_n = i_strip + lane();
      const float* gFrom = gPartial + 2 * from * N + i_n;
      float sum = 0.0f;
      if (i_n < N) {
        if (warp() == 0) sum = gFrom[N];
#pragma unroll 8
        for (int c = 1 + warp(); c <= to - from; c += WARPS) sum += gFrom[2 * c * N];
      }
      sSum[warp()][lane()] = sum;
      __syncthreads();
      if (warp() == 0 && i_n < N) {
        for (int other = 1; other < WARPS; ++other) sum += sSum[other][lane()];
        gOut[e * N + i_n] = T(sum);
      }
      __syncthreads();
    }
  }
}
