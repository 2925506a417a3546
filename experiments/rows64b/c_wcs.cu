// adds: the row waits in the shared memory of a cluster of blocks, a share each, so that however long it is nothing of it is read twice
// costs: blocks wait for each other's sums, told by an exchange of 8 bytes a warp; Hopper and later
// loses when: a row fits one block with another beside it, as v6's do up to 110 KB: those wait for nobody
#include "rooftile/async.cuh"
#include "rooftile/cluster.cuh"
#include "rooftile/cross_entropy.cuh"
// Soft caps of vectors of 16-bit logits of which none lies beyond the cap, nor beyond 32: they are looked at two at a time before they are capped, which leaves their
// order, their exponentials are measured from beyond all of them, log2 e is in the polynomial, as the base is, and that has as many terms as the farthest one wants.



namespace rooftile {

template <typename T> struct Halves {
  using type = __half2;
};
template <> struct Halves<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

struct NearCap {
  static constexpr float LOG2E = 1.4426950408889634f;
  float quarter, half, limit, inverse2;
  ROOFTILE_DEVICE explicit NearCap(const SoftCap& cap)
      : quarter(0.5f * cap.limit), half(cap.limit), limit(fminf(2.0f * cap.limit, 32.0f)), inverse2(cap.inverse * cap.inverse) {}
  // How far the farthest lies, and the larger ones. NaNs are passed over, and come through the polynomial; of nothing else it is NaN.
  template <typename T, int VECS> ROOFTILE_DEVICE float farthest(const uint4 (&rX)[VECS], typename Halves<T>::type& most) const {
    using Two = typename Halves<T>::type;
    Two least = most = reinterpret_cast<const Two&>(rX[0].x);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const unsigned words[4] = {rX[v].x, rX[v].y, rX[v].z, rX[v].w};
#pragma unroll
      for (const unsigned& word : words) most = __hmax2(most, reinterpret_cast<const Two&>(word)), least = __hmin2(least, reinterpret_cast<const Two&>(word));
    }
    const Two far = __hmax2(most, __hneg2(least));
    return fmaxf(float(far.x), float(far.y));
  }
};

// c tanh(x / c) log2 e is x times a polynomial of x^2: of N terms after the first it is right to 2e-7 of a cap within a quarter of it (2), half (3), all of it (6).
// The spacing of 16 bits is a thousand times that where x is largest.
template <int N> struct Bent {
  static constexpr bool KEPT = N <= 3;  // more of them would take more registers than a multiplication more for each element
  float scale, q[N];
  ROOFTILE_DEVICE explicit Bent(const NearCap& near) : scale(KEPT ? 1.0f : near.inverse2) {
    float unit = NearCap::LOG2E;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (KEPT) unit *= near.inverse2;
      q[n] = term(n) * unit;
    }
  }
  ROOFTILE_DEVICE float factor(float x) const {
    const float w = KEPT ? x * x : x * x * scale;
    float sum = q[N - 1];
#pragma unroll
    for (int n = N - 2; n >= 0; --n) sum = fmaf(w, sum, q[n]);
    return fmaf(w, sum, NearCap::LOG2E);
  }

private:
  static ROOFTILE_DEVICE float term(int n) {
    static_assert(N == 2 || N == 3 || N == 6, "terms within a quarter, half, all of a cap");
    if constexpr (N == 2) return n == 0 ? -0.3332291488f : 0.1284604029f;
    if constexpr (N == 3) return n == 0 ? -0.3332646075f : n == 1 ? 0.1318586139f : -0.04422926844f;
    return n == 0 ? -0.3333275342f : n == 1 ? 0.1332373893f : n == 2 ? -0.05339196822f : n == 3 ? 0.0201659023f : n == 4 ? -0.006095513175f : 0.001005906202f;
  }
};

