// adds: nothing, this is where the ladder begins: a thread a row, which walks over it twice, for the maximum and for the sum; backward a thread an element
// costs: neighbouring threads are a row apart, so a warp's request touches 32 sectors of 32 bytes and uses 2 or 4 bytes of each
// loses when: always; least where V is a few classes, and most where M is too few threads to fill the device (270336 on 132 multiprocessors)
#include "rooftile/cross_entropy.cuh"

using namespace rooftile;

template <typename T, bool SMOOTH, bool CAP>
__global__ void cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget,
                              long long M, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  const long long i_m = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (none && i_m == 0) *gCount = 1.0f;
  if (i_m >= M) return;
  const long long t = gTarget[i_m];
  if (!is_class(t, ignore, V)) {
    save(gLoss, gPeak, gLogsum, gMiss, i_m, no_loss(t, ignore));
    return;
  }
  const T* gRow = gX + i_m * stride_x;
  const auto logit = [&](int i_v) { return CAP ? capped(float(gRow[i_v]), softcap) : float(gRow[i_v]); };
  const float known = logit(int(t)), near = finite(known) ? known : 0.0f;
  Online rS = online_start();
  float spread = 0.0f;
  for (int i_v = 0; i_v < V; ++i_v)
    if (i_v != t) rS.max = fmaxf(rS.max, logit(i_v));
  const float base = base_of(rS.max);
  for (int first = 0; first < V; first += 128) {  // sums of sums: one of 9000 terms, one after another, has lost 3 bits of its 24
    float sum = 0.0f, apart = 0.0f;
    for (int i_v = first; i_v < min(first + 128, V); ++i_v) {
      const float x = logit(i_v);
      if (i_v != t) sum += exp_fast(x - base);
      if (SMOOTH) apart += x - near;
    }
    rS.sum += sum, spread += apart;
  }
  RowLoss r = row_loss(rS, known);
  if (SMOOTH) r.loss -= smoothing * (spread / V);
  if (z != 0.0f) r.loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);  // 0 of an infinite one would be NaN
  save(gLoss, gPeak, gLogsum, gMiss, i_m, r);
}

// dx_j = p_j and of the target -(1 - p), less the smoothing's share; with the z-loss's 2 z lse p_j, and behind a cap its slope
template <typename T, bool CAP>
__global__ void cross_entropy_backward(T* gDx, const float* gDloss, const T* gX, const long long* gTarget, const float* gCount,
                                       const float* gPeak, const float* gLogsum, const float* gMiss, long long M, int V, long long stride_dx,
                                       long long stride_dloss, long long stride_x, long long ignore, float smoothing, float z, float softcap) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x, i_m = i / V;
  const int i_v = i % V;
  if (i_m >= M) return;
  const long long t = gTarget[i_m];
  float dx = 0.0f;
  if (t != ignore) {
    float x = float(gX[i_m * stride_x + i_v]), slope = 1.0f;
    if (CAP) {
      const float e = exp_fast(-2.0f * fabsf(x / softcap));
      slope = 4.0f * e / ((1.0f + e) * (1.0f + e));  // 1 - tanh^2 would cancel
      x = capped(x, softcap);
    }
    const float peak = gPeak[i_m], logsum = gLogsum[i_m], miss = gMiss[i_m], p = exp_fast((x - peak) - logsum);
    dx = (i_v == t ? smoothing - miss : p) - smoothing / V;
    if (z != 0.0f) dx += 2.0f * z * (peak + logsum) * (i_v == t ? 1.0f - miss : p);
    dx *= slope * (gDloss[i_m * stride_dloss] / *gCount);
  }
  gDx[i_m * stride_dx + i_v] = T(dx);
}
