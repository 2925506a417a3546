// adds: tiles of 64 queries and 64 keys in shared memory (FlashAttention-2): what a block reads serves 64 rows, and 16 scores are a thread's registers
// costs: 4 barriers a tile forward, 3 and 5 backward; at D = 128 83 KiB of shared memory forward and 149 KiB backward, where a multiprocessor has one block
// loses when: T < 64, whose tiles are mostly empty; numbers of 16 bits, which tensor cores multiply over ten times as fast as 128 float32 lanes do
#include "rooftile/attention.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// 16 x 16 threads. Thread (i_y, i_x) has the scores of rows 4 i_y to 4 i_y + 3 with columns i_x, i_x + 16, i_x + 32, i_x + 48: neighbours read lines
// that begin 4 banks apart. Of a product with D columns it has the same rows, and columns 64 g + 4 i_x to 64 g + 4 i_x + 3.
constexpr int BLOCK = 64, THREADS = 256, P = 4, LINE = BLOCK + 4;

template <int G> struct Sums {
  float r[P][G][4] = {};
};

// Rows first to first + 63 as float, `width` columns in lines of width + 4; zeros past N and D.
template <typename X> ROOFTILE_DEVICE void bring(float* sX, const Head<const X>& x, int first, int N, int D, int width) {
  for (int row = warp(); row < BLOCK; row += THREADS / WARP)
    for (int i_d = lane(); i_d < width; i_d += WARP) sX[row * (width + 4) + i_d] = first + row < N && i_d < D ? float(x[first + row][i_d]) : 0.0f;
}

// A B^T
ROOFTILE_DEVICE void products(float (&s)[P][P], const float* sA, const float* sB, int width) {
  const int i_y = threadIdx.x / 16, i_x = threadIdx.x % 16, line = width + 4;
#pragma unroll
  for (int r = 0; r < P; ++r)
#pragma unroll
    for (int c = 0; c < P; ++c) s[r][c] = 0.0f;
  for (int i_d = 0; i_d < width; i_d += 4) {
    Vec<float, 4> a[P], b[P];
#pragma unroll
    for (int r = 0; r < P; ++r) load(a[r], sA + (P * i_y + r) * line + i_d), load(b[r], sB + (i_x + 16 * r) * line + i_d);
#pragma unroll
    for (int r = 0; r < P; ++r)
#pragma unroll
      for (int c = 0; c < P; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[r][c] += a[r][e] * b[c][e];
  }
}

// sums += P X, or with TRANSPOSED P^T X, of the 64 x 64 numbers at sP.
template <bool TRANSPOSED, int G> ROOFTILE_DEVICE void add(Sums<G>& sums, const float* sP, const float* sX, int width) {
  const int i_y = threadIdx.x / 16, i_x = threadIdx.x % 16;
  for (int i = 0; i < BLOCK; i += 4) {
    Vec<float, 4> w[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) load(w[u], TRANSPOSED ? sP + (i + u) * LINE + P * i_y : sP + (P * i_y + u) * LINE + i);
#pragma unroll
    for (int u = 0; u < 4; ++u)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        if (64 * g + 4 * i_x >= width) continue;
        Vec<float, 4> x;
        load(x, sX + (i + u) * (width + 4) + 64 * g + 4 * i_x);
#pragma unroll
        for (int r = 0; r < P; ++r)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums.r[r][g][e] += (TRANSPOSED ? w[u][r] : w[r][u]) * x[e];
      }
  }
}

// What a thread has of its scores goes where all threads read it.
ROOFTILE_DEVICE void share(float* sP, const float (&s)[P][P]) {
#pragma unroll
  for (int r = 0; r < P; ++r)
#pragma unroll
    for (int c = 0; c < P; ++c) sP[(P * int(threadIdx.x / 16) + r) * LINE + threadIdx.x % 16 + 16 * c] = s[r][c];
}

template <typename X, int G> ROOFTILE_DEVICE void keep(const Head<X>& to, const Sums<G>& sums, const float (&factor)[P], int first, int N, int D) {
#pragma unroll
  for (int r = 0; r < P; ++r) {
    const int row = first + P * int(threadIdx.x / 16) + r;
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i_d = 64 * g + 4 * int(threadIdx.x % 16) + e;
        if (row < N && i_d < D) to[row][i_d] = X(sums.r[r][g][e] * factor[r]);
      }
  }
}