// A running maximum and sum of exponentials.
template <typename T, bool NEAR> struct RunningSum {
  Online rest = online_start();
  ROOFTILE_DEVICE const Online& settled(const SoftCap&) const { return rest; }
};
// Of logits that lie near, and of others. It is measured from `rest.max`, which may be beyond all that came.
template <typename T> struct RunningSum<T, true> {
  using Two = typename Halves<T>::type;
  Online rest = online_start();
  float top = -__int_as_float(0x7f800000);  // of the others, capped
  unsigned near_top = Word<T>::LOWEST;      // of those near, two, as they are stored
  float reach = 0.0f;                       // how far the farthest lay that was looked at

  // Adds all of them, if they are wanted and lie near enough; several by a whole warp, as many terms as its farthest wants, or nothing if one lies too far or is
  // not to be added: it goes the other way then, and the rest beside it for nothing more. Vectors are NEXT elements apart, of a row that has `there` from the first
  // on, maybe none: those beyond it are the first again, and taken off again.
  template <int NEXT, int VECS> ROOFTILE_DEVICE bool add(const uint4 (&rX)[VECS], const NearCap& near, bool wanted, int there = VECS * NEXT) {
    Two most;
    const float far = near.farthest<T>(rX, most);
    reach = fmaxf(reach, far);
    const bool none = there <= 0;
    bool all = none || (wanted && far <= near.limit), half = none || far <= near.half, close = none || far <= near.quarter;
    if constexpr (VECS > 1) all = __all_sync(ALL_LANES, all), half = __all_sync(ALL_LANES, half), close = __all_sync(ALL_LANES, close);
    if (!all || none) return all;
    most = __hmax2(most, reinterpret_cast<const Two&>(near_top)), near_top = reinterpret_cast<const unsigned&>(most);
    if (rest.max < near.limit) rest = {near.limit, rest.sum * exp_fast(rest.max - near.limit)};
    rest.sum += close ? total<NEXT, 2>(rX, near, there) : half ? total<NEXT, 3>(rX, near, there) : total<NEXT, 6>(rX, near, there);
    return true;
  }
  // Takes off one that was added and should not have been.
  ROOFTILE_DEVICE void take_off(float x, const SoftCap& cap) { rest.sum -= exp_fast(capped(x, cap.c) - base_of(rest.max)); }
  // Measured from the largest that came.
  ROOFTILE_DEVICE Online settled(const SoftCap& cap) const {
    const float2 two = Word<T>::open(near_top);
    const float near = fmaxf(two.x, two.y), peak = near >= -cap.c ? fmaxf(top, capped(near, cap.c)) : top;
    return rest.max == peak ? rest : Online{peak, rest.sum * exp_fast(rest.max - peak)};
  }

private:
  template <int NEXT, int N, int VECS> ROOFTILE_DEVICE float total(const uint4 (&rX)[VECS], const NearCap& near, int there) const {
    const Bent<N> bent(near);
    const float b = rest.max * NearCap::LOG2E;
    float all, first;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      float rF[8], sum;
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float e = exp2_fast(fmaf(rF[k], bent.factor(rF[k]), -b));
        sum = k == 0 ? e : sum + e;
      }
      all = v == 0 ? first = sum : all + sum;  // a long row's sum is a short one of short ones
    }
    if ((VECS - 1) * NEXT >= there) all -= float(VECS - ceil_div(there, NEXT)) * first;
    return all;
  }
};

// A row's gradient without smoothing in place of a vector of its logits that lie near enough for N terms, not the target. For 16 bits exp needs no lse in two parts.
template <typename T, int N> ROOFTILE_DEVICE void give_near(uint4& r, const RowGradient& row, const NearCap& near) {
  constexpr float LN2 = 0.6931471805599453f;
  const Bent<N> bent(near);
  const float b = (row.peak + row.logsum) * NearCap::LOG2E, bend = near.inverse2 * (LN2 * LN2) * row.factor;  // of the slope, 1 - tanh^2
  float rF[16 / sizeof(T)];
  unpack<T>(rF, r);
#pragma unroll
  for (float& x : rF) {
    const float y = x * bent.factor(x);
    x = exp2_fast(y - b) * fmaf(-y * y, bend, row.factor);
  }
  pack<T>(r, rF);
}

}  // namespace rooftile
// A row's loss and its gradient in one pass: what becomes of its vectors of 16 bytes, on their way in and on their way out.




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
    __stcs(gVec + i, x);
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


using namespace rooftile;

// A cluster a row, `share` vectors of 16 bytes a block.
template <typename T, bool SMOOTH, bool CAP, int CLUSTER, int THREADS>
__global__ void ROOFTILE_CLUSTER(CLUSTER) __launch_bounds__(THREADS, CAP ? 1024 / THREADS : THREADS > 512 ? 1 : 3)
    cross_entropy_ahead(float* gLoss, T* gX, const long long* gTarget, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap,
                        int share) {
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Exchange<Online, CLUSTER, THREADS, 2> sExchange;
  const long long i_m = blockIdx.x / CLUSTER, t = gTarget[i_m];
  T* gRow = gX + i_m * stride_x;
  uint4* gVec = reinterpret_cast<uint4*>(gRow);
  const int rank = cluster_rank(), first = rank * share + int(threadIdx.x), end = min(V * int(sizeof(T)) / 16, (rank + 1) * share);
  uint4* sMine = sX - rank * share;  // by a vector's place in the row
  if (!is_class(t, ignore, V)) {
    const float value = no_loss(t, ignore).loss;
    give_nothing<T>(gVec, value, first, end, THREADS);
    if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = value;
    return;
  }
  exchange_open(sExchange);
  for (int i = first; i < end; i += THREADS) copy_async<16>(sMine + i, gVec + i);  // all of it in flight
  copy_commit();
  Taken<T, SMOOTH, CAP> take(gRow, t, softcap);  // of another's share, maybe
  copy_wait<0>();
  take.hide(sMine, first, end, THREADS);
  for (int i = take.fours(sMine, first, end, THREADS); i < end; i += THREADS) take(sMine[i], i);
  take.show(sMine);
  cluster_wait();  // all blocks are there: from here on they may be told of sums
  __syncthreads();
  cluster_arrive();  // this one has read what is not its own
  exchange_send(sExchange, 0, group_reduce<WARP>(take.settled(), Combine()));
  if (SMOOTH) exchange_send(sExchange, 1, Online{warp_reduce(take.spread, Sum()), 0.0f});  // in a maximum's place
  const RowLoss r = row_loss(exchange_reduce(sExchange, 0, Combine()), take.known);
  const Given<T, CAP> give(r, V, smoothing, z, take);
  cluster_wait();
  for (int i = first; i < end; i += THREADS) give(gVec, sMine[i], i, take);
  const auto add = [](Online a, Online b) { return Online{a.max + b.max, 0.0f}; };
  const float spread = SMOOTH ? exchange_reduce(sExchange, 1, add).max : 0.0f;  // by all blocks: none may leave before it was told
  if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = whole_loss(r, spread, V, smoothing, z);
}
