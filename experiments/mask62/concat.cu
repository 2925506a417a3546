// lab: concat_kv, a token's keys and values a block's row (tokens), or through shared memory by the copy engine (bulk)
#include "rooftile/policy.cuh"
#include "rooftile/rotary.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

template <int HOW, typename T> ROOFTILE_DEVICE void put(T* g, const Wide<T>& x) {
#ifdef ROOFTILE_SIMULATOR
  store_global(g, x);
#else
  if (HOW == 0) store_global(g, x);
  if (HOW == 1) __stcs(reinterpret_cast<uint4*>(g), x.whole);
#endif
}
template <int HOW> ROOFTILE_DEVICE Policy policy_of() {
#ifdef ROOFTILE_SIMULATOR
  return HOW;
#else
  Policy p;
  if (HOW == 1) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
  else asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
#endif
}
template <int HOW, typename T> ROOFTILE_DEVICE void get(Wide<T>& x, const T* g, Policy policy) {
  if (HOW == 0) load_global(x, g);
  else x.whole = load_global(reinterpret_cast<const uint4*>(g), policy);
}
// The same pairs turned.
template <typename T, int K, bool PAIRS> ROOFTILE_DEVICE void turned(Wide<T>& rA, Wide<T>& rB, const float (&rC)[K], const float (&rS)[K]) {
  constexpr int WIDTH = 16 / sizeof(T);
  float rF[WIDTH], rG[WIDTH];
  unpack<T>(rF, rA.whole);
  if (!PAIRS) unpack<T>(rG, rB.whole);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float &one = rF[PAIRS ? 2 * k : k], &two = PAIRS ? rF[(2 * k + 1) % WIDTH] : rG[k];
    const float a = one, b = two;
    one = a * rC[k] - b * rS[k];
    two = a * rS[k] + b * rC[k];
  }
  pack<T>(rA.whole, rF);
  if (!PAIRS) pack<T>(rB.whole, rG);
}
template <typename W, int K> ROOFTILE_DEVICE void looked_up(float (&rC)[K], float (&rS)[K], const W* gCos, const W* gSin, long long place, int rows,
                                                           long long stride_cos, long long stride_sin, int column) {
  if (place < rows) {
    entries<W, K>(rC, gCos + place * stride_cos + column);
    entries<W, K>(rS, gSin + place * stride_sin + column);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) rC[k] = rS[k] = __int_as_float(0x7fffffff);
  }
}

// A block is lanes x groups x tokens. A lane has the vector, or the two that turn together, of every groups-th head, of k and of v.
template <typename T, typename W, typename L, bool PAIRS, bool PAGED, int EACH, int FROM, int TO>
__global__ void tokens(T* gKc, T* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, const void* gTable, int tokens,
                       int length, int S, int G, int D, int N, int rows, int pages, int page, long long k_b, long long k_t, long long k_h, long long v_b,
                       long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t, long long vc_h,
                       long long stride_length, long long stride_cos, long long stride_sin, long long stride_row, long long stride_page) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;
  const int lane = threadIdx.x, turning = N / K;
  const unsigned i_m = blockIdx.x * blockDim.z + threadIdx.z;
  if (i_m >= tokens) return;
  const unsigned i_b = i_m / unsigned(length), i_t = i_m % unsigned(length);
  const long long before = gLengths[i_b * stride_length], place = before + i_t;
  const bool copied = lane >= turning;
  const int column = copied ? 2 * N + (lane - turning) * WIDTH : lane * WIDTH, step = int(blockDim.y);
  const T *gFromK = gK + i_b * k_b + i_t * k_t + threadIdx.y * k_h + column, *gFromV = gV + i_b * v_b + i_t * v_t + threadIdx.y * v_h + column;
  Wide<T> rA[EACH], rB[EACH], rC2[EACH], rD[EACH];
  const Policy policy = FROM ? policy_of<FROM>() : 0;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (int(threadIdx.y) + e * step >= G) continue;
    get<FROM>(rA[e], gFromK + e * step * k_h, policy);
    if (!PAIRS && !copied) get<FROM>(rB[e], gFromK + e * step * k_h + N, policy);
    get<FROM>(rC2[e], gFromV + e * step * v_h, policy);
    if (!PAIRS && !copied) get<FROM>(rD[e], gFromV + e * step * v_h + N, policy);
  }
  if (before < 0 || place >= S) return;
  long long row = i_b, slot = place;
  if (PAGED) {
    row = static_cast<const int*>(gTable)[i_b * stride_row + int(place) / page * stride_page], slot = int(place) % page;
    if (row < 0 || row >= pages) return;
  }
  float rC[K], rS[K];
  if (!copied) looked_up<W, K>(rC, rS, gCos, gSin, place, rows, stride_cos, stride_sin, lane * K);
  T *gToK = gKc + row * kc_b + slot * kc_t + threadIdx.y * kc_h + column, *gToV = gVc + row * vc_b + slot * vc_t + threadIdx.y * vc_h + column;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (int(threadIdx.y) + e * step >= G) continue;
    put<TO>(gToV + e * step * vc_h, rC2[e]);
    if (!PAIRS && !copied) put<TO>(gToV + e * step * vc_h + N, rD[e]);
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    if (int(threadIdx.y) + e * step >= G) continue;
    if (!copied) turned<T, K, PAIRS>(rA[e], rB[e], rC, rS);
    if (!PAIRS && !copied) put<TO>(gToK + e * step * kc_h + N, rB[e]);
    put<TO>(gToK + e * step * kc_h, rA[e]);
  }
}

