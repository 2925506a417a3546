// adds: one read, 16 bytes an access: a running maximum and sum, rescaled once for VECS vectors, while the next STAGES of them are on their way, beyond the row's end too
// costs: rows of whole 16 bytes; 16 bytes of shared memory a vector in flight; every element passes through it on its way to registers
// loses when: a row is shorter than THREADS x VECS vectors, which leaves threads idle, or there are fewer rows than blocks that fit
#include "rooftile/async.cuh"
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

template <typename T, int VECS, int STAGES, int THREADS, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget, long long M,
                  int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = THREADS * WIDTH, STEP = VECS * NEXT;  // elements to a thread's next vector, to its next stage
  constexpr bool QUICK = CAP && !SMOOTH && sizeof(T) == 2;
  static_assert(((VECS - 1) & VECS) == 0 && ((NEXT - 1) & NEXT) == 0, "a target is looked for by bits");
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Online sPartial[2][WARP];
  __shared__ float sSpread[2][WARP];
  const SoftCap cap(softcap);
  const float least = -__int_as_float(0x7f800000);
  const int i_l = threadIdx.x * WIDTH;
  uint4* sMine = sX + threadIdx.x;
  if (none && blockIdx.x == 0 && threadIdx.x == 0) *gCount = 1.0f;
  // Copies run ahead of the sums, into the next rows. Which of them are read is known a row before they are asked for. `left` are the elements of the row that
  // this thread's next copies come from, from the first of them on.
  const auto target = [&](long long i) { return i < M ? __ldg(gTarget + i) : ignore; };
  long long i_next = blockIdx.x, after = target(i_next + gridDim.x);
  const T* gNext;
  int left;
  const auto begin = [&]() { gNext = gX + i_next * stride_x + i_l, left = V - i_l; };
  const auto turn = [&]() {
    bool read;
    do {
      i_next += gridDim.x;
      read = is_class(after, ignore, V);
      after = target(i_next + gridDim.x);
    } while (i_next < M && !read);
    begin();
  };
  const auto fetch = [&](int stage) {
    if (i_next < M) {
      uint4* sTo = sMine + stage * (VECS * THREADS);
#pragma unroll
      for (int v = 0; v < VECS; ++v) copy_async<16>(sTo + v * THREADS, gNext + v * NEXT, v * NEXT < left);
      gNext += STEP, left -= STEP;
      if (left + i_l <= 0) turn();
    }
    copy_commit();
  };
  int stage = 0, parity = 0;
  const auto refill = [&]() {
    fetch(stage);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  };
  begin();
  if (!is_class(target(i_next), ignore, V)) turn();
#pragma unroll 1
  for (int s = 0; s < STAGES; ++s) fetch(s);
  for (long long i_m = blockIdx.x; i_m < M; i_m += gridDim.x) {
    const long long t = target(i_m);
    if (!is_class(t, ignore, V)) {
      if (threadIdx.x == 0) save(gLoss, gPeak, gLogsum, gMiss, i_m, no_loss(t, ignore));
      continue;
    }
    float known = float(gX[i_m * stride_x + t]), near = 0.0f, spread = 0.0f;  // wanted at the row's end, unless smoothing wants it now
    if (SMOOTH) {
      const float x = CAP ? capped(known, softcap) : known;
      near = finite(x) ? x : 0.0f;
    }
    Online rS = online_start();
    for (int at = 0; at < V; at += STEP) {
      float rF[VECS][WIDTH], top = rS.max;
      uint4 rX[VECS];
      copy_wait<STAGES - 1>();
#pragma unroll
      for (int v = 0; v < VECS; ++v) rX[v] = sMine[stage * (VECS * THREADS) + v * THREADS];
      if constexpr (QUICK) {
        refill();
        const int rest = V - at - i_l;
        const unsigned to_target = unsigned(t) - (at + i_l);  // in one of the vectors where only bits that say which are beyond WIDTH
        if (rest <= 0) continue;
        if ((to_target & ~((VECS - 1u) * NEXT)) >= WIDTH && add_near<T, NEXT>(rS, rX, cap, rest)) continue;
      }
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        unpack<T>(rF[v], rX[v]);
        const int i_v = at + i_l + v * NEXT;
        const unsigned hit = unsigned(t) - i_v;
        if (CAP) cap(rF[v]);
        if (SMOOTH && i_v < V)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) spread += rF[v][k] - near;
        if (i_v >= V || hit < WIDTH)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) rF[v][k] = i_v >= V || unsigned(k) == hit ? least : rF[v][k];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) top = fmaxf(top, rF[v][k]);
      }
      if constexpr (!QUICK) refill();
      const float base = base_of(top);
      rS = {top, rS.sum * exp_fast(rS.max - base)};
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float sum = 0.0f;  // of a vector by itself: a long row's sum is a short one of short ones
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += exp_fast(rF[v][k] - base);
        rS.sum += sum;
      }
    }
    rS = row_reduce<THREADS>(rS, Combine(), sPartial, parity);
    if (SMOOTH) spread = row_reduce<THREADS>(spread, Sum(), sSpread, parity);
    parity ^= 1;
    if (threadIdx.x > 0) continue;
    RowLoss r = row_loss(rS, CAP ? capped(known, softcap) : known);
    if (SMOOTH) r.loss -= smoothing * (spread / V);
    if (z != 0.0f) r.loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
    save(gLoss, gPeak, gLogsum, gMiss, i_m, r);
  }
  copy_wait<0>();
}
