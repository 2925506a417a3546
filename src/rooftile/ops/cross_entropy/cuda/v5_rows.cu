// adds: part of a warp a short row, VECS vectors a lane in registers: one read, no barrier, no shared memory
// costs: rows of whole 16 bytes, of at most 32 x 4 vectors; a lane's vectors wait for the row's target, so that padding is not read
// loses when: rows are longer, or so few that a warp to a row leaves multiprocessors idle
#include "rooftile/cross_entropy.cuh"

using namespace rooftile;

template <typename T, int VECS, int LANES, int THREADS, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(THREADS)
    cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget, long long M,
                  int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  static_assert(LANES <= WARP, "a row belongs to a part of a warp");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = LANES * WIDTH, ROWS = THREADS / LANES;
  const float least = -__int_as_float(0x7f800000);
  const long long i_m = blockIdx.x * (long long)ROWS + threadIdx.x / LANES;
  const int i_l = threadIdx.x % LANES * WIDTH;
  if (none && blockIdx.x == 0 && threadIdx.x == 0) *gCount = 1.0f;
  const long long t = i_m < M ? gTarget[i_m] : ignore;
  const bool read = is_class(t, ignore, V);  // who does not read comes along to the reductions
  const T* gRow = gX + i_m * stride_x;
  uint4 rX[VECS];
  float known = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (read && i_l + v * NEXT < V) rX[v] = __ldca(reinterpret_cast<const uint4*>(gRow + i_l + v * NEXT));
  if (read) known = float(gRow[t]);
  if (CAP) known = capped(known, softcap);
  const SoftCap cap(softcap);
  float rF[VECS][WIDTH], spread = 0.0f;
  Online rS = online_start();
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = i_l + v * NEXT;
    const unsigned hit = unsigned(t) - i_v;
    const bool there = read && i_v < V;
    if (there) {
      unpack<T>(rF[v], rX[v]);
      if (CAP) cap(rF[v]);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
      if (SMOOTH && there) spread += rF[v][k] - (finite(known) ? known : 0.0f);
      rF[v][k] = there && unsigned(k) != hit ? rF[v][k] : least;
      rS.max = fmaxf(rS.max, rF[v][k]);
    }
  }
  const float base = base_of(rS.max);
#pragma unroll
  for (int v = 0; v < VECS; ++v)
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(rF[v][k] - base);
  rS = group_reduce<LANES>(rS, Combine());
  if (SMOOTH) spread = group_reduce<LANES>(spread, Sum());
  if (i_m >= M || threadIdx.x % LANES > 0) return;
  RowLoss r = row_loss(rS, known);
  if (SMOOTH) r.loss -= smoothing * (spread / V);
  if (z != 0.0f) r.loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
  save(gLoss, gPeak, gLogsum, gMiss, i_m, read ? r : no_loss(t, ignore));
}
