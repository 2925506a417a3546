// variants of v4_register_row for rows of 32 KB
#include "rooftile/async.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

ROOFTILE_DEVICE void store_first(uint4* g, uint4 r, Policy p) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(g), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w), "l"(p) : "memory");
}
ROOFTILE_DEVICE Policy evict_first_policy() {
  Policy p;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}

// POLICY: 0 none, 1 evict_last reads, 2 evict_first reads; 3 evict_last reads and evict_first stores. FULL: N == VECS THREADS WIDTH. PRE: vectors of the weight asked for before the reduction.
template <typename T, typename W, int VECS, int THREADS, int BLOCKS, int PRE, int POLICY, bool FULL, int PERSIST>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    rmsnorm(T* __restrict__ gOut, const T* __restrict__ gX, const W* __restrict__ gW, int N, long long M, float eps, float offset) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const unsigned zero = hidden_zero(N);
  const Policy policy = POLICY == 2 ? evict_first_policy() : evict_last(M * (long long)N * sizeof(T));
  const Policy first = evict_first_policy();
  for (long long i_m = blockIdx.x; i_m < M; i_m += PERSIST ? gridDim.x : M) {
    const uint4* gRow = reinterpret_cast<const uint4*>(gX + i_m * N);
    uint4* gTo = reinterpret_cast<uint4*>(gOut + i_m * N);
    uint4 rX[VECS] = {};
    Parameters<W, WIDTH> rP[PRE > 0 ? PRE : 1];
    float rF[WIDTH], rW[WIDTH], sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECS; ++v)
      if (FULL || int(threadIdx.x) + v * THREADS < N / WIDTH) {
        if (POLICY) rX[v] = load_global(gRow + threadIdx.x + v * THREADS, policy);
        else load_now(rX[v], gRow + threadIdx.x + v * THREADS);
      }
#pragma unroll
    for (int v = 0; v < PRE; ++v)
      if (FULL || int(threadIdx.x) + v * THREADS < N / WIDTH) rP[v].ask(gW + (threadIdx.x + v * THREADS) * WIDTH);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      unpack<T>(rF, rX[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rF[k];
      asm volatile("" : "+f"(sum));
      stay_packed(rX[v], zero);
    }
    const float rstd = rsqrtf(row_reduce<THREADS>(sum, Sum(), sPartial, 0) / N + eps);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const int i_v = threadIdx.x + v * THREADS;
      if (!FULL && i_v >= N / WIDTH) break;
      asm volatile("" : "+r"(rX[v].x), "+r"(rX[v].y), "+r"(rX[v].z), "+r"(rX[v].w)::"memory");
      unpack<T>(rF, rX[v]);
      if (v < PRE) rP[v].open(rW, offset);
      else {
        Parameters<W, WIDTH> rNow;
        rNow.ask(gW + i_v * WIDTH);
        rNow.open(rW, offset);
      }
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] *= rstd * rW[k];
      pack<T>(rX[v], rF);
      if (POLICY == 3) store_first(gTo + i_v, rX[v], first);
      else __stwb(gTo + i_v, rX[v]);
    }
    if (PERSIST) __syncthreads();
  }
}

// The row by cp.async into shared memory, each thread its own vectors; PRE vectors of the weight meanwhile; KEEP: the second pass from registers.
template <typename T, typename W, int VECS, int THREADS, int BLOCKS, int PRE, bool KEEP, int STORE>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    rmsnorm_async(T* __restrict__ gOut, const T* __restrict__ gX, const W* __restrict__ gW, int N, long long M, float eps, float offset) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  extern __shared__ __align__(16) char sAll[];
  uint4* sX = reinterpret_cast<uint4*>(sAll);
  const Policy policy = evict_last(M * (long long)N * sizeof(T));
  const long long i_m = blockIdx.x;
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + i_m * N);
  uint4* gTo = reinterpret_cast<uint4*>(gOut + i_m * N);
#pragma unroll
  for (int v = 0; v < VECS; ++v) copy_async(sX + threadIdx.x + v * THREADS, gRow + threadIdx.x + v * THREADS, int(threadIdx.x) + v * THREADS < N / WIDTH, policy);
  copy_commit();
  Parameters<W, WIDTH> rP[PRE > 0 ? PRE : 1];
#pragma unroll
  for (int v = 0; v < PRE; ++v)
    if (int(threadIdx.x) + v * THREADS < N / WIDTH) rP[v].ask(gW + (threadIdx.x + v * THREADS) * WIDTH);
  uint4 rX[VECS];
  float rF[WIDTH], rW[WIDTH], sum = 0.0f;
  copy_wait<0>();
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    rX[v] = sX[threadIdx.x + v * THREADS];
    unpack<T>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum += rF[k] * rF[k];
  }
  const float rstd = rsqrtf(row_reduce<THREADS>(sum, Sum(), sPartial, 0) / N + eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const int i_v = threadIdx.x + v * THREADS;
    if (i_v >= N / WIDTH) break;
    if (!KEEP) {
      asm volatile("" ::: "memory");
      rX[v] = sX[i_v];
    }
    unpack<T>(rF, rX[v]);
    if (v < PRE) rP[v].open(rW, offset);
    else {
      Parameters<W, WIDTH> rNow;
      rNow.ask(gW + i_v * WIDTH);
      rNow.open(rW, offset);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] *= rstd * rW[k];
    pack<T>(rX[v], rF);
    if (STORE == 1) __stcs(gTo + i_v, rX[v]);
    else __stwb(gTo + i_v, rX[v]);
  }
}
