// adds: a block takes row after row, and the next rows' copies are in flight while this one, packed in registers, is reduced and written
// costs: 16 bytes of shared memory and 4 registers a vector; VECS up to 8 a thread, so rows to 65536 columns of 16 bits
// loses when: there are fewer rows than blocks, or the rows are no multiple of the blocks and the last round is ragged
#include "rooftile/async.cuh"
#include "rooftile/softmax.cuh"

using namespace rooftile;

// 64 registers a thread, or 80 where more than 4 vectors are held and there is room: of 512 threads and more two blocks are wanted
template <int VECS, int THREADS> constexpr int BLOCKS = (VECS > 4 && THREADS < 512 ? 768 : 1024) / THREADS;

// LANES threads a row, each VECS vectors of it; a block of THREADS holds THREADS / LANES rows, and STAGES times as many wait or arrive.
template <typename T, int LANES, int VECS, int THREADS, int STAGES>
__global__ void __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), ROWS = THREADS / LANES, NEXT = LANES * WIDTH;  // elements from a vector of a thread to its next
  extern __shared__ __align__(128) uint4 sX[];  // a slot is read by the thread that has it filled: no barrier stands between
  __shared__ Online sPartial[2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const unsigned zero = hidden_zero(N);
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS;
  long long i_m = first + threadIdx.x / LANES, i_next = i_m;  // the row worked on, the row to be asked for
  const auto fetch = [&](int stage, int v) {
    const int left = i_next < M ? N - i_l : 0;
    copy_async<16>(sX + (stage * VECS + v) * THREADS + threadIdx.x, gX + i_next * stride_x + i_l + v * NEXT, v * NEXT < left);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  int stage = 0, parity = 0;
  for (long long i = first; i < M; i += step, i_m += step, i_next += step, parity ^= 1) {
    const int left = i_m < M ? N - i_l : 0;
    uint4 rX[VECS];
    float rF[WIDTH];
    Online rS = online_start();
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();  // the oldest has come; its slot goes to the row STAGES turns on
      rX[v] = sX[(stage * VECS + v) * THREADS + threadIdx.x];
      unpack<T>(rF, rX[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS.max = fmaxf(rS.max, rF[k]);
      stay_packed(rX[v], zero);
      fetch(stage, v);
    }
    float base = base_of(rS.max);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
      if (v * NEXT < left)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(rF[k] - base);
      stay_packed(rX[v], zero);
    }
    rS = row_reduce<LANES>(rS, Combine(), sPartial, parity);
    base = base_of(rS.max);
    const float scale = 1.0f / rS.sum;  // of a row of -inf 0 * inf = NaN, as PyTorch has it
    T* gTo = gOut + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = exp_fast(rF[k] - base) * scale;
      pack<T>(rX[v], rF);
      if (v * NEXT < left) __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rX[v]);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}

// dx = scale out (dout - sum(dout out)), or log_softmax's dout - exp(out) sum(dout): a slot of each tensor a vector. Causal rows are read up to
// the last column that they looked at.
template <typename E, typename Gradient, bool CAUSAL, int LANES, int VECS, int THREADS, int STAGES>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    softmax_backward(E* __restrict__ gDx, const E* __restrict__ gDout, const E* __restrict__ gOut, long long M, int N, long long stride_dout,
                     long long stride_out, int T, float scale) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(E), ROWS = THREADS / LANES, NEXT = LANES * WIDTH;
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ float sPartial[2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const unsigned zero = hidden_zero(N);
  const long long step = (long long)gridDim.x * ROWS, first = blockIdx.x * (long long)ROWS;
  long long i_m = first + threadIdx.x / LANES, i_next = i_m;
  const auto fetch = [&](int stage, int v) {
    const int left = i_next < M ? reach<CAUSAL>(i_next, N, T) - i_l : 0;
    uint4* sTo = sX + (stage * VECS + v) * 2 * THREADS + threadIdx.x;
    const int bytes = max(0, min(16, (left - v * NEXT) * int(sizeof(E))));
    copy_async_part(sTo, gDout + i_next * stride_dout + i_l + v * NEXT, bytes);
    copy_async_part(sTo + THREADS, gOut + i_next * stride_out + i_l + v * NEXT, bytes);
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s, i_next += step)
#pragma unroll
    for (int v = 0; v < VECS; ++v) fetch(s, v);
  int stage = 0, parity = 0;
  for (long long i = first; i < M; i += step, i_m += step, i_next += step, parity ^= 1) {
    const int left = i_m < M ? N - i_l : 0;
    uint4 rG[VECS], rY[VECS];
    float rFG[WIDTH], rFY[WIDTH], sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      copy_wait<STAGES * VECS - 1>();
      const uint4* sFrom = sX + (stage * VECS + v) * 2 * THREADS + threadIdx.x;
      rG[v] = sFrom[0], rY[v] = sFrom[THREADS];  // zeros beyond the row
      unpack<E>(rFG, rG[v]), unpack<E>(rFY, rY[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += Gradient::term(rFG[k], rFY[k]);
      stay_packed(rG[v], zero), stay_packed(rY[v], zero);
      fetch(stage, v);
    }
    sum = row_reduce<LANES>(sum, Sum(), sPartial, parity);
    E* gTo = gDx + i_m * N + i_l;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<E>(rFG, rG[v]), unpack<E>(rFY, rY[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rFY[k] = Gradient::dx(rFG[k], rFY[k], sum) * scale;
      pack<E>(rY[v], rFY);
      if (v * NEXT < left) __stwb(reinterpret_cast<uint4*>(gTo + v * NEXT), rY[v]);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
}
