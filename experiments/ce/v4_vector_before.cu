// adds: backward 16 bytes an access: VECS vectors a thread, all asked for before the first is used, and a row's numbers folded into two factors
// costs: rows of whole 16 bytes; a block waits for its long row's target before it asks for logits, so that padding is not read
// loses when: a row is a little longer than a multiple of LANES x VECS vectors: the last of its tiles has threads without work
#include "rooftile/cross_entropy.cuh"
// Soft caps of vectors of 16-bit logits that all lie within half the cap, as a cap of 30 leaves nearly all of them: the largest is found two at a time before
// they are capped, which leaves their order, and log2 e is in the polynomial, so that an exponential's argument is one multiply-add more.

namespace rooftile {

template <typename T> struct Halves {
  using type = __half2;
};
template <> struct Halves<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

struct NearCap {
  static constexpr float LOG2E = 1.4426950408889634f;
  float limit, unit, q0, q1, q2, q3;  // unit: of c tanh(x / c) log2 e, a cap
  ROOFTILE_DEVICE explicit NearCap(const SoftCap& cap)
      : limit(cap.limit), unit(cap.inverse * 0.6931471805599453f), q0(cap.q0 * LOG2E), q1(cap.q1 * LOG2E), q2(cap.q2 * LOG2E), q3(cap.q3 * LOG2E) {}
  // c tanh(x / c) log2 e is x times this.
  ROOFTILE_DEVICE float factor(float x) const {
    const float w = x * x;
    return fmaf(w, fmaf(w, fmaf(w, fmaf(w, q3, q2), q1), q0), LOG2E);
  }
  // Whether all lie near enough, and the largest. A NaN is passed over, and comes through the polynomial.
  template <typename T, int VECS> ROOFTILE_DEVICE bool holds(const uint4 (&rX)[VECS], float& top) const {
    using Two = typename Halves<T>::type;
    Two most = reinterpret_cast<const Two&>(rX[0].x), least = most;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const unsigned words[4] = {rX[v].x, rX[v].y, rX[v].z, rX[v].w};
#pragma unroll
      for (const unsigned& word : words) most = __hmax2(most, reinterpret_cast<const Two&>(word)), least = __hmin2(least, reinterpret_cast<const Two&>(word));
    }
    top = fmaxf(float(most.x), float(most.y));
    return fmaxf(top, -fminf(float(least.x), float(least.y))) <= limit;
  }
};

// Adds exp of all of them to a running sum, if they lie near enough. Vectors are NEXT elements apart, of a row that has `rest` from the first on: those beyond it
// are the first again, and not added.
template <typename T, int NEXT, int VECS> ROOFTILE_DEVICE bool add_near(Online& rS, uint4 (&rX)[VECS], const SoftCap& cap, int rest = VECS * NEXT) {
  const NearCap near(cap);
  float top;
  if ((VECS - 1) * NEXT >= rest)
#pragma unroll
    for (int v = 1; v < VECS; ++v)
      if (v * NEXT >= rest) rX[v] = rX[0];
  if (!near.holds<T>(rX, top)) return false;
  const float base = fmaxf(rS.max, cap.near(top)), b = base * NearCap::LOG2E;
  rS = {base, rS.sum * exp_fast(rS.max - base)};
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    float rF[16 / sizeof(T)], sum = 0.0f;
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (float x : rF) sum += exp2_fast(fmaf(x, near.factor(x), -b));
    if (v * NEXT < rest) rS.sum += sum;
  }
  return true;
}

// A row's gradient without smoothing in place of a vector of its logits that lie near enough, not the target. For 16 bits exp needs no lse in two parts.
template <typename T> ROOFTILE_DEVICE void give_near(uint4& r, const RowGradient& row, const NearCap& near) {
  const float b = (row.peak + row.logsum) * NearCap::LOG2E, bend = near.unit * near.unit * row.factor;  // of the slope, 1 - tanh^2
  float rF[16 / sizeof(T)];
  unpack<T>(rF, r);
#pragma unroll
  for (float& x : rF) {
    const float y = x * near.factor(x);
    x = exp2_fast(y - b) * fmaf(-y * y, bend, row.factor);
  }
  pack<T>(r, rF);
}

}  // namespace rooftile

using namespace rooftile;

// LANES threads take a tile of a row: the block, or part of one where rows are short. gDx may be gX.
template <typename T, int VECS, int LANES, int THREADS, bool CAP>
__global__ void __launch_bounds__(THREADS, (CAP ? 768 : 1024) / THREADS)
    cross_entropy_backward(T* gDx, const float* gDloss, const T* gX, const long long* gTarget, const float* gCount, const float* gPeak,
                           const float* gLogsum, const float* gMiss, long long M, int V, long long stride_dx, long long stride_dloss,
                           long long stride_x, long long ignore, float smoothing, float z, float softcap) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = LANES * WIDTH, ROWS = THREADS / LANES;
  const int tiles = ceil_div(V, VECS * NEXT), i_l = int(blockIdx.x % tiles) * (VECS * NEXT) + threadIdx.x % LANES * WIDTH;
  const long long i_m = blockIdx.x / tiles * (long long)ROWS + threadIdx.x / LANES;
  if (i_m >= M) return;
  const long long t = gTarget[i_m];
  const T* gRow = gX + i_m * stride_x;
  T* gTo = gDx + i_m * stride_dx;
  constexpr bool AT_ONCE = LANES < THREADS;  // a short row is asked for beside its target, which takes as long: of padding it is read for nothing
  uint4 rX[VECS];
  float peak, logsum, miss, scale;
  const auto ask = [&] {
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (i_l + v * NEXT < V) rX[v] = __ldca(reinterpret_cast<const uint4*>(gRow + i_l + v * NEXT));
    peak = gPeak[i_m], logsum = gLogsum[i_m], miss = gMiss[i_m], scale = gDloss[i_m * stride_dloss] / *gCount;
  };
  if (AT_ONCE) ask();
  if (t == ignore) {
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (i_l + v * NEXT < V) __stwb(reinterpret_cast<uint4*>(gTo + i_l + v * NEXT), uint4{0, 0, 0, 0});
    return;
  }
  if (!AT_ONCE) ask();
  const RowGradient gradient(peak, logsum, miss, V, smoothing, z, scale);
  const SoftCap cap(softcap);
  const unsigned to_target = unsigned(t) - i_l;
  if constexpr (CAP && sizeof(T) == 2) {
    static_assert(((VECS - 1) & VECS) == 0 && ((NEXT - 1) & NEXT) == 0, "a target is looked for by bits");
    const NearCap near(cap);
    float top;
    const bool whole = i_l + (VECS - 1) * NEXT < V, others = (to_target & ~((VECS - 1u) * NEXT)) >= WIDTH;
    if (gradient.less == 0.0f && whole && others && near.holds<T>(rX, top)) {
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        give_near<T>(rX[v], gradient, near);
        __stwb(reinterpret_cast<uint4*>(gTo + i_l + v * NEXT), rX[v]);
      }
      return;
    }
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = i_l + v * NEXT;
    if (i_v >= V) break;
    gradient.template operator()<T, CAP>(rX[v], to_target - v * NEXT, cap);
    __stwb(reinterpret_cast<uint4*>(gTo + i_v), rX[v]);
  }
}
