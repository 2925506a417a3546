// adds: the rows that come next are always on their way, into a ring of each lane's own in shared memory, which no barrier guards
// costs: 16 bytes of shared memory a lane and row: 12 rows of 768 lanes are 144 KB
// loses when: rows are no whole vectors (it takes no other), or a chunk has few more rows than the ring
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/chunks.cuh"
#include "rooftile/passing.cuh"

using namespace rooftile;

// As v3_balanced's, BATCH rows a turn and AHEAD turns on their way.
template <typename T, typename I, int LANES, int BATCH, int AHEAD, int MODE>
__global__ void __launch_bounds__(256, 4) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX, const I* __restrict__ gOffsets,
                                              long long M, long long E, long long N, long long stride, int strips, int chunk) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(16) uint4 sAll[];
  uint4* sMine = sAll + threadIdx.x;  // a row every 256
  const long long i_g = blockIdx.x * (256ll / LANES) + threadIdx.x / LANES, i_c = i_g / strips;
  const long long i_n = (i_g % strips * LANES + threadIdx.x % LANES) * WIDTH, first = i_c * chunk;
  const long long last = first + chunk < M ? first + chunk : M;
  const long long groups = 256 / LANES, g = threadIdx.x / LANES, all = (long long)gridDim.x * groups;
  const auto where = [&](long long i_m) { const long long k = (i_m - first) / BATCH, r = (i_m - first) % BATCH; return MODE == 0 ? i_m : MODE == 1 ? blockIdx.x * groups * chunk + (k * groups + g) * BATCH + r : (k * all + i_g) * BATCH + r; };
  const Policy policy = evict_first(M * N * (long long)sizeof(T));  // nobody reads a row twice, and little is written
  const auto ask = [&](long long i_m, int turn) {
#pragma unroll
    for (int r = 0; r < BATCH; ++r)
      if (i_m + r < last && i_n < N) copy_async(sMine + (turn * BATCH + r) * 256, gX + min(where(i_m + r), M - 1) * stride + i_n, true, policy);
    copy_commit();
  };
#pragma unroll
  for (int t = 0; t < AHEAD; ++t) ask(first + t * BATCH, t);
  const long long found = find<LANES>(gOffsets, E, first);
  if (first >= M || i_n >= N) return;
  Cursor<I> segment(gOffsets, E, found);
  float rSum[WIDTH] = {};
  const auto finish = [&] {
    if (segment.is_one()) {
      const bool whole = segment.begin >= first && segment.end <= last;
      if (whole) write(gOut + segment.i_e * N + i_n, rSum);
      else write(gPartial + (2 * i_c + (segment.begin >= first)) * N + i_n, rSum);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
  };
  int turn = 0;
  for (long long i_m = first; i_m < last; i_m += BATCH) {
    Wide<T> rX[BATCH];
    copy_wait<AHEAD - 1>();
#pragma unroll
    for (int r = 0; r < BATCH; ++r) rX[r].whole = sMine[(turn * BATCH + r) * 256];
#pragma unroll
    for (int r = 0; r < BATCH; ++r) {
      if (i_m + r >= last) break;
      if (i_m + r >= segment.end) {
        finish();
        segment.advance(i_m + r);
      }
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += float(rX[r][k]);
    }
    ask(i_m + AHEAD * BATCH, turn);  // where the rows lay that have been added
    turn = turn + 1 == AHEAD ? 0 : turn + 1;
  }
  let_next_stand_by();
  finish();
}

template <typename T, typename I, int LANES>
__global__ void ROOFTILE_EARLY __launch_bounds__(256) borders(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets,
                                                              long long M, long long E, long long N, int strips, int chunk) {
  join_chunks<int(16 / sizeof(T)), LANES>(gOut, gPartial, gOffsets, M, E, N, strips, chunk);
}
