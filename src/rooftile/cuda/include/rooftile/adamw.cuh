// What rungs of AdamW share: one element's step, stochastic rounding, the squares of what was read, and WIDTH neighbours of any of its tensors as floats.
#pragma once
#include "rooftile/approximate.cuh"
#include "rooftile/philox.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

namespace rooftile {

struct Rates {
  float keep, rate, inverse2, beta1, beta2, rest1, rest2, eps, scale;
  ROOFTILE_DEVICE void of(const float* gHyper, int t) {  // lr, decay and both bias corrections of tensor t
    const float lr = __ldg(gHyper + 4 * t);
    keep = 1.0f - lr * __ldg(gHyper + 4 * t + 1), rate = lr / __ldg(gHyper + 4 * t + 2), inverse2 = 1.0f / __ldg(gHyper + 4 * t + 3);
  }
};

ROOFTILE_DEVICE void step(float& p, float g, float& m, float& v, const Rates& r) {
  g *= r.scale;
  m = r.beta1 * m + r.rest1 * g;
  v = r.beta2 * v + r.rest2 * g * g;
  p = p * r.keep - r.rate * __fdividef(m, sqrt_fast(v * r.inverse2) + r.eps);
}

// To one of the two bfloat16 neighbours: 16 random bits below the last one kept, and the rest cut off.
ROOFTILE_DEVICE float noisy(float x, unsigned word) {
  return fabsf(x) < __int_as_float(0x7f800000) ? __uint_as_float((__float_as_uint(x) + (word & 0xffffu)) & 0xffff0000u) : x;
}
// Element i of tensor t takes word i % 4 of this counter.
ROOFTILE_DEVICE unsigned long long counter_of(int t, long long i) { return ((unsigned long long)t << 38) + (unsigned long long)i / 4; }

// WIDTH neighbours as they lie in memory, 8 or 16 bytes.
template <typename T, int WIDTH> using Packed = typename Raw<int(sizeof(T)) * WIDTH>::type;

template <typename T, int WIDTH> ROOFTILE_DEVICE void opened(float (&rF)[WIDTH], const Packed<T, WIDTH>& r) {
  if constexpr (sizeof(T) * WIDTH == 16) {
    unpack<T>(rF, r);
  } else {
    const float2 a = Word<T>::open(r.x), b = Word<T>::open(r.y);
    rF[0] = a.x, rF[1] = a.y, rF[2] = b.x, rF[3] = b.y;
  }
}
template <typename T, int WIDTH> ROOFTILE_DEVICE void closed(Packed<T, WIDTH>& r, const float (&rF)[WIDTH]) {
  if constexpr (sizeof(T) * WIDTH == 16) {
    pack<T>(r, rF);
  } else {
    r = {Word<T>::close(rF[0], rF[1]), Word<T>::close(rF[2], rF[3])};
  }
}

// Global memory past L1; ONCE: the first to leave L2 as well.
template <bool ONCE, int WIDTH, typename T> ROOFTILE_DEVICE Packed<T, WIDTH> take(const T* gX) {
  const auto* g = reinterpret_cast<const Packed<T, WIDTH>*>(gX);
  return ONCE ? __ldcs(g) : __ldcg(g);
}
template <bool ONCE, typename T, int WIDTH> ROOFTILE_DEVICE void put(T* gX, const float (&rF)[WIDTH]) {
  auto* g = reinterpret_cast<Packed<T, WIDTH>*>(gX);
  Packed<T, WIDTH> r;
  closed<T>(r, rF);
  ONCE ? __stcs(g, r) : __stcg(g, r);
}

// The squares of gradients as they are read, before they are scaled: where they are asked for, a sum a block at the end, which root.cu adds up.
template <bool MEASURED> struct Squares {
  float sum = 0.0f, part = 0.0f;  // part: of a chunk by itself: a long sum is a short one of short ones
  ROOFTILE_DEVICE void add(float g) {
    if (MEASURED) part += g * g;
  }
  template <int WIDTH> ROOFTILE_DEVICE void add(const float (&rG)[WIDTH]) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) add(rG[k]);
  }
  ROOFTILE_DEVICE void close() { sum += part, part = 0.0f; }
  // By all threads of the block.
  ROOFTILE_DEVICE void leave(float* gPartial) {
    if constexpr (MEASURED) {
      const float all = block_reduce(sum, Sum());
      if (threadIdx.x == 0) gPartial[blockIdx.x] = all;
    }
  }
};

