// adds: backward 16 bytes an access: VECS vectors a thread and the next tile's on their way, a few tiles of a row, whose numbers are folded into two factors
// costs: rows of whole 16 bytes; a block waits for its long row's target before it asks for logits, so that padding is not read
// loses when: a row is a little longer than a multiple of LANES x VECS vectors: the last of its tiles has threads without work
#include "capped0.cuh"
#include "rooftile/cross_entropy.cuh"

using namespace rooftile;

// LANES threads take `walk` tiles of a row, one after the other: the block, or part of one where rows are short. gDx may be gX.
template <typename T, int VECS, int LANES, int THREADS, bool CAP>
__global__ void __launch_bounds__(THREADS, (CAP ? 768 : 1024) / THREADS)
    cross_entropy_backward(T* gDx, const float* gDloss, const T* gX, const long long* gTarget, const float* gCount, const float* gPeak,
                           const float* gLogsum, const float* gMiss, long long M, int V, long long stride_dx, long long stride_dloss,
                           long long stride_x, long long ignore, float smoothing, float z, float softcap, int walk) {
  constexpr int WIDTH = 16 / sizeof(T), NEXT = LANES * WIDTH, STEP = VECS * NEXT, ROWS = THREADS / LANES;
  static_assert(((VECS - 1) & VECS) == 0 && ((NEXT - 1) & NEXT) == 0, "a target is looked for by bits");
  const int parts = ceil_div(V, walk * STEP);
  const long long i_m = blockIdx.x / parts * (long long)ROWS + threadIdx.x / LANES;
  if (i_m >= M) return;
  int at = int(blockIdx.x % parts) * (walk * STEP);
  const int end = min(V, at + walk * STEP);
  at += threadIdx.x % LANES * WIDTH;
  const long long t = gTarget[i_m];
  const T* gRow = gX + i_m * stride_x;
  T* gTo = gDx + i_m * stride_dx;
  constexpr bool AT_ONCE = LANES < THREADS;  // a short row is asked for beside its target, which takes as long: of padding it is read for nothing
  const SoftCap cap(softcap);
  const NearCap near(cap);
  uint4 rX[VECS];
  const auto ask = [&](uint4 (&r)[VECS], int from) {
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (from + v * NEXT < end) r[v] = __ldca(reinterpret_cast<const uint4*>(gRow + from + v * NEXT));
  };
  if (AT_ONCE) ask(rX, at);
  if (t == ignore) {
    for (; at < end; at += NEXT) __stwb(reinterpret_cast<uint4*>(gTo + at), uint4{0, 0, 0, 0});
    return;
  }
  if (!AT_ONCE) ask(rX, at);
  const RowGradient gradient(gPeak[i_m], gLogsum[i_m], gMiss[i_m], V, smoothing, z, gDloss[i_m * stride_dloss] / *gCount);
#pragma unroll 1
  for (; at < end; at += STEP) {
    uint4 rNext[VECS];
    ask(rNext, at + STEP);
    const unsigned to_target = unsigned(t) - at;
    bool quick = false;
    if constexpr (CAP && sizeof(T) == 2) {
      typename Halves<T>::type most;
      quick = gradient.less == 0.0f && at + (VECS - 1) * NEXT < end && (to_target & ~((VECS - 1u) * NEXT)) >= WIDTH && near.holds<T>(rX, most);
      if (quick)
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
          give_near<T>(rX[v], gradient, near);
          __stwb(reinterpret_cast<uint4*>(gTo + at + v * NEXT), rX[v]);
        }
    }
    if (!quick)
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        const int i_v = at + v * NEXT;
        if (i_v >= end) break;
        gradient.template operator()<T, CAP>(rX[v], to_target - v * NEXT, cap);
        __stwb(reinterpret_cast<uint4*>(gTo + i_v), rX[v]);
      }
#pragma unroll
    for (int v = 0; v < VECS; ++v) rX[v] = rNext[v];
  }
}
