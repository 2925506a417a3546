// adds: one thread asks for whole stages of a row, by the copy engine: the others' instructions are those of the sums
// costs: a stage is waited for by all and given back by all, on barriers; Hopper and later
// loses when: a row is shorter than a stage, or there are fewer rows than blocks that fit
#include "stage_t.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/policy.cuh"

using namespace rooftile;

template <typename T, int VECS, int STAGES, int THREADS, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(THREADS, (VECS > 4 ? 768 : 1024) / THREADS)
    cross_entropy(float* gLoss, float* gCount, float* gPeak, float* gLogsum, float* gMiss, const T* gX, const long long* gTarget, long long M,
                  int V, long long stride_x, long long ignore, float smoothing, float z, float softcap, bool none) {
  constexpr int NEXT = THREADS * (16 / sizeof(T)), STEP = VECS * NEXT;  // elements to a thread's next vector, to its next stage
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Pipeline<STAGES> sRing;
  __shared__ Online sPartial[2][WARP];
  __shared__ float sSpread[2][WARP];
  Summed<T, VECS, NEXT, SMOOTH, CAP> sum(softcap);
  const int i_l = threadIdx.x * (16 / sizeof(T));
  const uint4* sMine = sX + threadIdx.x;
  const bool asks = threadIdx.x == 0;
  if (none && blockIdx.x == 0 && asks) *gCount = 1.0f;
  for (int i = threadIdx.x; i < STAGES * VECS * THREADS; i += THREADS) sX[i] = uint4{0, 0, 0, 0};  // what is read of it beyond a row's end is not used
  fence_async();
  if (asks) pipeline_init(sRing, 1, THREADS / WARP);
  __syncthreads();
  // Copies run ahead of the sums, into the next rows. Which of them are read is known a row before they are asked for.
  const auto target = [&](long long i) { return i < M ? __ldg(gTarget + i) : ignore; };
  long long i_next = blockIdx.x, after = target(i_next + gridDim.x);
  int from = 0;
  Stage<STAGES> filled, used;
  const auto turn = [&]() {
    bool read;
    do {
      i_next += gridDim.x, from = 0;
      read = is_class(after, ignore, V);
      after = target(i_next + gridDim.x);
    } while (i_next < M && !read);
  };
  const auto fetch = [&]() {
    if (i_next >= M) return;
    const int bytes = min(STEP, V - from) * int(sizeof(T));
    producer_acquire(sRing, filled, bytes);
    bulk_load(sX + filled.index * (VECS * THREADS), gX + i_next * stride_x + from, bytes, &sRing.full[filled.index]);
    ++filled, from += STEP;
    if (from >= V) turn();
  };
  if (asks) {
    if (!is_class(target(i_next), ignore, V)) turn();
#pragma unroll 1
    for (int s = 1; s < STAGES; ++s) fetch();
  }
  int parity = 0;
  for (long long i_m = blockIdx.x; i_m < M; i_m += gridDim.x) {
    const long long t = target(i_m);
    if (!is_class(t, ignore, V)) {
      if (asks) save(gLoss, gPeak, gLogsum, gMiss, i_m, no_loss(t, ignore));
      continue;
    }
    const float known = gX[i_m * stride_x + t];
    sum.begin(known);
#pragma unroll 1
    for (int at = i_l; at - i_l < V; at += STEP, ++used) {
      if (asks) fetch();  // into the stage that all have read, or are about to have
      uint4 rX[VECS];
      consumer_wait(sRing, used);
      sum.read(rX, sMine + used.index * (VECS * THREADS), at, V);
      consumer_release(sRing, used);
      sum(rX, at, t, V);
    }
    const Online all = row_reduce<THREADS>(sum.settled(), Combine(), sPartial, parity);
    const float spread = SMOOTH ? row_reduce<THREADS>(sum.spread, Sum(), sSpread, parity) : 0.0f;
    parity ^= 1;
    if (asks) save(gLoss, gPeak, gLogsum, gMiss, i_m, sum.loss(all, spread, known, V, smoothing, z));
  }
}
