// What the rungs of attention share: where the rows of a head lie, which keys a query sees, what a gradient wants of each query.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/activation.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

ROOFTILE_DEVICE float minus_inf() { return -__int_as_float(0x7f800000); }

// The rows of one head of [B, N, H, D]: D is dense, the other strides are free.
template <typename X> struct Head {
  X* g;
  long long stride;
  ROOFTILE_DEVICE X* operator[](int i) const { return g + i * stride; }
};
template <typename X> ROOFTILE_DEVICE Head<X> head(X* g, long long b, long long n, long long h, int i_bh, int H) {
  return {g + i_bh / H * b + i_bh % H * h, n};
}
template <typename X> ROOFTILE_DEVICE Head<X> dense(X* g, int i_bh, int H, int N, int D) {
  return head(g, (long long)N * H * D, (long long)H * D, (long long)D, i_bh, H);
}

// Query i_t sees the keys before this one: causal is aligned to the last key.
ROOFTILE_DEVICE int seen(bool causal, int i_t, int T, int S) { return causal ? min(S, max(0, i_t + 1 + S - T)) : S; }
// Key i_s is seen from this query on.
ROOFTILE_DEVICE int first_query(bool causal, int i_s, int T, int S) { return causal ? max(0, i_s + T - S) : 0; }

// gRows [B H, blocks, 2, BLOCK]: lse to base 2 and delta = rowsum(dout out) of each query, up to the end of the last block. A query that sees nothing, or
// is none, has lse = inf. D / 8 neighbouring threads have row i_t of `padded`, each 8 columns from i_d on.
template <int BLOCK, int D, typename T>
ROOFTILE_DEVICE void prepare_query(float* gRows, Head<const T> dout, Head<const T> out, const float* gLse, int i_bh, int i_t, int i_d, int T_, int padded) {
  const float INF = -minus_inf();
  float sum = 0.0f;
  if (i_t < T_) {
    Vec<T, 8> rDout, rOut;
    load_global(rDout, dout[i_t] + i_d);
    load_global(rOut, out[i_t] + i_d);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += float(rDout[i]) * float(rOut[i]);
  }
  sum = warp_reduce<D / 8>(sum, Sum());
  if (i_d == 0) {
    const float lse = i_t < T_ ? gLse[(long long)i_bh * T_ + i_t] : -INF;
    float* gRow = gRows + (long long)i_bh * padded * 2 + i_t / BLOCK * 2 * BLOCK + i_t % BLOCK;
    gRow[0] = lse == -INF ? INF : lse * LOG2E;
    gRow[BLOCK] = sum;
  }
}

}  // namespace rooftile