template <typename X, int G>
__global__ void __launch_bounds__(256) attention(X* gOut, float* gLse, const X* gQ, const X* gK, const X* gV, long long q_b, long long q_t, long long q_h,
                                                 long long k_b, long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, int H, int T,
                                                 int S, int D, float scale, bool causal) {
  extern __shared__ __align__(128) float4 sMemory[];
  const int tiles = ceil_div(T, BLOCK), i_bh = blockIdx.x / tiles, width = (D + 3) / 4 * 4, tile = BLOCK * (width + 4);
  const int first = (tiles - 1 - int(blockIdx.x) % tiles) * BLOCK, i_y = threadIdx.x / 16, i_x = threadIdx.x % 16;  // the longest blocks first
  float *sQ = reinterpret_cast<float*>(sMemory), *sX = sQ + tile, *sP = sX + tile;
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H);
  const int end = seen(causal, min(first + BLOCK, T) - 1, T, S);
  Sums<G> out;
  float s[P][P], max[P], sum[P], factor[P];
#pragma unroll
  for (int r = 0; r < P; ++r) max[r] = minus_inf(), sum[r] = 0.0f;
  bring(sQ, head(gQ, q_b, q_t, q_h, i_bh, H), first, T, D, width);
  for (int i_s = 0; i_s < end; i_s += BLOCK) {
    __syncthreads();  // the last tile's values are read
    bring(sX, k, i_s, S, D, width);
    __syncthreads();
    products(s, sQ, sX, width);
#pragma unroll
    for (int r = 0; r < P; ++r) {
      const int sees = seen(causal, first + P * i_y + r, T, S);
      float larger = max[r];
#pragma unroll
      for (int c = 0; c < P; ++c) {
        s[r][c] = i_s + i_x + 16 * c < sees ? s[r][c] * scale : minus_inf();
        larger = Max()(larger, s[r][c]);
      }
      larger = warp_reduce<16>(larger, Max());
      const float base = base_of(larger), rescale = exp_fast(max[r] - base);
      max[r] = larger, sum[r] *= rescale;
#pragma unroll
      for (int c = 0; c < P; ++c) s[r][c] = exp_fast(s[r][c] - base), sum[r] += s[r][c];
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int e = 0; e < 4; ++e) out.r[r][g][e] *= rescale;
    }
    share(sP, s);
    __syncthreads();  // the keys are read, the weights written
    bring(sX, v, i_s, S, D, width);
    __syncthreads();
    add<false>(out, sP, sX, width);
  }
#pragma unroll
  for (int r = 0; r < P; ++r) {
    const float all = warp_reduce<16>(sum[r], Sum());
    const int i_t = first + P * i_y + r;
    factor[r] = all == 0.0f ? 0.0f : 1.0f / all;
    if (i_x == 0 && i_t < T) gLse[(long long)i_bh * T + i_t] = base_of(max[r]) + logf(all);
  }
  keep(dense(gOut, i_bh, H, T, D), out, factor, first, T, D);
}

// Weights and their gradients before the scale, of the queries from i_t on and the keys from i_s on.
ROOFTILE_DEVICE void slopes(float (&p)[P][P], float (&ds)[P][P], const float* gLse, const float* gDelta, int i_t, int i_s, int T, int S, float scale,
                            bool causal) {
#pragma unroll
  for (int r = 0; r < P; ++r) {
    const int row = i_t + P * int(threadIdx.x / 16) + r, sees = row < T ? seen(causal, row, T, S) : 0;
    const float lse = row < T ? base_of(gLse[row]) : 0.0f, delta = row < T ? gDelta[row] : 0.0f;
#pragma unroll
    for (int c = 0; c < P; ++c) {
      p[r][c] = i_s + int(threadIdx.x % 16) + 16 * c < sees ? exp_fast(p[r][c] * scale - lse) : 0.0f;
      ds[r][c] = p[r][c] * (ds[r][c] - delta);
    }
  }
}

