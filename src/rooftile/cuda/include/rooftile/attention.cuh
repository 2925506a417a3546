// What the rungs of attention below Hopper's share: where the rows of a head lie, and which keys a query sees.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/activation.cuh"
#include "rooftile/reduce.cuh"

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

}  // namespace rooftile
