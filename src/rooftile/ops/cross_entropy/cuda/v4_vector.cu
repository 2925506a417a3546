// adds: backward 16 bytes an access: VECS vectors a thread, all asked for before the first is used, and a row's numbers folded into two factors
// costs: rows of whole 16 bytes; a block waits for its long row's target before it asks for logits, so that padding is not read
// loses when: a row is a little longer than a multiple of LANES x VECS vectors: the last of its tiles has threads without work
#include "rooftile/capped.cuh"
#include "rooftile/cross_entropy.cuh"

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
