// adds: keys split over blocks and over the warps of a block, which meet once, at the end: each warp has a pipeline of its own, tensor cores, sums in registers
// costs: 13 KiB of shared memory for each tile of 16 keys and values a warp reads, uses and expects; a tile of 16 rows however few queries there are
// loses when: there are many rows: beyond 32 another block reads the keys again
#include "rooftile/async.cuh"
#include "rooftile/attention.cuh"
#include "rooftile/early.cuh"
#include "rooftile/mma.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/wgmma.cuh"

using namespace rooftile;

// Of a product of 16 x 8 a lane holds r[2 h + e]: row lane / 4 + 8 h, column lane % 4 * 2 + e. Lines are 16 bytes longer than D columns: 8 rows of a
// matrix lie in 8 different groups of 4 banks.
constexpr int N = 16;  // keys a tile
template <int D> constexpr int LINE = D + 8;
template <int D> constexpr int TILE = N * LINE<D>;

template <typename X, int D, int MT> ROOFTILE_DEVICE void products(float (&s)[MT][2][4], const X* sQ, const X* sK) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[m][0][i] = s[m][1][i] = 0.0f;
  sQ += lane() % 16 * LINE<D> + lane() / 16 * 8;
  sK += (lane() % 8 + lane() / 16 * 8) * LINE<D> + lane() / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    unsigned a[4], b[4];
    ldmatrix(b, sK + k);
    const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      ldmatrix(a, sQ + m * 16 * LINE<D> + k);
      mma_m16n8k16<X>(s[m][0], a, left);
      mma_m16n8k16<X>(s[m][1], a, right);
    }
  }
}

// sums += p V
template <typename X, int D, int MT> ROOFTILE_DEVICE void add(float (&sums)[MT][D / 8][4], const float (&p)[MT][2][4], const X* sV) {
  sV += lane() % 16 * LINE<D> + lane() / 16 * 8;
  unsigned a[MT][4], b[4];
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[m][i] = pack_pair(X(), p[m][i / 2][i % 2 * 2], p[m][i / 2][i % 2 * 2 + 1]);
#pragma unroll
  for (int n = 0; n < D / 16; ++n) {
    ldmatrix_transposed(b, sV + 16 * n);
    const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      mma_m16n8k16<X>(sums[m][2 * n], a[m], left);
      mma_m16n8k16<X>(sums[m][2 * n + 1], a[m], right);
    }
  }
}

// Of one row: what is left when a sink has its share, and how much of the sums that is.
struct Share {
  float max, sum, factor;
};
template <typename W> ROOFTILE_DEVICE Share with_sink(float max, float sum, const W* gSink) {
  const float sink = float(*gSink) * LOG2E, larger = Max()(max, sink), base = base_of(larger), factor = exp2_fast(max - base);
  return {larger, sum * factor + exp2_fast(sink - base), factor};
}