// One chunk's tensors. F is P, or float where a master is updated in P's place.
template <typename P, typename F, typename G, typename S> struct Tensors {
  P* gP;
  F* gF;
  const G* gG;
  S *gM, *gV;
  ROOFTILE_DEVICE Tensors(const long long* gTable, int count, int t, bool master) {
    gP = reinterpret_cast<P*>(__ldg(gTable + t));
    gG = reinterpret_cast<const G*>(__ldg(gTable + count + t));
    gM = reinterpret_cast<S*>(__ldg(gTable + 2 * count + t));
    gV = reinterpret_cast<S*>(__ldg(gTable + 3 * count + t));
    gF = reinterpret_cast<F*>(master ? __ldg(gTable + 4 * count + t) : __ldg(gTable + t));
  }

  // WIDTH neighbours that have come: their step, and its results on their way.
  template <bool MASTER, bool STOCHASTIC, bool ONCE, int WIDTH>
  ROOFTILE_DEVICE void whole(int t, long long i, float (&rP)[WIDTH], const float (&rG)[WIDTH], float (&rM)[WIDTH], float (&rV)[WIDTH],
                             const Rates& r, unsigned long long seed) const {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) step(rP[k], rG[k], rM[k], rV[k], r);
    put<ONCE>(gM + i, rM), put<ONCE>(gV + i, rV);
    if constexpr (MASTER) put<ONCE>(gF + i, rP);
    if constexpr (STOCHASTIC) {
#pragma unroll
      for (int k = 0; k < WIDTH; k += 4) {
        const Words w = philox(counter_of(t, i + k), seed);
        rP[k] = noisy(rP[k], w.a), rP[k + 1] = noisy(rP[k + 1], w.b), rP[k + 2] = noisy(rP[k + 2], w.c), rP[k + 3] = noisy(rP[k + 3], w.d);
      }
    }
    put<ONCE>(gP + i, rP);
  }

  // The same of packed ones, and of what is left of them before `end`, which has not come.
  template <bool MASTER, bool STOCHASTIC, bool ONCE, int WIDTH, bool MEASURED>
  ROOFTILE_DEVICE void packed(int t, long long i, long long end, const Packed<F, WIDTH>& rP, const Packed<G, WIDTH>& rG, const Packed<S, WIDTH>& rM,
                              const Packed<S, WIDTH>& rV, const Rates& r, unsigned long long seed, Squares<MEASURED>& squares) const {
    if (i + WIDTH <= end) {
      float rFP[WIDTH], rFG[WIDTH], rFM[WIDTH], rFV[WIDTH];
      opened<F>(rFP, rP), opened<G>(rFG, rG), opened<S>(rFM, rM), opened<S>(rFV, rV);
      squares.add(rFG);
      whole<MASTER, STOCHASTIC, ONCE>(t, i, rFP, rFG, rFM, rFV, r, seed);
    } else {
      for (; i < end; ++i) squares.add(float(gG[i])), one<MASTER, STOCHASTIC>(t, i, r, seed);
    }
  }

  // One element, from its loads to its stores.
  template <bool MASTER, bool STOCHASTIC> ROOFTILE_DEVICE void one(int t, long long i, const Rates& r, unsigned long long seed) const {
    float p = float(gF[i]), m = float(gM[i]), v = float(gV[i]);
    step(p, float(gG[i]), m, v, r);
    gM[i] = S(m), gV[i] = S(v);
    if (MASTER) gF[i] = F(p);
    if constexpr (STOCHASTIC) {
      const Words w = philox(counter_of(t, i), seed);
      p = noisy(p, i % 4 < 2 ? (i % 4 ? w.b : w.a) : i % 4 == 2 ? w.c : w.d);
    }
    gP[i] = P(p);
  }
};

}  // namespace rooftile
