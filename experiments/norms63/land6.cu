// adds: a block takes row after row, and the next rows' copies are in flight while this one is reduced and written
// costs: 16 bytes of shared memory a vector and a stage; backward 20 registers a vector more, for the parameters' gradients and the weight
// loses when: there are fewer rows than blocks, or the rows are no multiple of the blocks and the last round is ragged
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"

// What is asked for long before it is used. A load of memory that nobody writes (`const __restrict__`, __ldg) may pass barriers and stores, and where registers
// are few the assembler has it stand as late as it can: a row's statistics, asked for a row ahead, were asked for at that row's end, and waited for.

namespace rooftile {

// Before the next barrier and the next store; 0 where it is not there.
ROOFTILE_DEVICE float ask_ahead(const float* gX, bool there) {
#ifdef ROOFTILE_SIMULATOR
  return there ? *gX : 0.0f;
#else
  float x;
  asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %2, 0;\nmov.f32 %0, 0f00000000;\n@there ld.global.f32 %0, [%1];\n}"
               : "=f"(x)
               : "l"(gX), "r"(unsigned(there))
               : "memory");
  return x;
#endif
}

}  // namespace rooftile

using namespace rooftile;

// 64 registers a thread, or 80 where more than 4 vectors are held and there is room: of 512 threads and more two blocks are wanted
template <int VECS, int THREADS> constexpr int BLOCKS = (VECS > 4 && THREADS < 512 ? 768 : 1024) / THREADS;

// The backward holds 16 sums a vector of 16-bit elements: 128 registers. Of 3 vectors the weights have room beside them, and of 4 one.
template <int THREADS> constexpr int BLOCKS_BACKWARD = THREADS < 512 ? 512 / THREADS : 1;
template <int VECS> constexpr int HELD_BACKWARD = VECS < 4 ? VECS : 1;

// LANES threads a row, each VECS vectors of it; a block of THREADS holds THREADS / LANES rows, and STAGES times as many wait or arrive.
template <typename T, typename W, typename B, bool WEIGHT, bool BIAS, int LANES, int VECS, int THREADS, int STAGES>
__global__ void __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    layernorm(T* __restrict__ gOut, float* __restrict__ gMean, float* __restrict__ gRstd, const T* __restrict__ gX, const W* __restrict__ gW,
              const B* __restrict__ gB, long long M, int N, long long stride_x, float eps) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), ROWS = THREADS / LANES, NEXT = LANES * WIDTH;  // elements from a vector of a thread to its next
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ float sPartial[2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const unsigned zero = hidden_zero(N);
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS;
  long long i_m = first + threadIdx.x / LANES, i_next = i_m;  // the row worked on, the row to be asked for
  const Policy policy = evict_last(M * N * (long long)sizeof(T));
  const auto fetch = [&](int stage, int v) {
    const int left = i_next < M ? N - i_l : 0;
    copy_async(sX + (stage * VECS + v) * THREADS + threadIdx.x, gX + i_next * stride_x + i_l + v * NEXT, v * NEXT < left, policy);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  int stage = 0;
  for (long long i = first; i < M; i += step, i_m += step, i_next += step) {
    uint4 rX[VECS];
    float rF[WIDTH], rW[WIDTH], rB[WIDTH], sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      rX[v] = sX[(stage * VECS + v) * THREADS + threadIdx.x];  // zeros beyond the row
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rF[k];
      stay_packed(rX[v], zero);
      fetch(stage, v);
    }
    const int left = i_m < M ? N - i_l : 0;
    const float mean = row_reduce<LANES>(sum, Sum(), sPartial, 0) / N;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) square += (rF[k] - mean) * (rF[k] - mean);
      stay_packed(rX[v], zero);
    }
    const float rstd = rsqrtf(row_reduce<LANES>(square, Sum(), sPartial, 1) / N + eps);
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (v * NEXT >= left) break;
      unpack<T>(rF, rX[v]);
      if (WEIGHT) parameters(rW, gW + i_l + v * NEXT);
      if (BIAS) parameters(rB, gB + i_l + v * NEXT);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = (rF[k] - mean) * (WEIGHT ? rstd * rW[k] : rstd) + (BIAS ? rB[k] : 0.0f);
      pack<T>(rX[v], rF);
      __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rX[v]);
    }
    if (gRstd && i_l == 0 && i_m < M) gMean[i_m] = mean, gRstd[i_m] = rstd;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}

