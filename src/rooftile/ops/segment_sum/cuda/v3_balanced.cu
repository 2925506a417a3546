// adds: rows and not segments are dealt out: every group of lanes has CHUNK rows, whoever's they are; 16 bytes an access, ROWS of them in flight
// costs: 3 or 4 loads in a chain to find the first segment; a float32 row of partial sums where a segment crosses into the next chunk, added by a second launch
// loses when: every segment crosses: rows of partial sums are then 2 / CHUNK of x, 1 % at 256 rows
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/ragged.cuh"

using namespace rooftile;

// gPartial has two rows a chunk: of the segment that comes in from before, and of the one that goes on behind.
template <typename T, typename I, int WIDTH, int LANES, int ROWS>
__global__ void __launch_bounds__(256, 2) chunks(T* __restrict__ gOut, float* __restrict__ gPartial, const T* __restrict__ gX,
                                                 const I* __restrict__ gOffsets, long long M, long long E, long long N, long long stride,
                                                 int strips, int chunk) {
  const long long i_g = blockIdx.x * (256ll / LANES) + threadIdx.x / LANES, i_c = i_g / strips;
  const long long i_n = (i_g % strips * LANES + threadIdx.x % LANES) * WIDTH, first = i_c * chunk;
  const long long last = first + chunk < M ? first + chunk : M;
  Vec<T, WIDTH> rX[ROWS];
  auto ask = [&](long long i_m) {  // first to leave the caches: nobody reads a row twice, and little is written
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (i_m + r < last && i_n < N)
        rX[r].whole = __ldcs(reinterpret_cast<const typename Vec<T, WIDTH>::Whole*>(gX + (i_m + r) * stride + i_n));
  };
  ask(first);  // on its way while the first segment is looked for
  const long long found = find<LANES>(gOffsets, E, first);
  if (first >= M || i_n >= N) return;
  Cursor<I> segment(gOffsets, E, found);
  float rSum[WIDTH] = {};
  auto finish = [&] {
    if (segment.is_one()) {
      const bool whole = segment.begin >= first && segment.end <= last;
      if (whole) write(gOut + segment.i_e * N + i_n, rSum);
      else write(gPartial + (2 * i_c + (segment.begin >= first)) * N + i_n, rSum);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
  };
  for (long long i_m = first; i_m < last; i_m += ROWS, ask(i_m)) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (i_m + r >= last) break;
      if (i_m + r >= segment.end) {
        finish();
        segment.advance(i_m + r);
      }
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += float(rX[r][k]);
    }
  }
  finish();
}

// Backward: a group of lanes keeps its segment's gradient and stores it to row after row; the next segment's is on its way.
template <typename T, typename I, int WIDTH, int LANES>
__global__ void __launch_bounds__(256, 4) spread(T* __restrict__ gDx, const T* __restrict__ gDout, const I* __restrict__ gOffsets, long long M,
                                                 long long E, long long N, long long stride, int strips, int chunk) {
  const long long i_g = blockIdx.x * (256ll / LANES) + threadIdx.x / LANES, first = i_g / strips * chunk;
  const long long i_n = (i_g % strips * LANES + threadIdx.x % LANES) * WIDTH, last = first + chunk < M ? first + chunk : M;
  const long long found = find<LANES>(gOffsets, E, first);
  if (first >= M || i_n >= N) return;
  Cursor<I> segment(gOffsets, E, found);
  auto ask = [&](Vec<T, WIDTH>& rDx, long long i_e) {
    if (0 <= i_e && i_e < E) load(rDx, gDout + i_e * stride + i_n);
    else fill(rDx, T(0.0f));
  };
  Vec<T, WIDTH> rDx, rNext;
  ask(rDx, segment.i_e);
  ask(rNext, segment.i_e + 1);
  for (long long i_m = first; i_m < last;) {
    const long long until = segment.end < last ? segment.end : last, before = segment.i_e;
#pragma unroll 4
    for (; i_m < until; ++i_m) store_global(gDx + i_m * N + i_n, rDx);
    if (i_m >= last) break;
    segment.advance(i_m);
    if (segment.i_e == before + 1) rDx = rNext;
    else ask(rDx, segment.i_e);  // empty segments lay between
    ask(rNext, segment.i_e + 1);
  }
}

// Of the segments that `chunks` could not finish: none (NaN), empty ones, and those in several chunks, whose partial sums are added in their
// order. A group of lanes a segment; where one has more than LONG chunks the block adds it together.
template <typename T, typename I, int WIDTH, int LANES>
__global__ void __launch_bounds__(256) borders(T* __restrict__ gOut, const float* __restrict__ gPartial, const I* __restrict__ gOffsets,
                                               long long M, long long E, long long N, int strips, int chunk) {
  constexpr int GROUPS = 256 / LANES, LONG = 64;
  __shared__ float sSum[GROUPS][LANES * WIDTH];
  __shared__ long long sLong[GROUPS];
  const int group = int(threadIdx.x / LANES), l = int(threadIdx.x % LANES);
  const long long i_g = blockIdx.x * (long long)GROUPS + group;
  auto add = [&](float (&rSum)[WIDTH], long long i_c, long long until, long long i_n) {  // the rows of chunks that the segment comes into
#pragma unroll 8
    for (; i_c < until; ++i_c)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += gPartial[2 * i_c * N + i_n + k];
  };
  bool later = false;
  const long long i_e = i_g / strips, i_n = (i_g % strips * LANES + l) * WIDTH;
  if (i_e < E) {
    const long long begin = gOffsets[i_e], end = gOffsets[i_e + 1], i_c = begin / chunk, until = end > begin ? (end - 1) / chunk + 1 : i_c;
    const bool right = 0 <= begin && begin <= end && end <= M;
    later = right && until - i_c > LONG;
    if (i_n < N && !later && (!right || until - i_c != 1)) {
      float rSum[WIDTH];
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] = !right ? __int_as_float(0x7fc00000) : until > i_c ? gPartial[(2 * i_c + 1) * N + i_n + k] : 0.0f;
      if (right) add(rSum, i_c + 1, until, i_n);
      write(gOut + i_e * N + i_n, rSum);
    }
  }
  if (l == 0) sLong[group] = later ? i_g : -1;
  __syncthreads();
  for (int g = 0; g < GROUPS; ++g) {
    if (sLong[g] < 0) continue;  // the same for all
    const long long i_e = sLong[g] / strips, i_n = (sLong[g] % strips * LANES + l) * WIDTH;
    const long long begin = gOffsets[i_e], i_c = begin / chunk, until = (long long)(gOffsets[i_e + 1] - 1) / chunk + 1;
    const long long share = (until - i_c - 1 + GROUPS - 1) / GROUPS, from = i_c + 1 + group * share;
    float rSum[WIDTH] = {};
    if (i_n < N) {
      if (group == 0)
        for (int k = 0; k < WIDTH; ++k) rSum[k] = gPartial[(2 * i_c + 1) * N + i_n + k];
      add(rSum, from, from + share < until ? from + share : until, i_n);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sSum[group][l * WIDTH + k] = rSum[k];
    __syncthreads();
    if (group == 0 && i_n < N) {
      for (int other = 1; other < GROUPS; ++other)
        for (int k = 0; k < WIDTH; ++k) rSum[k] += sSum[other][l * WIDTH + k];
      write(gOut + i_e * N + i_n, rSum);
    }
    __syncthreads();
  }
}