// A block is lanes x heads x tokens, as rope's v4_bulk; keys on a barrier of theirs, values on theirs, and no thread reads values. Of a token `pieces` lie
// apart: 1 where its heads are one row, else G. The first warp's lanes issue a piece each.
template <typename T, typename W, typename L, bool PAIRS, bool PAGED, int FROM>
__global__ void bulk(T* gKc, T* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, const void* gTable, int tokens, int length,
                     int S, int G, int D, int N, int rows, int pages, int page, int pieces, long long k_b, long long k_t, long long k_h, long long v_b,
                     long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t, long long vc_h,
                     long long stride_length, long long stride_cos, long long stride_sin, long long stride_row, long long stride_page) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ MBarrier sCome[2];
  const int each = blockDim.z, row = G * D, run = row / pieces, bytes = run * int(sizeof(T));
  T *sK = reinterpret_cast<T*>(sAll), *sV = sK + each * row;
  const unsigned first = blockIdx.x * unsigned(each), here = min(unsigned(each), unsigned(tokens) - first);
  const int linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), many = int(here) * pieces;
  if (linear < WARP) {
    if (linear == 0) {
      mbarrier_init(&sCome[0], 1);
      mbarrier_init(&sCome[1], 1);
      mbarrier_fence();
      mbarrier_arrive_expect(&sCome[0], many * bytes);
      mbarrier_arrive_expect(&sCome[1], many * bytes);
    }
    __syncwarp();
    const Policy policy = FROM ? policy_of<FROM>() : 0;
    for (int i = linear; i < many; i += WARP) {
      const unsigned i_m = first + i / pieces, i_b = i_m / unsigned(length), i_t = i_m % unsigned(length), i_h = i % pieces;
      if (FROM) bulk_load(sK + i * run, gK + i_b * k_b + i_t * k_t + i_h * k_h, bytes, &sCome[0], policy);
      else bulk_load(sK + i * run, gK + i_b * k_b + i_t * k_t + i_h * k_h, bytes, &sCome[0]);
      if (FROM) bulk_load(sV + i * run, gV + i_b * v_b + i_t * v_t + i_h * v_h, bytes, &sCome[1], policy);
      else bulk_load(sV + i * run, gV + i_b * v_b + i_t * v_t + i_h * v_h, bytes, &sCome[1]);
    }
  }
  float rC[K], rS[K];
  if (threadIdx.z < here) {
    const unsigned i_m = first + threadIdx.z, i_b = i_m / unsigned(length), i_t = i_m % unsigned(length);
    const long long place = gLengths[i_b * stride_length] + i_t;
    looked_up<W, K>(rC, rS, gCos, gSin, place < 0 ? rows : place, rows, stride_cos, stride_sin, threadIdx.x * K);
  }
  __syncthreads();  // the barriers are there
  mbarrier_wait(&sCome[0], 0);
  if (threadIdx.z < here) {
    T* sMine = sK + threadIdx.z * row + threadIdx.x * WIDTH;
#pragma unroll 2
    for (int i_h = threadIdx.y; i_h < G; i_h += blockDim.y) {
      Wide<T> rA, rB;
      load(rA, sMine + i_h * D);
      if (!PAIRS) load(rB, sMine + i_h * D + N);
      turned<T, K, PAIRS>(rA, rB, rC, rS);
      store(sMine + i_h * D, rA);
      if (!PAIRS) store(sMine + i_h * D + N, rB);
    }
  }
  fence_async();
  __syncthreads();
  if (linear >= WARP) return;
  mbarrier_wait(&sCome[1], 0);
  for (int i = linear; i < many; i += WARP) {
    const unsigned i_m = first + i / pieces, i_b = i_m / unsigned(length), i_t = i_m % unsigned(length), i_h = i % pieces;
    const long long before = gLengths[i_b * stride_length], place = before + i_t;
    if (before < 0 || place >= S) continue;
    long long to = i_b, slot = place;
    if (PAGED) {
      to = static_cast<const int*>(gTable)[i_b * stride_row + int(place) / page * stride_page], slot = int(place) % page;
      if (to < 0 || to >= pages) continue;
    }
    bulk_store(gKc + to * kc_b + slot * kc_t + i_h * kc_h, sK + i * run, bytes);
    bulk_store(gVc + to * vc_b + slot * vc_t + i_h * vc_h, sV + i * run, bytes);
  }
  bulk_commit();
  bulk_wait_read<0>();
}

