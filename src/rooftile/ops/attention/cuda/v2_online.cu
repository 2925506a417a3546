// adds: a warp a row and the running softmax: one pass over the keys, no score in memory; backward a pass over keys and one over queries, without atomics
// costs: a reduction of 5 shuffles for every product of two rows; every row reads all keys and values from the caches: 4 D bytes a pair of float32
// loses when: more than a few queries share their keys: of 4 D operations a pair half wait for D / 32 loads and the shuffles
#include "rooftile/attention.cuh"

using namespace rooftile;

// A lane has elements lane, lane + 32, ... of a row of D.
template <typename X, int N> ROOFTILE_DEVICE void load_row(float (&r)[N], const X* gRow, int D) {
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = lane() + i * WARP < D ? float(gRow[lane() + i * WARP]) : 0.0f;
}
template <typename X, int N> ROOFTILE_DEVICE void store_row(X* gRow, const float (&r)[N], float factor, int D) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (lane() + i * WARP < D) gRow[lane() + i * WARP] = X(r[i] * factor);
}
template <int N> ROOFTILE_DEVICE float dot(const float (&a)[N], const float (&b)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += a[i] * b[i];
  return warp_reduce(sum, Sum());
}
template <int N> ROOFTILE_DEVICE void add(float (&sum)[N], float factor, const float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] += factor * x[i];
}

template <typename X, int N>
__global__ void attention(X* gOut, float* gLse, const X* gQ, const X* gK, const X* gV, long long q_b, long long q_t, long long q_h, long long k_b,
                          long long k_s, long long k_h, long long v_b, long long v_s, long long v_h, long long rows, int H, int T, int S, int D,
                          float scale, bool causal) {
  const long long i_row = blockIdx.x * (long long)warps() + warp();  // of [B H, T]
  if (i_row >= rows) return;  // all lanes of the warp or none
  const int i_t = int(i_row % T), i_bh = int(i_row / T), end = seen(causal, i_t, T, S);
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H);
  float rQ[N], rX[N], rOut[N] = {}, max = minus_inf(), sum = 0.0f;
  load_row(rQ, head(gQ, q_b, q_t, q_h, i_bh, H)[i_t], D);
  for (int i_s = 0; i_s < end; ++i_s) {
    load_row(rX, k[i_s], D);
    const float score = scale * dot(rQ, rX), larger = Max()(max, score), base = base_of(larger);
    const float rescale = exp_fast(max - base), p = exp_fast(score - base);
    max = larger, sum = sum * rescale + p;
    load_row(rX, v[i_s], D);
#pragma unroll
    for (int i = 0; i < N; ++i) rOut[i] *= rescale;
    add(rOut, p, rX);
  }
  store_row(dense(gOut, i_bh, H, T, D)[i_t], rOut, sum == 0.0f ? 0.0f : 1.0f / sum, D);
  if (lane() == 0) gLse[i_row] = base_of(max) + logf(sum);
}

// dq, and delta = rowsum(dout out) for the pass over keys.
template <typename X, int N>
__global__ void queries(X* gDq, float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV, const X* gOut, long long g_b,
                        long long g_t, long long g_h, long long q_b, long long q_t, long long q_h, long long k_b, long long k_s, long long k_h,
                        long long v_b, long long v_s, long long v_h, long long o_b, long long o_t, long long o_h, long long rows, int H, int T, int S,
                        int D, float scale, bool causal) {
  const long long i_row = blockIdx.x * (long long)warps() + warp();
  if (i_row >= rows) return;
  const int i_t = int(i_row % T), i_bh = int(i_row / T), end = seen(causal, i_t, T, S);
  const Head<const X> k = head(gK, k_b, k_s, k_h, i_bh, H), v = head(gV, v_b, v_s, v_h, i_bh, H);
  float rQ[N], rDout[N], rX[N], rDq[N] = {};
  load_row(rQ, head(gQ, q_b, q_t, q_h, i_bh, H)[i_t], D);
  load_row(rDout, head(gDout, g_b, g_t, g_h, i_bh, H)[i_t], D);
  load_row(rX, head(gOut, o_b, o_t, o_h, i_bh, H)[i_t], D);
  const float delta = dot(rDout, rX), lse = base_of(gLse[i_row]);
  if (lane() == 0) gDelta[i_row] = delta;
  for (int i_s = 0; i_s < end; ++i_s) {
    load_row(rX, v[i_s], D);
    const float dp = dot(rDout, rX);
    load_row(rX, k[i_s], D);
    add(rDq, exp_fast(scale * dot(rQ, rX) - lse) * (dp - delta), rX);
  }
  store_row(dense(gDq, i_bh, H, T, D)[i_t], rDq, scale, D);
}

// dk and dv, a warp a row of [B H, S].
template <typename X, int N>
__global__ void keys(X* gDk, X* gDv, const float* gDelta, const float* gLse, const X* gDout, const X* gQ, const X* gK, const X* gV, long long g_b,
                     long long g_t, long long g_h, long long q_b, long long q_t, long long q_h, long long k_b, long long k_s, long long k_h, long long v_b,
                     long long v_s, long long v_h, long long rows, int H, int T, int S, int D, float scale, bool causal) {
  const long long i_row = blockIdx.x * (long long)warps() + warp();
  if (i_row >= rows) return;
  const int i_s = int(i_row % S), i_bh = int(i_row / S);
  const Head<const X> q = head(gQ, q_b, q_t, q_h, i_bh, H), dout = head(gDout, g_b, g_t, g_h, i_bh, H);
  float rK[N], rV[N], rQ[N], rDout[N], rDk[N] = {}, rDv[N] = {};
  load_row(rK, head(gK, k_b, k_s, k_h, i_bh, H)[i_s], D);
  load_row(rV, head(gV, v_b, v_s, v_h, i_bh, H)[i_s], D);
  for (int i_t = first_query(causal, i_s, T, S); i_t < T; ++i_t) {
    load_row(rQ, q[i_t], D);
    load_row(rDout, dout[i_t], D);
    const long long i = (long long)i_bh * T + i_t;
    const float p = exp_fast(scale * dot(rQ, rK) - base_of(gLse[i]));
    add(rDv, p, rDout);
    add(rDk, p * (dot(rDout, rV) - gDelta[i]), rQ);
  }
  store_row(dense(gDk, i_bh, H, S, D)[i_s], rDk, scale, D);
  store_row(dense(gDv, i_bh, H, S, D)[i_s], rDv, 1.0f, D);
}
