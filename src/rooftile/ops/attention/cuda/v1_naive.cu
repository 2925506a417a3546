// adds: the definition: scores and weights in memory, a thread an element of every product
// costs: 4 bytes a pair forward, 8 backward, held in memory; 6 passages of it forward, 24 bytes a pair, 7 backward, 28 bytes
// loses when: always: a load of k is 32 lines for 32 products, 1 line a cycle, where a multiprocessor multiplies 128 times a cycle
#include "rooftile/attention.cuh"

using namespace rooftile;

// Of this thread, in all of the grid.
ROOFTILE_DEVICE long long index() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }

template <typename X> ROOFTILE_DEVICE float dot(const X* gA, const X* gB, int D) {
  float sum = 0.0f;
  for (int i_d = 0; i_d < D; ++i_d) sum += float(gA[i_d]) * float(gB[i_d]);
  return sum;
}

// Pair (i_bh, i_t, i_s) is element `pair` of [B H, T, S].
template <typename X>
__global__ void scores(float* gP, const X* gQ, const X* gK, long long q_b, long long q_t, long long q_h, long long k_b, long long k_s, long long k_h,
                       long long pairs, int H, int T, int S, int D, float scale, bool causal) {
  const long long pair = index();
  if (pair >= pairs) return;
  const int i_s = int(pair % S), i_t = int(pair / S % T), i_bh = int(pair / S / T);
  float score = minus_inf();
  if (i_s < seen(causal, i_t, T, S)) score = scale * dot(head(gQ, q_b, q_t, q_h, i_bh, H)[i_t], head(gK, k_b, k_s, k_h, i_bh, H)[i_s], D);
  gP[pair] = score;
}

// A warp a row of [B H T, S]: scores become weights. A row that sees nothing has none, and lse = -inf.
__global__ void weights(float* gP, float* gLse, long long rows, int S) {
  const long long i_row = blockIdx.x * (long long)warps() + warp();
  if (i_row >= rows) return;  // all lanes of the warp or none
  float* gRow = gP + i_row * S;
  float max = minus_inf(), sum = 0.0f;
  for (int i_s = lane(); i_s < S; i_s += WARP) max = Max()(max, gRow[i_s]);
  max = base_of(warp_reduce(max, Max()));
  for (int i_s = lane(); i_s < S; i_s += WARP) sum += exp_fast(gRow[i_s] - max);
  sum = warp_reduce(sum, Sum());
  for (int i_s = lane(); i_s < S; i_s += WARP) gRow[i_s] = sum == 0.0f ? 0.0f : exp_fast(gRow[i_s] - max) / sum;
  if (lane() == 0) gLse[i_row] = max + logf(sum);
}

template <typename X>
__global__ void values(X* gOut, const float* gP, const X* gV, long long v_b, long long v_s, long long v_h, long long n, int H, int T, int S, int D,
                       bool causal) {
  const long long i = index();  // of [B, T, H, D]
  if (i >= n) return;
  const int i_d = int(i % D), i_t = int(i / D / H % T), i_bh = int(i / D / H / T * H + i / D % H);
  const float* gRow = gP + ((long long)i_bh * T + i_t) * S;
  const Head<const X> v = head(gV, v_b, v_s, v_h, i_bh, H);
  const int end = seen(causal, i_t, T, S);
  float sum = 0.0f;
  for (int i_s = 0; i_s < end; ++i_s) sum += gRow[i_s] * float(v[i_s][i_d]);
  gOut[i] = X(sum);
}

// delta = rowsum(dout out), a thread a row of [B H, T].
template <typename X>
__global__ void deltas(float* gDelta, const X* gDout, const X* gOut, long long g_b, long long g_t, long long g_h, long long o_b, long long o_t,
                       long long o_h, long long rows, int H, int T, int D) {
  const long long i = index();
  if (i >= rows) return;
  const int i_t = int(i % T), i_bh = int(i / T);
  gDelta[i] = dot(head(gDout, g_b, g_t, g_h, i_bh, H)[i_t], head(gOut, o_b, o_t, o_h, i_bh, H)[i_t], D);
}

// Weights from scores, and the gradient of the scores from the weights.
template <typename X>
__global__ void slopes(float* gP, float* gDs, const float* gLse, const float* gDelta, const X* gDout, const X* gV, long long g_b, long long g_t,
                       long long g_h, long long v_b, long long v_s, long long v_h, long long pairs, int H, int T, int S, int D, float scale, bool causal) {
  const long long pair = index();
  if (pair >= pairs) return;
  const int i_s = int(pair % S), i_t = int(pair / S % T), i_bh = int(pair / S / T);
  float p = 0.0f, ds = 0.0f;
  if (i_s < seen(causal, i_t, T, S)) {
    p = exp_fast(gP[pair] - base_of(gLse[pair / S]));
    ds = scale * p * (dot(head(gDout, g_b, g_t, g_h, i_bh, H)[i_t], head(gV, v_b, v_s, v_h, i_bh, H)[i_s], D) - gDelta[pair / S]);
  }
  gP[pair] = p;
  gDs[pair] = ds;
}

template <typename X>
__global__ void keys(X* gDk, X* gDv, const float* gP, const float* gDs, const X* gQ, const X* gDout, long long q_b, long long q_t, long long q_h,
                     long long g_b, long long g_t, long long g_h, long long n, int H, int T, int S, int D, bool causal) {
  const long long i = index();  // of [B, S, H, D]
  if (i >= n) return;
  const int i_d = int(i % D), i_s = int(i / D / H % S), i_bh = int(i / D / H / S * H + i / D % H);
  const Head<const X> q = head(gQ, q_b, q_t, q_h, i_bh, H), dout = head(gDout, g_b, g_t, g_h, i_bh, H);
  float dk = 0.0f, dv = 0.0f;
  for (int i_t = first_query(causal, i_s, T, S); i_t < T; ++i_t) {
    const long long pair = ((long long)i_bh * T + i_t) * S + i_s;
    dk += gDs[pair] * float(q[i_t][i_d]);
    dv += gP[pair] * float(dout[i_t][i_d]);
  }
  gDk[i] = X(dk);
  gDv[i] = X(dv);
}
