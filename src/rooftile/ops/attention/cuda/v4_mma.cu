// adds: tensor cores by mma.sync: a warp owns 16 rows; weights stay in registers as the next product's operand; cp.async brings a tile while another is used
// costs: D padded to 64 or 128; 85 KiB of shared memory forward at D = 128, 2 blocks of 4 warps a multiprocessor; 7 products backward, not 5
// loses when: Hopper's wgmma can be had: it reads both operands from shared memory once for 64 rows, where 4 warps here read them 4 times
#include "rooftile/async.cuh"
#include "rooftile/attention.cuh"
#include "rooftile/mma.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// A block owns 64 rows, 16 a warp, and walks tiles of N rows, 2 of them in shared memory. Of a product of 16 x 8 a lane holds r[2 h + e]: row
// lane / 4 + 8 h, column lane % 4 * 2 + e. Lines are 16 bytes longer than W columns: 8 rows of a matrix lie in 8 different groups of 4 banks.
constexpr int BLOCK = 64, THREADS = 128;
template <int W> constexpr int LINE = W + 8;

ROOFTILE_DEVICE unsigned pack(__half, float x, float y) {
  const __half2 two = __floats2half2_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&two);
}
ROOFTILE_DEVICE unsigned pack(__nv_bfloat16, float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&two);
}

// ROWS rows from `first` on, 16 bytes a copy; zeros past n and past D. Arrives with the thread's group.
template <int W, int ROWS, typename X> ROOFTILE_DEVICE void bring(X* sX, const Head<const X>& x, int first, int n, int D) {
  for (int i = threadIdx.x; i < ROWS * (W / 8); i += THREADS) {
    const int row = i / (W / 8), i_d = i % (W / 8) * 8;
    const bool there = first + row < n && i_d < D;
    copy_async<16>(sX + row * LINE<W> + i_d, there ? x[first + row] + i_d : x.g, there);
  }
}

// The warp's 16 rows at sA times N rows at sB, transposed.
template <int W, int N, typename X> ROOFTILE_DEVICE void products(float (&s)[N / 8][4], const X* sA, const X* sB) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  sA += lane() % 16 * LINE<W> + lane() / 16 * 8;
  sB += (lane() % 8 + lane() / 16 * 8) * LINE<W> + lane() / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < W; k += 16) {
    unsigned a[4], b[4];
    ldmatrix(a, sA + k);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      ldmatrix(b, sB + 16 * n * LINE<W> + k);
      const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_m16n8k16<X>(s[2 * n], a, left);
      mma_m16n8k16<X>(s[2 * n + 1], a, right);
    }
  }
}

// sums += w X, w the warp's 16 x N numbers as a product left them in registers, X the N rows at sX.
template <int W, int N, typename X> ROOFTILE_DEVICE void add(float (&sums)[W / 8][4], const float (&w)[N / 8][4], const X* sX) {
  sX += lane() % 16 * LINE<W> + lane() / 16 * 8;
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    const float(&x)[4] = w[2 * k], (&y)[4] = w[2 * k + 1];
    const unsigned a[4] = {pack(X(), x[0], x[1]), pack(X(), x[2], x[3]), pack(X(), y[0], y[1]), pack(X(), y[2], y[3])};
    unsigned b[4];
#pragma unroll
    for (int n = 0; n < W / 16; ++n) {
      ldmatrix_transposed(b, sX + 16 * k * LINE<W> + 16 * n);
      const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_m16n8k16<X>(sums[2 * n], a, left);
      mma_m16n8k16<X>(sums[2 * n + 1], a, right);
    }
  }
}

// The warp's 16 rows from row `first` of the head on, each times its factor.
template <int W, typename X> ROOFTILE_DEVICE void keep(const Head<X>& to, const float (&sums)[W / 8][4], const float (&factor)[2], int first, int n, int D) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + lane() / 4 + 8 * h;
#pragma unroll
    for (int i = 0; i < W / 8; ++i) {
      const int i_d = 8 * i + lane() % 4 * 2;
      if (row < n && i_d < D) *reinterpret_cast<unsigned*>(to[row] + i_d) = pack(X(), sums[i][2 * h] * factor[h], sums[i][2 * h + 1] * factor[h]);
    }
  }
}

