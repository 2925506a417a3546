// adds: one read, 16 bytes an access: a running maximum and sum, rescaled once for VECS vectors, while the next STAGES of them are on their way, beyond the row's end too
// costs: rows of whole 16 bytes; 16 bytes of shared memory a vector in flight; every element passes through it on its way to registers
// loses when: a row is shorter than THREADS x VECS vectors, which leaves threads idle, or there are fewer rows than blocks that fit
#include "rooftile/async.cuh"
#include "stage0.cuh"

using namespace rooftile;

template <typename T, int VECS, int STAGES, int THREADS, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget, long long M,
                  int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  constexpr int NEXT = THREADS * (16 / sizeof(T)), STEP = VECS * NEXT;  // elements to a thread's next vector, to its next stage
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Online sPartial[2][WARP];
  __shared__ float sSpread[2][WARP];
  Summed<T, VECS, NEXT, SMOOTH, CAP> sum(softcap);
  const int i_l = threadIdx.x * (16 / sizeof(T));
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
    const float known = gX[i_m * stride_x + t];
    sum.begin(known);
    for (int at = 0; at < V; at += STEP) {
      uint4 rX[VECS];
      copy_wait<STAGES - 1>();
      sum.read(rX, sMine + stage * (VECS * THREADS), at + i_l, V);
      refill();
      sum(rX, at + i_l, t, V);
    }
    const Online all = row_reduce<THREADS>(sum.settled(), Combine(), sPartial, parity);
    const float spread = SMOOTH ? row_reduce<THREADS>(sum.spread, Sum(), sSpread, parity) : 0.0f;
    parity ^= 1;
    if (threadIdx.x == 0) save(gLoss, gPeak, gLogsum, gMiss, i_m, sum.loss(all, spread, known, V, smoothing, z));
  }
  copy_wait<0>();
}
