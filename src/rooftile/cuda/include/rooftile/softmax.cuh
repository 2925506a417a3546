// The forms of softmax, as what the rungs ask of one: which elements a row may look at, what is summed, what is written; and the gradients.
#pragma once
#include "rooftile/rows.cuh"

namespace rooftile {

ROOFTILE_DEVICE float minus_infinity() { return -__int_as_float(0x7f800000); }

// How many columns row (.., t) of [.., T, N] looks at: causal rows are aligned to the last column. There are fewer than 2^31 rows: a division of
// 64 bits is long.
template <bool CAUSAL> ROOFTILE_DEVICE int reach(long long row, int N, int T) {
  return CAUSAL ? min(N, max(0, int(unsigned(row) % unsigned(T)) + 1 + N - T)) : N;
}

// A row that looks at all of its elements, as they are.
struct Whole {
  static constexpr bool HIDES = false;
  int N;
  ROOFTILE_DEVICE void open(long long) {}        // the row
  ROOFTILE_DEVICE int end() const { return N; }  // behind the last column that it may look at
  ROOFTILE_DEVICE bool may(int) const { return true; }
  template <int WIDTH> ROOFTILE_DEVICE void hide(float (&)[WIDTH], int) const {}  // of WIDTH elements from that column on, what it may not becomes -inf
  ROOFTILE_DEVICE float score(float x) const { return x; }
};

struct Softmax : Whole {
  float base, factor;
  ROOFTILE_DEVICE void close(Online s) { base = base_of(s.max), factor = 1.0f / s.sum; }  // of a row of -inf 0 * inf = NaN, as PyTorch has it
  ROOFTILE_DEVICE float out(float score) const { return exp_fast(score - base) * factor; }
};

struct LogSoftmax : Whole {
  float max, log;
  ROOFTILE_DEVICE void close(Online s) { max = s.max, log = logf(s.sum); }
  ROOFTILE_DEVICE float out(float score) const { return (score - max) - log; }  // of a row of -inf -inf - -inf = NaN, as PyTorch has it
};

// Row (b, h, t) of [B, H, T, N], whose mask has a byte an element and any strides.
template <bool MASK, bool CAUSAL> struct Scores {
  static constexpr bool HIDES = MASK || CAUSAL;
  int N, H, T;
  const unsigned char* gMask;
  long long mask_b, mask_h, mask_t;
  float scale;
  int last;
  float base, factor;
  ROOFTILE_DEVICE void open(long long row) {
    const unsigned i_t = unsigned(row) % unsigned(T), i_h = unsigned(row) / unsigned(T);
    if (MASK) gMask += i_h / unsigned(H) * mask_b + i_h % unsigned(H) * mask_h + i_t * mask_t;
    last = reach<CAUSAL>(row, N, T);
  }
  ROOFTILE_DEVICE int end() const { return last; }
  ROOFTILE_DEVICE bool may(int i_n) const { return i_n < last && (!MASK || gMask[i_n]); }
  // The mask of WIDTH elements from that column on, a byte each.
  template <int WIDTH> ROOFTILE_DEVICE uint2 ask(int i_n) const {
    if constexpr (MASK && WIDTH == 8) return __ldg(reinterpret_cast<const uint2*>(gMask + i_n));
    if constexpr (MASK && WIDTH == 4) return {__ldg(reinterpret_cast<const unsigned*>(gMask + i_n)), 0};
    return {0, 0};
  }
  template <int WIDTH> ROOFTILE_DEVICE void hide(float (&rF)[WIDTH], int i_n) const { hide(rF, i_n, ask<WIDTH>(i_n)); }
  template <int WIDTH> ROOFTILE_DEVICE void hide(float (&rF)[WIDTH], int i_n, uint2 rMay) const {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k)
      if (MASK && !((k < 4 ? rMay.x : rMay.y) >> k % 4 * 8 & 0xffu)) rF[k] = minus_infinity();
    if (CAUSAL && i_n + WIDTH > last)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k)
        if (i_n + k >= last) rF[k] = minus_infinity();
  }
  ROOFTILE_DEVICE float score(float x) const { return x * scale; }
  ROOFTILE_DEVICE void close(Online s) { base = base_of(s.max), factor = s.sum == 0.0f ? 0.0f : 1.0f / s.sum; }  // nothing to look at: zeros
  ROOFTILE_DEVICE float out(float score) const { return exp_fast(score - base) * factor; }
};

// Gradients: the sum over a row, and dx from it.
struct SoftmaxGradient {
  static ROOFTILE_DEVICE float term(float dout, float out) { return dout * out; }
  static ROOFTILE_DEVICE float dx(float dout, float out, float sum) { return out * (dout - sum); }
};
struct LogSoftmaxGradient {
  static ROOFTILE_DEVICE float term(float dout, float) { return dout; }
  static ROOFTILE_DEVICE float dx(float dout, float out, float sum) { return dout - exp_fast(out) * sum; }
};

}  // namespace rooftile
