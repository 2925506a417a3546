// adds: a block a row: neighbouring threads read neighbouring logits, and up to 1024 of them share a row
// costs: two reductions with their barriers a row, and still two walks, the second through L1 or L2 as far as they keep the row
// loses when: V is below about 1024: a warp would do, and most of the block's time is barriers
#include "rooftile/cross_entropy.cuh"

using namespace rooftile;

template <typename T, bool SMOOTH, bool CAP>
__global__ void cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget,
                              long long M, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  const long long i_m = blockIdx.x;
  if (none && i_m == 0 && threadIdx.x == 0) *gCount = 1.0f;
  const long long t = gTarget[i_m];
  if (!is_class(t, ignore, V)) {
    if (threadIdx.x == 0) save(gLoss, gPeak, gLogsum, gMiss, i_m, no_loss(t, ignore));
    return;
  }
  const T* gRow = gX + i_m * stride_x;
  const auto logit = [&](int i_v) { return CAP ? capped(float(gRow[i_v]), softcap) : float(gRow[i_v]); };
  const float known = logit(int(t)), near = finite(known) ? known : 0.0f;
  Online rS = online_start();
  float spread = 0.0f;
  for (int i_v = threadIdx.x; i_v < V; i_v += blockDim.x)
    if (i_v != t) rS.max = fmaxf(rS.max, logit(i_v));
  rS.max = block_reduce(rS.max, Larger());
  const float base = base_of(rS.max);
  for (int i_v = threadIdx.x; i_v < V; i_v += blockDim.x) {
    const float x = logit(i_v);
    if (i_v != t) rS.sum += exp_fast(x - base);
    if (SMOOTH) spread += x - near;
  }
  rS.sum = block_reduce(rS.sum, Sum());
  if (SMOOTH) spread = block_reduce(spread, Sum());
  if (threadIdx.x > 0) return;
  RowLoss r = row_loss(rS, known);
  if (SMOOTH) r.loss -= smoothing * (spread / V);
  if (z != 0.0f) r.loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
  save(gLoss, gPeak, gLogsum, gMiss, i_m, r);
}
