// A row's loss and its gradient in one pass: what becomes of its vectors of 16 bytes, on their way in and on their way out.
#pragma once
#include "rooftile/capped.cuh"
#include "rooftile/cross_entropy.cuh"

namespace rooftile {

// On the way in. The target's logit is kept out of the sums.
template <typename T, bool SMOOTH, bool CAP> struct Taken {
  static constexpr int WIDTH = 16 / sizeof(T);
  static constexpr bool QUICK = CAP && !SMOOTH && sizeof(T) == 2;
  const SoftCap cap;
  const NearCap near;
  const unsigned t;
  unsigned apart;  // the class that is kept out of the sums where it is met: t, or none
  const float known, level;  // the target's logit, and what others are measured from
  float spread = 0.0f;
  RunningSum<T, QUICK> sum;
  float twin;
  T own;

  ROOFTILE_DEVICE Taken(const T* gRow, long long t, float softcap)
      : cap(softcap), near(cap), t(unsigned(t)), apart(this->t), known(CAP ? capped(float(gRow[t]), softcap) : float(gRow[t])), level(finite(known) ? known : 0.0f) {}

  ROOFTILE_DEVICE Online settled() const { return sum.settled(cap); }
  // How far the farthest lies that this warp has taken.
  ROOFTILE_DEVICE float reach() const {
    if constexpr (QUICK) return group_reduce<WARP>(sum.reach, Max());
    return 0.0f;
  }
  // Has its neighbour in the target's place, if that is in one of the vectors in shared memory that this thread takes: from the `first` on every `each`-th
  // before `end`. They go the quick way then.
  ROOFTILE_DEVICE void hide(uint4* sX, int first, int end, int each) {
    const int i = t / WIDTH;
    if (!QUICK || i < first || i >= end || (i - first) % each) return;
    T* sVec = reinterpret_cast<T*>(sX + i);
    own = sVec[t % WIDTH], sVec[t % WIDTH] = sVec[t % WIDTH ^ 1];
    twin = float(sVec[t % WIDTH]), apart = ~0u;
  }
  // The target again, and what its neighbour added off again.
  ROOFTILE_DEVICE void show(uint4* sX) {
    if constexpr (QUICK) {
      if (apart == t) return;
      reinterpret_cast<T*>(sX + t / WIDTH)[t % WIDTH] = own, apart = t;
      sum.take_off(twin, cap);
    }
  }
  // Four at a time where that is quicker, by warps that have four each. The first that is left.
  ROOFTILE_DEVICE int fours(const uint4* x, int first, int end, int each) {
    int i = first;
    if constexpr (QUICK)
      for (; i - lane() + WARP - 1 + 3 * each < end; i += 4 * each) {
        uint4 rX[4] = {x[i], x[i + each], x[i + 2 * each], x[i + 3 * each]};
        if (!quickly(rX, i, each))
#pragma unroll
          for (int v = 0; v < 4; ++v) one(rX[v], i + v * each);
      }
    return i;
  }
  ROOFTILE_DEVICE void operator()(const uint4& r, int i) {
    if constexpr (QUICK) {
      uint4 rX[1] = {r};
      if (quickly(rX, i, 0)) return;
    }
    one(r, i);
  }

private:
  template <int VECS> ROOFTILE_DEVICE bool quickly(uint4 (&rX)[VECS], int i, int each) {
    bool others = true;
#pragma unroll
    for (int v = 0; v < VECS; ++v) others &= apart - (i + v * each) * WIDTH >= WIDTH;
    return sum.template add<1>(rX, near, others);
  }
  ROOFTILE_DEVICE void one(const uint4& r, int i) {
    float rF[WIDTH], top = QUICK ? online_start().max : sum.rest.max, mine = 0.0f;
    unpack<T>(rF, r);
    if (CAP) cap(rF);
    if (SMOOTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) spread += rF[k] - level;
    const unsigned hit = apart - i * WIDTH;
    if (hit < WIDTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = unsigned(k) == hit ? online_start().max : rF[k];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) top = fmaxf(top, rF[k]);
    if constexpr (QUICK) sum.top = fmaxf(sum.top, top), top = fmaxf(sum.rest.max, top);
    const float base = base_of(top);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) mine += exp_fast(rF[k] - base);
    sum.rest = {top, sum.rest.sum * exp_fast(sum.rest.max - base) + mine};
  }
};

// On the way out, the i-th vector of a row of V classes as its gradient.
template <typename T, bool CAP> struct Given {
  const RowGradient gradient;
  const float reach;  // of all that the warp has taken
  template <bool SMOOTH> ROOFTILE_DEVICE Given(const RowLoss& r, int V, float smoothing, float z, const Taken<T, SMOOTH, CAP>& taken)
      : gradient(r.peak, r.logsum, r.miss, V, smoothing, z, 1.0f), reach(taken.reach()) {}
  template <bool SMOOTH> ROOFTILE_DEVICE void operator()(uint4* gVec, uint4 x, int i, const Taken<T, SMOOTH, CAP>& taken) const {
    const unsigned hit = taken.t - i * (16 / sizeof(T));
    const bool near = Taken<T, SMOOTH, CAP>::QUICK && hit >= 16 / sizeof(T);
    if (near && reach <= taken.near.half)
      give_near<T, 3>(x, gradient, taken.near);
    else if (near && reach <= taken.near.limit)
      give_near<T, 6>(x, gradient, taken.near);
    else
      gradient.template operator()<T, CAP>(x, hit, taken.cap);
    __stwb(gVec + i, x);
  }
};

// Of a row that does not count, its vectors from `first` on, every `each`-th.
template <typename T> ROOFTILE_DEVICE void give_nothing(uint4* gVec, float value, int first, int vectors, int each) {
  constexpr int WIDTH = 16 / sizeof(T);
  float rF[WIDTH];
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) rF[k] = value;
  uint4 r;
  pack<T>(r, rF);
  for (int i = first; i < vectors; i += each) gVec[i] = r;
}

// The loss with what smoothing and z add to it; spread: the sum of the logits less the target's.
ROOFTILE_DEVICE float whole_loss(const RowLoss& r, float spread, int V, float smoothing, float z) {
  float loss = r.loss - (smoothing != 0.0f ? smoothing * (spread / V) : 0.0f);
  if (z != 0.0f) loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
  return loss;
}

}  // namespace rooftile