// dq, and delta = rowsum(dout out) for the pass over keys.
template <typename X, int G>
__global__ void __launch_bounds__(256) queries(X* gDq, float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV,
                                               const X* gOut, long long g_b, long long g_t, long long g_h, long long q_b, long long q_t, long long q_h,
                                               long long k_b, long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, long long o_b,
                                               long long o_t, long long o_h, int H, int T, int S, int D, float scale, bool causal) {
  extern __shared__ __align__(128) float4 sMemory[];
  const int tiles = ceil_div(T, BLOCK), i_bh = blockIdx.x / tiles, width = (D + 3) / 4 * 4, tile = BLOCK * (width + 4);
  const int first = (tiles - 1 - int(blockIdx.x) % tiles) * BLOCK;
  float *sQ = reinterpret_cast<float*>(sMemory), *sDout = sQ + tile, *sK = sDout + tile, *sV = sK + tile, *sP = sV + tile;
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H), out = head(gOut, o_b, o_t, o_h, i_bh, H);
  const int end = seen(causal, min(first + BLOCK, T) - 1, T, S);
  gLse += (long long)i_bh * T, gDelta += (long long)i_bh * T;
  bring(sQ, head(gQ, q_b, q_t, q_h, i_bh, H), first, T, D, width);
  bring(sDout, head(gDout, g_b, g_t, g_h, i_bh, H), first, T, D, width);
  // no barrier: a lane reads the elements of dout that it has brought
  for (int row = warp(); row < BLOCK && first + row < T; row += THREADS / WARP) {
    float delta = 0.0f;
    for (int i_d = lane(); i_d < D; i_d += WARP) delta += sDout[row * (width + 4) + i_d] * float(out[first + row][i_d]);
    delta = warp_reduce(delta, Sum());
    if (lane() == 0) gDelta[first + row] = delta;
  }
  Sums<G> dq;
  float p[P][P], ds[P][P];
  for (int i_s = 0; i_s < end; i_s += BLOCK) {
    __syncthreads();  // the last tile's keys are read; delta is written
    bring(sK, k, i_s, S, D, width);
    bring(sV, v, i_s, S, D, width);
    __syncthreads();
    products(p, sQ, sK, width);
    products(ds, sDout, sV, width);
    slopes(p, ds, gLse, gDelta, first, i_s, T, S, scale, causal);
    share(sP, ds);
    __syncthreads();
    add<false>(dq, sP, sK, width);
  }
  const float factor[P] = {scale, scale, scale, scale};
  keep(dense(gDq, i_bh, H, T, D), dq, factor, first, T, D);
}

template <typename X, int G>
__global__ void __launch_bounds__(256) keys(X* gDk, X* gDv, const float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV,
                                            long long g_b, long long g_t, long long g_h, long long q_b, long long q_t, long long q_h, long long k_b,
                                            long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, int H, int T, int S, int D,
                                            float scale, bool causal) {
  extern __shared__ __align__(128) float4 sMemory[];
  const int tiles = ceil_div(S, BLOCK), i_bh = blockIdx.x / tiles, width = (D + 3) / 4 * 4, tile = BLOCK * (width + 4);
  const int first = int(blockIdx.x) % tiles * BLOCK;  // the first keys are seen by the most queries
  float *sK = reinterpret_cast<float*>(sMemory), *sV = sK + tile, *sQ = sV + tile, *sDout = sQ + tile, *sP = sDout + tile;
  const Head<const X> q = head(gQ, q_b, q_t, q_h, i_bh, H), dout = head(gDout, g_b, g_t, g_h, i_bh, H);
  gLse += (long long)i_bh * T, gDelta += (long long)i_bh * T;
  bring(sK, head(gK, k_b, k_s, k_h, i_bh, H), first, S, D, width);
  bring(sV, head(gV, v_b, v_s, v_h, i_bh, H), first, S, D, width);
  Sums<G> dk, dv;
  float p[P][P], ds[P][P];
  for (int i_t = first_query(causal, first, T, S) / BLOCK * BLOCK; i_t < T; i_t += BLOCK) {
    __syncthreads();  // the last tile's queries are read
    bring(sQ, q, i_t, T, D, width);
    bring(sDout, dout, i_t, T, D, width);
    __syncthreads();
    products(p, sQ, sK, width);
    products(ds, sDout, sV, width);
    slopes(p, ds, gLse, gDelta, i_t, first, T, S, scale, causal);
    share(sP, p);
    __syncthreads();
    add<true>(dv, sP, sDout, width);
    __syncthreads();  // the weights are read: their gradients come in their place
    share(sP, ds);
    __syncthreads();
    add<true>(dk, sP, sQ, width);
  }
  const float of_dk[P] = {scale, scale, scale, scale}, of_dv[P] = {1.0f, 1.0f, 1.0f, 1.0f};
  keep(dense(gDk, i_bh, H, S, D), dk, of_dk, first, S, D);
  keep(dense(gDv, i_bh, H, S, D), dv, of_dv, first, S, D);
}