// A thread a token's piece, which is copied, of keys and of values. Neither passes a register.
template <typename T, typename W, typename L, bool PAIRS, bool PAGED, int FROM>
__global__ void moved(T* gKc, T* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, const void* gTable, int tokens, int length,
                      int S, int G, int D, int N, int rows, int pages, int page, int pieces, long long k_b, long long k_t, long long k_h, long long v_b,
                      long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t, long long vc_h,
                      long long stride_length, long long stride_cos, long long stride_sin, long long stride_row, long long stride_page) {
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ MBarrier sCome[32];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, i_m = i / unsigned(pieces), i_h = i % unsigned(pieces);
  if (i_m >= tokens) return;
  const int row = G * D / pieces, bytes = row * int(sizeof(T));
  T *sK = reinterpret_cast<T*>(sAll) + threadIdx.x * 2 * row, *sV = sK + row;
  const unsigned i_b = i_m / unsigned(length), i_t = i_m % unsigned(length);
  MBarrier* sMine = &sCome[threadIdx.x];
  mbarrier_init(sMine, 1);
  mbarrier_fence();
  mbarrier_arrive_expect(sMine, 2 * bytes);
  if (FROM) {
    const Policy policy = policy_of<FROM>();
    bulk_load(sK, gK + i_b * k_b + i_t * k_t + i_h * k_h, bytes, sMine, policy);
    bulk_load(sV, gV + i_b * v_b + i_t * v_t + i_h * v_h, bytes, sMine, policy);
  } else {
    bulk_load(sK, gK + i_b * k_b + i_t * k_t + i_h * k_h, bytes, sMine);
    bulk_load(sV, gV + i_b * v_b + i_t * v_t + i_h * v_h, bytes, sMine);
  }
  const long long before = gLengths[i_b * stride_length], place = before + i_t;
  long long to = i_b, slot = place;
  bool there = before >= 0 && place < S;
  if (PAGED && there) {
    to = static_cast<const int*>(gTable)[i_b * stride_row + int(place) / page * stride_page], slot = int(place) % page;
    there = to >= 0 && to < pages;
  }
  mbarrier_wait(sMine, 0);
  if (there) {
    bulk_store(gKc + to * kc_b + slot * kc_t + i_h * kc_h, sK, bytes);
    bulk_store(gVc + to * vc_b + slot * vc_t + i_h * vc_h, sV, bytes);
  }
  bulk_commit();
  bulk_wait_read<0>();
}