template <typename X, int W, int N>
__global__ void __launch_bounds__(128) attention(X* gOut, float* gLse, const X* gQ, const X* gK, const X* gV, long long q_b, long long q_t, long long q_h,
                                                 long long k_b, long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, int H, int T,
                                                 int S, int D, float scale, bool causal) {
  extern __shared__ __align__(128) float4 sMemory[];
  constexpr int OWN = BLOCK * LINE<W>, TILE = N * LINE<W>;
  X *sQ = reinterpret_cast<X*>(sMemory), *sK = sQ + OWN, *sV = sK + 2 * TILE;
  const int tiles = ceil_div(T, BLOCK), i_bh = blockIdx.x / tiles, first = (tiles - 1 - int(blockIdx.x) % tiles) * BLOCK;  // the longest first
  const int mine = first + 16 * warp(), end = seen(causal, min(first + BLOCK, T) - 1, T, S);
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H);
  float out[W / 8][4] = {}, s[N / 8][4], max[2] = {minus_inf(), minus_inf()}, sum[2] = {0.0f, 0.0f}, factor[2];
  bring<W, BLOCK>(sQ, head(gQ, q_b, q_t, q_h, i_bh, H), first, T, D);
  bring<W, N>(sK, k, 0, S, D);
  bring<W, N>(sV, v, 0, S, D);
  copy_commit();
  for (int i_s = 0, stage = 0; i_s < end; i_s += N, stage ^= 1) {
    if (i_s + N < end) {
      bring<W, N>(sK + (stage ^ 1) * TILE, k, i_s + N, S, D);
      bring<W, N>(sV + (stage ^ 1) * TILE, v, i_s + N, S, D);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();  // everybody's copies of this tile are there
    products<W, N>(s, sQ + 16 * warp() * LINE<W>, sK + stage * TILE);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int sees = seen(causal, mine + lane() / 4 + 8 * h, T, S) - i_s - lane() % 4 * 2;
      float larger = max[h];
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * h + e];
          x = 8 * n + e < sees ? x * (scale * LOG2E) : minus_inf();
          larger = Max()(larger, x);
        }
      larger = warp_reduce<4>(larger, Max());
      const float base = base_of(larger), rescale = exp2_fast(max[h] - base);
      max[h] = larger, sum[h] *= rescale;
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * h + e];
          x = exp2_fast(x - base), sum[h] += x;
        }
#pragma unroll
      for (int n = 0; n < W / 8; ++n) out[n][2 * h] *= rescale, out[n][2 * h + 1] *= rescale;
    }
    add<W, N>(out, s, sV + stage * TILE);
    __syncthreads();  // the tile is read: the one after the next may come in its place
  }
  copy_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i_t = mine + lane() / 4 + 8 * h;
    const float all = warp_reduce<4>(sum[h], Sum());
    factor[h] = all == 0.0f ? 0.0f : 1.0f / all;
    if (lane() % 4 == 0 && i_t < T) gLse[(long long)i_bh * T + i_t] = base_of(max[h]) * LN2 + logf(all);
  }
  keep<W>(dense(gOut, i_bh, H, T, D), out, factor, mine, T, D);
}

// dq, and delta = rowsum(dout out) for the pass over keys.
template <typename X, int W, int N>
__global__ void __launch_bounds__(128, 2) queries(X* gDq, float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV,
                                               const X* gOut, long long g_b, long long g_t, long long g_h, long long q_b, long long q_t, long long q_h,
                                               long long k_b, long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, long long o_b,
                                               long long o_t, long long o_h, int H, int T, int S, int D, float scale, bool causal) {
  extern __shared__ __align__(128) float4 sMemory[];
  constexpr int OWN = BLOCK * LINE<W>, TILE = N * LINE<W>;
  X *sQ = reinterpret_cast<X*>(sMemory), *sDout = sQ + OWN, *sK = sDout + OWN, *sV = sK + 2 * TILE;
  const int tiles = ceil_div(T, BLOCK), i_bh = blockIdx.x / tiles, first = (tiles - 1 - int(blockIdx.x) % tiles) * BLOCK;
  const int mine = first + 16 * warp(), end = seen(causal, min(first + BLOCK, T) - 1, T, S);
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H), out = head(gOut, o_b, o_t, o_h, i_bh, H);
  const Head<const X> dout = head(gDout, g_b, g_t, g_h, i_bh, H);
  float dq[W / 8][4] = {}, s[N / 8][4], dp[N / 8][4], lse[2], delta[2];
  bring<W, BLOCK>(sQ, head(gQ, q_b, q_t, q_h, i_bh, H), first, T, D);
  bring<W, BLOCK>(sDout, dout, first, T, D);
  bring<W, N>(sK, k, 0, S, D);
  bring<W, N>(sV, v, 0, S, D);
  copy_commit();
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // 4 lanes a row, while the tiles are on their way
    const int i_t = mine + lane() / 4 + 8 * h;
    float sum = 0.0f;
    if (i_t < T)
      for (int i_d = lane() % 4; i_d < D; i_d += 4) sum += float(dout[i_t][i_d]) * float(out[i_t][i_d]);
    delta[h] = warp_reduce<4>(sum, Sum());
    lse[h] = i_t < T ? base_of(gLse[(long long)i_bh * T + i_t]) * LOG2E : 0.0f;
    if (i_t < T && lane() % 4 == 0) gDelta[(long long)i_bh * T + i_t] = delta[h];
  }
  for (int i_s = 0, stage = 0; i_s < end; i_s += N, stage ^= 1) {
    if (i_s + N < end) {
      bring<W, N>(sK + (stage ^ 1) * TILE, k, i_s + N, S, D);
      bring<W, N>(sV + (stage ^ 1) * TILE, v, i_s + N, S, D);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();  // everybody's copies of this tile are there
    products<W, N>(s, sQ + 16 * warp() * LINE<W>, sK + stage * TILE);
    products<W, N>(dp, sDout + 16 * warp() * LINE<W>, sV + stage * TILE);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int sees = seen(causal, mine + lane() / 4 + 8 * h, T, S) - i_s - lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * h + e];
          x = 8 * n + e < sees ? exp2_fast(x * (scale * LOG2E) - lse[h]) * (dp[n][2 * h + e] - delta[h]) : 0.0f;
        }
    }
    add<W, N>(dq, s, sK + stage * TILE);
    __syncthreads();  // the tile is read: the one after the next may come in its place
  }
  copy_wait<0>();
  const float factor[2] = {scale, scale};
  keep<W>(dense(gDq, i_bh, H, T, D), dq, factor, mine, T, D);
}

