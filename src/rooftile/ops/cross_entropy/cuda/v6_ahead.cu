// adds: the loss and the gradient in one pass: the row waits in shared memory while it is summed up, and leaves it as its gradient; what finds no room is read again, from L2
// costs: dloss must be known ahead, here 1; 110 KB of shared memory a block, of which two share a multiprocessor, so that one writes while the other's row arrives
// loses when: rows are short: a block's copies, sums and stores follow each other, and two blocks do not cover the gaps
#include "rooftile/async.cuh"
#include "rooftile/cross_entropy.cuh"

using namespace rooftile;

// A block a row. `parked`: how many of a row's vectors of 16 bytes shared memory holds.
template <typename T, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(1024)
    cross_entropy_ahead(float* gLoss, T* gX, const long long* gTarget, int V, long long stride_x, long long ignore, float smoothing, float z, float softcap,
                        int parked) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Online sPartial[WARP];
  __shared__ float sSpread[WARP];
  const long long i_m = blockIdx.x, t = gTarget[i_m];
  T* gRow = gX + i_m * stride_x;
  uint4* gVec = reinterpret_cast<uint4*>(gRow);
  const int vectors = V / WIDTH, near = min(parked, vectors), each = blockDim.x;
  if (!is_class(t, ignore, V)) {
    const float value = no_loss(t, ignore).loss;
    float rF[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = value;
    uint4 r;
    pack<T>(r, rF);
    for (int i = threadIdx.x; i < vectors; i += each) gVec[i] = r;
    if (threadIdx.x == 0) gLoss[i_m] = value;
    return;
  }
  for (int i = threadIdx.x; i < near; i += each) copy_async<16>(sX + i, gVec + i);  // all of it in flight
  copy_commit();
  const SoftCap cap(softcap);
  const float least = -__int_as_float(0x7f800000), known = CAP ? capped(float(gRow[t]), softcap) : float(gRow[t]), level = finite(known) ? known : 0.0f;
  float spread = 0.0f;
  Online rS = online_start();
  const auto take = [&](const uint4& r, int i) {
    float rF[WIDTH], max = rS.max, sum = 0.0f;
    unpack<T>(rF, r);
    if (CAP) cap(rF);
    if (SMOOTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) spread += rF[k] - level;
    const unsigned hit = unsigned(t) - i * WIDTH;
    if (hit < WIDTH)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = unsigned(k) == hit ? least : rF[k];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, rF[k]);
    const float base = base_of(max);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += exp_fast(rF[k] - base);
    rS = {max, rS.sum * exp_fast(rS.max - base) + sum};
  };
#pragma unroll 4
  for (int i = near + threadIdx.x; i < vectors; i += each) take(gVec[i], i);
  copy_wait<0>();
  for (int i = threadIdx.x; i < near; i += each) take(sX[i], i);
  rS = group_reduce<WARP>(rS, Combine());
  if (SMOOTH) spread = warp_reduce(spread, Sum());
  if (lane() == 0) sPartial[warp()] = rS, sSpread[warp()] = spread;
  __syncthreads();  // and from here on the row may be written: all have read what they wanted of it
  rS = group_reduce<WARP>(lane() < warps() ? sPartial[lane()] : online_start(), Combine());
  const RowLoss r = row_loss(rS, known);
  const RowGradient gradient(r.peak, r.logsum, r.miss, V, smoothing, z, 1.0f);
  const auto give = [&](uint4 rX, int i) {
    gradient.template operator()<T, CAP>(rX, unsigned(t) - i * WIDTH, cap);
    __stwb(gVec + i, rX);
  };
  for (int i = threadIdx.x; i < near; i += each) give(sX[i], i);
#pragma unroll 4
  for (int i = near + threadIdx.x; i < vectors; i += each) give(gVec[i], i);
  if (warp() > 0) return;
  float loss = r.loss;
  if (SMOOTH) loss -= smoothing * (warp_reduce(lane() < warps() ? sSpread[lane()] : 0.0f, Sum()) / V);
  if (z != 0.0f) loss += z * (r.peak + r.logsum) * (r.peak + r.logsum);
  if (lane() == 0) gLoss[i_m] = loss;
}