// 16 MT rows (queries x heads of a key head) and a share of the keys. page 0: the cache is contiguous. A length or a page that does not exist makes its
// sequence NaN. One split: its result is the result.
template <typename X, typename W, int D, int MT, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 8 / WARPS)
    split(X* gOut, float* gLse, float* gPart, float* gPartMax, float* gPartSum, const X* gQ, const X* gK, const X* gV, const int* gLengths,
          const int* gTable, const W* gSinks, int B, int T, int H, int G, int room, int pages, int page, int splits, int tiles, int window, bool sinks,
          float scale, float softcap, long long bytes, long long q_b, long long q_t, long long q_h, long long k_m, long long k_s, long long k_g,
          long long v_m, long long v_s, long long v_g, long long stride_length, long long stride_row, long long stride_page, long long stride_sink) {
  extern __shared__ __align__(128) float4 sMemory[];
  constexpr int ROWS = 16 * MT, ACROSS = D / 8, DOWN = WARP / ACROSS, WIDE = D + 8;  // a row of sums in shared memory is WIDE
  X *sQ = reinterpret_cast<X*>(sMemory), *sTiles = sQ + ROWS * LINE<D> + warp() * STAGES * 2 * TILE<D>;
  let_next_stand_by();
  const int i_tile = int(blockIdx.x) % tiles, i_s = int(blockIdx.x) / tiles % splits, i_g = int(blockIdx.x) / (tiles * splits) % G;
  const long long i_b = blockIdx.x / (tiles * splits) / G;
  const int group = H / G, first_row = i_tile * ROWS, rows = min(ROWS, T * group - first_row), i_d = lane() % ACROSS * 8, across = lane() / ACROSS;
  const Policy policy = evict_first(bytes);
  int length = gLengths[i_b * stride_length];
  for (int i = threadIdx.x; i < ROWS * ACROSS; i += WARPS * WARP) {
    const int row = i / ACROSS, i_m = first_row + min(row, rows - 1);
    copy_async<16>(sQ + row * LINE<D> + i % ACROSS * 8, gQ + i_b * q_b + i_m / group * q_t + (i_g * group + i_m % group) * q_h + i % ACROSS * 8, row < rows);
  }
  copy_commit();
  const bool wrong = length < 0 || length > room;
  bool nowhere = wrong;
  length = wrong ? 0 : length;

  // Tiles are dealt out to all warps of all shares in turn: what is read at a time lies together.
  const int lowest = window ? max(length - T - window + 1, 0) / N : 0, step = splits * WARPS, mine = lowest + i_s * WARPS + warp();
  const int count = max(0, ceil_div(ceil_div(length, N) - mine, step));
  gK += i_g * k_g + across * k_s + i_d, gV += i_g * v_g + across * v_s + i_d, gTable += i_b * stride_row;
  int ahead = page && count > 0 ? gTable[mine * N / page * stride_page] : 0;  // the next tile's page, asked for a tile before it leads to keys
  auto bring = [&](int i) {
    if (i < count) {
      const int start = (mine + i * step) * N;
      long long m = i_b, at = start;
      if (page) {
        const bool known = ahead >= 0 && ahead < pages;
        nowhere |= !known;
        m = known ? ahead : 0, at = start % page;
        if (i + 1 < count) ahead = gTable[(start + step * N) / page * stride_page];
      }
      const X *k = gK + m * k_m + at * k_s, *v = gV + m * v_m + at * v_s;
      X *sK = sTiles + i % STAGES * 2 * TILE<D> + across * LINE<D> + i_d, *sV = sK + TILE<D>;
#pragma unroll
      for (int j = 0; j < N / DOWN; ++j) {
        const bool there = start + across + j * DOWN < length;
        copy_async(reinterpret_cast<uint4*>(sK + j * DOWN * LINE<D>), there ? k + j * DOWN * k_s : gK, there, policy);
        copy_async(reinterpret_cast<uint4*>(sV + j * DOWN * LINE<D>), there ? v + j * DOWN * v_s : gV, there, policy);
      }
    }
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) bring(i);

  float out[MT][D / 8][4] = {}, s[MT][2][4], max[MT][2], sum[MT][2] = {};
  int sees[MT][2];  // the keys before this one, and with a window as many as it is wide
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      max[m][h] = minus_inf();
      sees[m][h] = length - T + (first_row + 16 * m + 8 * h + lane() / 4) / group + 1;
    }
  const float inner = softcap > 0.0f ? scale / softcap : scale * LOG2E, outer = softcap * LOG2E;
  copy_wait<STAGES - 1>();
  __syncthreads();  // the queries are there

  for (int i = 0; i < count; ++i) {
    copy_wait<STAGES - 2>();
    __syncwarp();  // this tile is there for all lanes, and the one before it is read
    bring(i + STAGES - 1);
    const int start = (mine + i * step) * N;
    const X* sK = sTiles + i % STAGES * 2 * TILE<D>;
    products<X, D, MT>(s, sQ, sK);
    const bool whole = start + N <= length - T + 1 && (!window || start >= length - window);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float larger = max[m][h];
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * h + e];
            x *= inner;
            if (softcap > 0.0f) x = outer * tanhf(x);
            if (!whole) {
              const int key = start + 8 * n + lane() % 4 * 2 + e;
              if (key >= sees[m][h] || (window && key < sees[m][h] - window)) x = minus_inf();
            }
            larger = Max()(larger, x);
          }
        larger = warp_reduce<4>(larger, Max());
        const float base = base_of(larger), rescale = exp2_fast(max[m][h] - base);
        max[m][h] = larger, sum[m][h] *= rescale;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * h + e];
            x = exp2_fast(x - base), sum[m][h] += x;
          }
