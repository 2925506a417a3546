// adds: 8 lanes a row and the running softmax: one pass over the keys, no score in memory; backward a pass of queries and one of keys, without atomics
// costs: 3 shuffles for every product of two rows; 4 rows of a warp share what they read, so a pair takes 2 D bytes of float32 from the caches
// loses when: many queries share their keys: a load feeds one product of each lane, and a multiprocessor has 1 load a cycle for 4 multiplications
#include "rooftile/attention.cuh"

using namespace rooftile;

constexpr int LANES = 8, ROWS = WARP / LANES;  // of a row; of a warp

ROOFTILE_DEVICE int part() { return lane() % LANES; }
ROOFTILE_DEVICE long long row() { return (blockIdx.x * (long long)warps() + warp()) * ROWS + lane() / LANES; }

// A lane has elements part, part + 8, ... of a row of D. A row that is not there is zeros.
template <typename X, int N> ROOFTILE_DEVICE void load_row(float (&r)[N], const X* gRow, int D, bool there) {
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = there && part() + i * LANES < D ? float(gRow[part() + i * LANES]) : 0.0f;
}
template <typename X, int N> ROOFTILE_DEVICE void store_row(X* gRow, const float (&r)[N], float factor, int D) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (part() + i * LANES < D) gRow[part() + i * LANES] = X(r[i] * factor);
}
template <int N> ROOFTILE_DEVICE float dot(const float (&a)[N], const float (&b)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += a[i] * b[i];
  return warp_reduce<LANES>(sum, Sum());
}
template <int N> ROOFTILE_DEVICE void add(float (&sum)[N], float factor, const float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] += factor * x[i];
}

template <typename X, int N>
__global__ void attention(X* gOut, float* gLse, const X* gQ, const X* gK, const X* gV, long long q_b, long long q_t, long long q_h, long long k_b,
                          long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, long long rows, int H, int T, int S, int D,
                          float scale, bool causal) {
  const long long i_row = row();  // of [B H, T]
  const bool mine = i_row < rows;  // all lanes of a warp stay: they meet in every product
  const int i_t = mine ? int(i_row % T) : 0, i_bh = mine ? int(i_row / T) : 0, end = mine ? seen(causal, i_t, T, S) : 0;
  const int last = warp_reduce(end, Max());
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H);
  float rQ[N], rX[N], rOut[N] = {}, max = minus_inf(), sum = 0.0f;
  load_row(rQ, head(gQ, q_b, q_t, q_h, i_bh, H)[i_t], D, mine);
  for (int i_s = 0; i_s < last; ++i_s) {
    const bool sees = i_s < end;
    load_row(rX, k[i_s], D, sees);
    const float product = scale * dot(rQ, rX), score = sees ? product : minus_inf();
    const float larger = Max()(max, score), base = base_of(larger), rescale = exp_fast(max - base), p = exp_fast(score - base);
    max = larger, sum = sum * rescale + p;
    load_row(rX, v[i_s], D, sees);
#pragma unroll
    for (int i = 0; i < N; ++i) rOut[i] *= rescale;
    add(rOut, p, rX);
  }
  if (!mine) return;
  store_row(dense(gOut, i_bh, H, T, D)[i_t], rOut, sum == 0.0f ? 0.0f : 1.0f / sum, D);
  if (part() == 0) gLse[i_row] = base_of(max) + logf(sum);
}

// dq, and delta = rowsum(dout out) for the pass over keys.
template <typename X, int N>
__global__ void queries(X* gDq, float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV, const X* gOut, long long g_b,
                        long long g_t, long long g_h, long long q_b, long long q_t, long long q_h, long long k_b, long long k_s, long long k_h,
                        long long v_b, long long v_s, long long v_h, long long o_b, long long o_t, long long o_h, long long rows, int H, int T, int S,
                        int D, float scale, bool causal) {
  const long long i_row = row();
  const bool mine = i_row < rows;
  const int i_t = mine ? int(i_row % T) : 0, i_bh = mine ? int(i_row / T) : 0, end = mine ? seen(causal, i_t, T, S) : 0;
  const int last = warp_reduce(end, Max());
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H);
  float rQ[N], rDout[N], rX[N], rDq[N] = {};
  load_row(rQ, head(gQ, q_b, q_t, q_h, i_bh, H)[i_t], D, mine);
  load_row(rDout, head(gDout, g_b, g_t, g_h, i_bh, H)[i_t], D, mine);
  load_row(rX, head(gOut, o_b, o_t, o_h, i_bh, H)[i_t], D, mine);
  const float delta = dot(rDout, rX), lse = mine ? base_of(gLse[i_row]) : 0.0f;
  if (mine && part() == 0) gDelta[i_row] = delta;
  for (int i_s = 0; i_s < last; ++i_s) {
    const bool sees = i_s < end;
    load_row(rX, v[i_s], D, sees);
    const float dp = dot(rDout, rX);
    load_row(rX, k[i_s], D, sees);
    const float score = scale * dot(rQ, rX);
    add(rDq, sees ? exp_fast(score - lse) * (dp - delta) : 0.0f, rX);
  }
  if (mine) store_row(dense(gDq, i_bh, H, T, D)[i_t], rDq, scale, D);
}

// dk and dv: 8 lanes a row of [B H, S].
template <typename X, int N>
__global__ void keys(X* gDk, X* gDv, const float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV, long long g_b,
                     long long g_t, long long g_h, long long q_b, long long q_t, long long q_h, long long k_b, long long k_s, long long k_h, long long v_b,
                     long long v_s, long long v_h, long long rows, int H, int T, int S, int D, float scale, bool causal) {
  const long long i_row = row();
  const bool mine = i_row < rows;
  const int i_s = mine ? int(i_row % S) : 0, i_bh = mine ? int(i_row / S) : 0, begin = mine ? first_query(causal, i_s, T, S) : T;
  const Head<const X> q = head(gQ, q_b, q_t, q_h, i_bh, H), dout = head(gDout, g_b, g_t, g_h, i_bh, H);
  float rK[N], rV[N], rQ[N], rDout[N], rDk[N] = {}, rDv[N] = {};
  load_row(rK, head(gK, k_b, k_s, k_h, i_bh, H)[i_s], D, mine);
  load_row(rV, head(gV, v_b, v_s, v_h, i_bh, H)[i_s], D, mine);
  for (int i_t = warp_reduce(begin, Min()); i_t < T; ++i_t) {
    const bool sees = i_t >= begin;
    load_row(rQ, q[i_t], D, sees);
    load_row(rDout, dout[i_t], D, sees);
    const long long i = (long long)i_bh * T + i_t;
    const float score = scale * dot(rQ, rK), dp = dot(rDout, rV), p = sees ? exp_fast(score - base_of(gLse[i])) : 0.0f;
    add(rDv, p, rDout);
    add(rDk, p * (dp - gDelta[i]), rQ);
  }
  if (!mine) return;
  store_row(dense(gDk, i_bh, H, S, D)[i_s], rDk, scale, D);
  store_row(dense(gDv, i_bh, H, S, D)[i_s], rDv, 1.0f, D);
}