// dk and dv, of scores transposed: a warp owns 16 keys, and lse and delta go with the columns.
template <typename X, int W, int N>
__global__ void __launch_bounds__(128) keys(X* gDk, X* gDv, const float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV,
                                            long long g_b, long long g_t, long long g_h, long long q_b, long long q_t, long long q_h, long long k_b,
                                            long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, int H, int T, int S, int D,
                                            float scale, bool causal) {
  extern __shared__ __align__(128) float4 sMemory[];
  constexpr int OWN = BLOCK * LINE<W>, TILE = N * LINE<W>;
  X *sK = reinterpret_cast<X*>(sMemory), *sV = sK + OWN, *sQ = sV + OWN, *sDout = sQ + 2 * TILE;
  float* sRows = reinterpret_cast<float*>(sDout + 2 * TILE);  // lse and delta of N queries, twice
  const int tiles = ceil_div(S, BLOCK), i_bh = blockIdx.x / tiles, first = int(blockIdx.x) % tiles * BLOCK, mine = first + 16 * warp();
  const int start = first_query(causal, first, T, S);  // the first keys are seen by the most queries: the longest blocks first
  const Head<const X> q = head(gQ, q_b, q_t, q_h, i_bh, H), dout = head(gDout, g_b, g_t, g_h, i_bh, H);
  float dk[W / 8][4] = {}, dv[W / 8][4] = {}, p[N / 8][4], ds[N / 8][4];
  gLse += (long long)i_bh * T, gDelta += (long long)i_bh * T;
  auto queries_from = [&](int i_t, int stage) {
    bring<W, N>(sQ + stage * TILE, q, i_t, T, D);
    bring<W, N>(sDout + stage * TILE, dout, i_t, T, D);
    if (threadIdx.x < 2 * N) {
      const int i = i_t + int(threadIdx.x) % N;
      copy_async<4>(sRows + stage * 2 * N + threadIdx.x, (threadIdx.x < N ? gLse : gDelta) + (i < T ? i : 0), i < T);
    }
  };
  bring<W, BLOCK>(sK, head(gK, k_b, k_s, k_h, i_bh, H), first, S, D);
  bring<W, BLOCK>(sV, head(gV, v_b, v_s, v_h, i_bh, H), first, S, D);
  queries_from(start, 0);
  copy_commit();
  for (int i_t = start, stage = 0; i_t < T; i_t += N, stage ^= 1) {
    if (i_t + N < T) queries_from(i_t + N, stage ^ 1);
    copy_commit();
    copy_wait<1>();
    __syncthreads();  // everybody's copies of this tile are there
    products<W, N>(p, sK + 16 * warp() * LINE<W>, sQ + stage * TILE);
    products<W, N>(ds, sV + 16 * warp() * LINE<W>, sDout + stage * TILE);
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * n + lane() % 4 * 2 + e;
        const float lse = base_of(sRows[stage * 2 * N + column]) * LOG2E, delta = sRows[stage * 2 * N + N + column];
        const int sees = i_t + column < T ? seen(causal, i_t + column, T, S) - mine - lane() / 4 : 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float &x = p[n][2 * h + e], &y = ds[n][2 * h + e];
          x = 8 * h < sees ? exp2_fast(x * (scale * LOG2E) - lse) : 0.0f;
          y = x * (y - delta);
        }
      }
    add<W, N>(dv, p, sDout + stage * TILE);
    add<W, N>(dk, ds, sQ + stage * TILE);
    __syncthreads();  // the tile is read: the one after the next may come in its place
  }
  copy_wait<0>();
  const float of_dk[2] = {scale, scale}, of_dv[2] = {1.0f, 1.0f};
  keep<W>(dense(gDk, i_bh, H, S, D), dk, of_dk, mine, S, D);
  keep<W>(dense(gDv, i_bh, H, S, D), dv, of_dv, mine, S, D);
}