// n = (x - mean) rstd, g = w dout: dx = rstd (g - mean(g) - n mean(g n)), and of dout n and dout the sums over the block's rows to
// gPartial [2, blocks, N]. A thread has the same columns of every row, so its share of both stays in registers, and of HELD vectors the
// weight; the rows are read from their slots twice. A row's statistics are asked for while the row before it is worked on. FULL: a row has just as many
// columns as its threads.
template <typename T, typename W, bool WEIGHT, bool BIAS, int LANES, int VECS, int THREADS, int STAGES, bool FULL>
__global__ void __launch_bounds__(THREADS, BLOCKS_BACKWARD<THREADS>)
    layernorm_backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const T* __restrict__ gX,
                     const W* __restrict__ gW, const float* __restrict__ gMean, const float* __restrict__ gRstd, long long M, int N,
                     long long stride_dout, long long stride_x) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), ROWS = THREADS / LANES, NEXT = LANES * WIDTH, HELD = HELD_BACKWARD<VECS>;
  constexpr bool STRAIGHT = FULL && VECS < (LANES > WARP ? 3 : 4);  // without a branch a vector they are worked on side by side, which takes registers
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Pair sPartial[2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS;
  long long i_m = first + threadIdx.x / LANES, i_next = i_m;
  const auto slot = [&](int stage, int v) { return sX + (stage * VECS + v) * 2 * THREADS + threadIdx.x; };
  const Policy policy = evict_last(2 * M * N * (long long)sizeof(T));
  const auto inside = [&](int v, bool there) { return there && (STRAIGHT || v * NEXT < N - i_l); };
  const auto fetch = [&](int stage, int v) {
    const bool there = inside(v, i_next < M);
    copy_async(slot(stage, v), gDout + i_next * stride_dout + i_l + v * NEXT, there, policy);
    copy_async(slot(stage, v) + THREADS, gX + i_next * stride_x + i_l + v * NEXT, there, policy);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  float rDw[VECS][WIDTH] = {}, rDb[VECS][WIDTH] = {}, rG[WIDTH], rX[WIDTH], rW[WIDTH];
  float rstd_next = i_m < M ? gRstd[i_m] : 0.0f;
  float mean_next = i_m < M ? gMean[i_m] : 0.0f;
  Parameters<W, WIDTH> rWeight[HELD];
#pragma unroll
  for (int v = 0; v < HELD; ++v)
    if (WEIGHT && inside(v, true)) rWeight[v].ask(gW + i_l + v * NEXT);
  const auto weight = [&](int v) {
    if (v < HELD)
      rWeight[v % HELD].open(rW);
    else
      parameters(rW, gW + i_l + v * NEXT);
  };
  int stage = 0, parity = 0;
  let_next_stand_by();  // who adds up the partial sums
  for (long long i = first; i < M; i += step, i_m += step, i_next += step, parity ^= 1) {
    const bool there = ROWS == 1 || i_m < M;
    const float rstd = rstd_next, mean = mean_next;
    rstd_next = ask_ahead(gRstd + i_m + step, i_m + step < M), mean_next = ask_ahead(gMean + i_m + step, i_m + step < M);
    Pair sum = {0.0f, 0.0f};  // of g, of g (x - mean)
    copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (!inside(v, there)) break;
      unpack<T>(rG, *slot(stage, v)), unpack<T>(rX, slot(stage, v)[THREADS]);
      if (WEIGHT) weight(v);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const float g = WEIGHT ? rG[k] * rW[k] : rG[k];
        sum.a += g, sum.b += g * (rX[k] - mean);
      }
    }
    sum = row_reduce<LANES>(sum, SumPair(), sPartial, parity);
    const float level = sum.a / N, along = sum.b * rstd / N;
    T* gTo = gDx + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (inside(v, there)) {
        unpack<T>(rG, *slot(stage, v)), unpack<T>(rX, slot(stage, v)[THREADS]);
        if (WEIGHT) weight(v);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const float n = (rX[k] - mean) * rstd;
          if (WEIGHT) rDw[v][k] += rG[k] * n;
          if (BIAS) rDb[v][k] += rG[k];
          rX[k] = rstd * ((WEIGHT ? rG[k] * rW[k] : rG[k]) - level - n * along);
        }
        uint4 rDx;
        pack<T>(rDx, rX);
        __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rDx);
      }
      fetch(stage, v);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
  const auto write = [&](float* gTo, const float(&rD)[VECS][WIDTH]) {
    if (ROWS == 1) {
#pragma unroll
      for (int v = 0; v < VECS; ++v)
        if (v * NEXT < N - i_l)
#pragma unroll
          for (int k = 0; k < WIDTH; k += 4)
            *reinterpret_cast<float4*>(gTo + i_l + v * NEXT + k) = {rD[v][k], rD[v][k + 1], rD[v][k + 2], rD[v][k + 3]};
      return;
    }
    float* sD = reinterpret_cast<float*>(sX);  // the slots are free: a row of sums for each row of threads, LANES * VECS * WIDTH long
    __syncthreads();
#pragma unroll
    for (int v = 0; v < VECS; ++v)
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sD[(threadIdx.x / LANES * VECS + v) * NEXT + i_l + k] = rD[v][k];
    __syncthreads();
    for (int i_n = threadIdx.x; i_n < N; i_n += THREADS) {
      float sum = 0.0f;
      for (int r = 0; r < ROWS; ++r) sum += sD[r * VECS * NEXT + i_n];
      gTo[i_n] = sum;
    }
  };
  if (WEIGHT) write(gPartial + blockIdx.x * (long long)N, rDw);
  if (BIAS) write(gPartial + (gridDim.x + blockIdx.x) * (long long)N, rDb);
}
