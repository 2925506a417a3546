// adds: a block has a run of neighbouring rows, a group of lanes 2^log_chunk of them; what crosses between groups is joined in shared memory, so runs can be short
// costs: 3 or 4 loads in a chain for each group; a float32 row of partial sums where a segment crosses into the next run, added by a second launch
// loses when: rows are one number or two: a group is then a lane or two, and what they ask for lies apart
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/ragged.cuh"

using namespace rooftile;

// The last runs are a quarter as long: who begins last ends last. LANES lanes a row, ROWS of them on their way. gPartial has a row for every run of the segment that comes in from before, and behind these one of the segment
// that goes on behind. gOpen is what goes on: its number, and the last run that it comes into; or -1.
template <typename T, typename I, int WIDTH, int LANES, int ROWS>
__global__ void __launch_bounds__(256, ROWS > 4 ? 3 : 4) runs(T* __restrict__ gOut, float* __restrict__ gPartial, longlong2* __restrict__ gOpen,
                                                              const T* __restrict__ gX, const I* __restrict__ gOffsets, long long M, long long E, long long N,
                                                              long long stride, int strips, int log_chunk, int long_runs) {
  constexpr int GROUPS = 256 / LANES;
  __shared__ float sHead[GROUPS][LANES * WIDTH];  // of a group's rows, those of the segment that comes in
  const long long run = blockIdx.x / strips, long_rows = (long long)long_runs * (GROUPS << log_chunk);  // the first so many, and all their rows
  const bool is_long = run < long_runs;
  const int group = int(threadIdx.x / LANES), l = int(threadIdx.x % LANES), chunk = 1 << (is_long ? log_chunk : log_chunk - 2), size = GROUPS * chunk;
  const long long begin = is_long ? run * size : long_rows + (run - long_runs) * size, end = min(begin + size, M);
  const long long first = min(begin + group * chunk, M), last = min(first + chunk, M), i_n = (blockIdx.x % strips * (long long)LANES + l) * WIDTH;
  const bool mine = i_n < N;
  const int count = int(last - first);
  const Policy policy = evict_first(M * N * (long long)sizeof(T));  // x is read once, and little is written
  let_next_stand_by();
  Vec<T, WIDTH> rX[ROWS];
  const T* gNext = gX + first * stride + i_n;
  auto ask = [&](int from) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r, gNext += stride)
      if (from + r < count && mine) {
        if constexpr (sizeof(T) * WIDTH == 16) rX[r].whole = load_global(reinterpret_cast<const uint4*>(gNext), policy);
        else load_global(rX[r], gNext);
      }
  };
  ask(0);  // on its way while the first segment is looked for
  long long found;
  if constexpr (LANES >= 8) found = find_near<LANES, 4>(gOffsets, M, E, first);  // 8 a lane would find no registers beside the rows
  else found = find<LANES>(gOffsets, E, first);  // of fewer a turn near by is as many loads
  Cursor<I> segment(gOffsets, E, found);
  const auto ends = [&] { return int(max(-1ll, min(segment.end - first, (long long)count))); };  // before which of these rows
  int border = ends();
  bool came = segment.begin < first;  // from before
  const long long until = segment.is_one() && came ? segment.end : -1;
  float rSum[WIDTH] = {};
  auto keep = [&] {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sHead[group][l * WIDTH + k] = rSum[k];
  };
  if (blockIdx.x % strips == 0 && threadIdx.x == 0) gOpen[run] = {-1, run};
  for (int here = 0; here < count; here += ROWS, ask(here)) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (here + r >= count) break;
      if (here + r >= border) {
        if (came) keep();
        else if (segment.is_one() && mine) write(gOut + segment.i_e * N + i_n, rSum);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
        segment.advance(first + here + r);
        border = ends(), came = false;
      }
      if (mine) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] += float(rX[r][k]);
      }
    }
  }
  if (came) keep();
  __syncthreads();
  auto add = [&](int other, long long behind) {  // what the groups from here on have of a segment that ends at `behind`
    for (; other < GROUPS && begin + other * chunk < min(behind, end); ++other)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += sHead[other][l * WIDTH + k];
  };
  if (count > 0 && mine && segment.is_one() && !came) {
    add(group + 1, segment.end);
    if (segment.end <= end) write(gOut + segment.i_e * N + i_n, rSum);
    else {
      write(gPartial + ((long long)gridDim.x / strips + run) * N + i_n, rSum);
      if (i_n == 0 && segment.end <= M) {  // of a segment beyond M nothing is added: it is none
        const long long at = segment.end - 1;
        gOpen[run] = {segment.i_e, at < long_rows ? at / (GROUPS << log_chunk) : long_runs + (at - long_rows) / (GROUPS << (log_chunk - 2))};
      }
    }
  }
  if (group == 0 && until >= 0 && mine) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] = sHead[0][l * WIDTH + k];
    add(1, until);
    write(gPartial + run * N + i_n, rSum);
  }
}