#pragma unroll
        for (int n = 0; n < D / 8; ++n) out[m][n][2 * h] *= rescale, out[m][n][2 * h + 1] *= rescale;
      }
    add<X, D, MT>(out, s, sK + TILE<D>);
  }
  copy_wait<0>();
  __syncthreads();  // all tiles are read: the warps' sums come in their place

  float *sSums = reinterpret_cast<float*>(sMemory), *sMax = sSums + WARPS * ROWS * WIDE, *sSum = sMax + WARPS * ROWS;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * m + 8 * h + lane() / 4, at = warp() * ROWS + row;
      const float all = warp_reduce<4>(sum[m][h], Sum());
      if (row >= rows) continue;
      if (lane() % 4 == 0) sMax[at] = max[m][h], sSum[at] = nowhere ? __int_as_float(0x7fffffff) : all;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(sSums + at * WIDE + 8 * n + lane() % 4 * 2) = make_float2(out[m][n][2 * h], out[m][n][2 * h + 1]);
    }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * D; i += WARPS * WARP) {
    const int row = i / D, d = i % D, i_m = first_row + row, i_t = i_m / group, i_h = i_g * group + i_m % group;
    float larger = minus_inf(), total = 0.0f, value = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) larger = Max()(larger, sMax[w * ROWS + row]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float factor = exp2_fast(sMax[w * ROWS + row] - base_of(larger));
      total += factor * sSum[w * ROWS + row], value += factor * sSums[(w * ROWS + row) * WIDE + d];
    }
    const long long to = (i_b * T + i_t) * H + i_h;
    if (splits > 1) {
      const long long part = (long long)i_s * B * T * H + to;
      gPart[part * D + d] = value;
      if (d == 0) gPartMax[part] = larger, gPartSum[part] = total;
    } else {
      if (sinks) {
        const Share share = with_sink(larger, total, gSinks + i_h * stride_sink);
        larger = share.max, total = share.sum, value *= share.factor;
      }
      gOut[to * D + d] = X(value / (total == 0.0f ? 1.0f : total));
      if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = larger * LN2 + logf(total);
    }
  }
}

// A row (b, t, h) a block, a column a thread: its splits in order. The first are asked for before their shares are known.
template <typename X, typename W, int D>
__global__ void ROOFTILE_EARLY __launch_bounds__(D)
    join(X* gOut, float* gLse, const float* gPart, const float* gPartMax, const float* gPartSum, const W* gSinks, int M, int T, int H, int splits, bool sinks,
         long long stride_sink) {
  constexpr int MOST = 256, FIRST = 32;
  __shared__ float sFactor[MOST];
  const int i = blockIdx.x, d = threadIdx.x, i_h = i % H, i_t = i / H % T;
  const long long i_b = i / H / T;
  earlier_done();
  float part[FIRST], larger = minus_inf(), total = 0.0f, value = 0.0f;
#pragma unroll
  for (int j = 0; j < FIRST; ++j) part[j] = j < splits ? gPart[((long long)j * M + i) * D + d] : 0.0f;
  for (int j = d; j < splits; j += D) larger = Max()(larger, gPartMax[(long long)j * M + i]);
  larger = block_reduce(larger, Max());
  for (int j = d; j < splits; j += D) {
    const float factor = exp2_fast(gPartMax[(long long)j * M + i] - base_of(larger));
    sFactor[j] = factor, total += factor * gPartSum[(long long)j * M + i];
  }
  total = block_reduce(total, Sum());
  __syncthreads();
#pragma unroll
  for (int j = 0; j < FIRST; ++j)
    if (j < splits) value += sFactor[j] * part[j];
  for (int j = FIRST; j < splits; ++j) value += sFactor[j] * gPart[((long long)j * M + i) * D + d];
  if (sinks) {
    const Share share = with_sink(larger, total, gSinks + i_h * stride_sink);
    larger = share.max, total = share.sum, value *= share.factor;
  }
  gOut[(long long)i * D + d] = X(value / (total == 0.0f ? 1.0f : total));
  if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = larger * LN2 + logf(total);
}