// Of the segments that runs could not finish: none (NaN), empty ones, and those in several runs, whose partial sums are added in one order by LANES lanes, WIDTH
// columns each; where they are more than FEW, by all such groups of the block. EACH are asked for before one is added. Columns are shared out among the blocks of
// the second axis: a segment of half of all rows is half a megabyte of partial sums, which one multiprocessor was long in reading.
// Launched early: offsets are older than the launch before, which is the runs'. What the runs wrote is loaded as what may change: the compiler moves a load of
// what never does to before the wait.
template <typename T, typename I, int WIDTH>
__global__ void ROOFTILE_EARLY __launch_bounds__(512, 2) join(T* __restrict__ gOut, const float* __restrict__ gPartial, const longlong2* __restrict__ gOpen,
                                                              const I* __restrict__ gOffsets, long long M, long long E, long long N, int runs) {
  constexpr int FEW = 16, LANES = 8, GROUPS = 512 / LANES, EACH = 8;
  using Part = Vec<float, WIDTH>;
  using Open = Vec<long long, 2>;  // a segment and the last run that it comes into
  __shared__ Part sSum[GROUPS][LANES];
  __shared__ Open sFar[GROUPS];
  __shared__ int sFrom[GROUPS], sCount;
  const int group = int(threadIdx.x) / LANES, l = int(threadIdx.x) % LANES, run = int(blockIdx.x) * GROUPS + group;
  const long long i_first = blockIdx.x * 512ll + warp() * WARP, i_e = i_first + lane();
  const long long begin = i_e < E ? (long long)gOffsets[i_e] : 0, end = i_e < E ? (long long)gOffsets[i_e + 1] : 0;
  const bool right = 0 <= begin && begin <= end && end <= M;
  const unsigned wrong = __ballot_sync(ALL_LANES, i_e < E && !right), vain = __ballot_sync(ALL_LANES, i_e < E && (!right || begin == end));
  const auto strips = [&](auto each) {  // of this block's columns
    for (long long i_strip = blockIdx.y * (long long)(LANES * WIDTH); i_strip < N; i_strip += gridDim.y * (long long)(LANES * WIDTH)) each(i_strip + l * WIDTH);
  };
  const auto add = [&](float (&rSum)[WIDTH], long long i_n, int from, int first, int to, int step) {
#pragma unroll 1
    for (int c = first; c <= to; c += EACH * step) {
      Part rX[EACH];
#pragma unroll
      for (int k = 0; k < EACH; ++k) {
        fill(rX[k], 0.0f);
        const int i = c + k * step;
        if (i <= to && i_n < N) load_global(rX[k], gPartial + (i > from ? i : runs + from) * N + i_n);
      }
#pragma unroll
      for (int k = 0; k < EACH; ++k)
#pragma unroll
        for (int n = 0; n < WIDTH; ++n) rSum[n] += rX[k][n];
    }
  };
  if (threadIdx.x == 0) sCount = 0;
  __syncthreads();
  earlier_done();
  Open open;
  open[0] = -1, open[1] = run;
  if (run < runs) load_global(open, reinterpret_cast<const long long*>(gOpen + run));
  const int to = int(open[1]);
  const bool mine = open[0] >= 0, far = to - run > FEW;
  if (mine && far && l == 0) {
    const int n = atomicAdd(&sCount, 1);  // in any order: each is added by itself
    sFar[n] = open, sFrom[n] = run;
  }
  strips([&](long long i_n) {
    for (int i = lane() / LANES; i < WARP && i_n < N; i += WARP / LANES) {
      if (!(vain >> i & 1)) continue;
      float rNone[WIDTH];
#pragma unroll
      for (int n = 0; n < WIDTH; ++n) rNone[n] = wrong >> i & 1 ? __int_as_float(0x7fc00000) : 0.0f;
      write(gOut + (i_first + i) * N + i_n, rNone);
    }
    if (mine && !far && i_n < N) {
      float rSum[WIDTH] = {};
      add(rSum, i_n, run, run, to, 1);
      write(gOut + open[0] * N + i_n, rSum);
    }
  });
  __syncthreads();
  for (int m = 0; m < sCount; ++m)
    strips([&](long long i_n) {
      float rSum[WIDTH] = {};
      add(rSum, i_n, sFrom[m], sFrom[m] + group, int(sFar[m][1]), GROUPS);
#pragma unroll
      for (int n = 0; n < WIDTH; ++n) sSum[group][l][n] = rSum[n];
      __syncthreads();
      if (group == 0 && i_n < N) {
#pragma unroll 8
        for (int other = 1; other < GROUPS; ++other)
#pragma unroll
          for (int n = 0; n < WIDTH; ++n) rSum[n] += sSum[other][l][n];
        write(gOut + sFar[m][0] * N + i_n, rSum);
      }
      __syncthreads();
    });
}
