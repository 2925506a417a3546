// adds: the copy engine brings whole tokens into shared memory and takes them out again: what is turned passes through registers there, what is copied never
// costs: shared memory for all that is under way, and a way there and back of what is turned; a token's heads must lie one behind the other
// loses when: there are few tokens, which wait for two ways more
#include "rooftile/policy.cuh"
#include "rooftile/rotary.cuh"
#include "rooftile/rows.cuh"

using namespace rooftile;

// A block is lanes x heads x tokens: a lane has the vector of a head, or the two, that turn together, of every blockDim.y-th head from its own on,
// q's and then k's. The token's cosines and sines arrive while its heads do.
template <typename T, typename W, bool GIVEN, bool PAIRS>
__global__ void rope(T* gQo, T* gKo, const T* gQ, const T* gK, const W* gCos, const W* gSin, const void* gPositions, int tokens, int length, int S, int H,
                     int G, int D, int N, long long q_b, long long q_t, long long k_b, long long k_t, long long qo_b, long long qo_t, long long ko_b,
                     long long ko_t, long long stride_cos, long long stride_sin, long long p_b, long long p_t, float sign) {
  constexpr int WIDTH = 16 / sizeof(T), K = PAIRS ? WIDTH / 2 : WIDTH;  // pairs a lane
  extern __shared__ __align__(128) uint4 sAll[];
  __shared__ MBarrier sCome;
  T* sHeads = reinterpret_cast<T*>(sAll);
  const int each = blockDim.z, row = (H + G) * D, bytes_q = H * D * int(sizeof(T)), bytes_k = G * D * int(sizeof(T));
  const unsigned first = blockIdx.x * unsigned(each), here = min(unsigned(each), unsigned(tokens) - first);
  const bool issues = threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
  if (issues) {
    const Policy policy = evict_last((long long)tokens * row * sizeof(T));
    mbarrier_init(&sCome, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&sCome, int(here) * (bytes_q + bytes_k));
    for (unsigned t = 0; t < here; ++t) {
      const unsigned i_b = (first + t) / unsigned(length), i_t = (first + t) % unsigned(length);
      if (H > 0) bulk_load(sHeads + t * row, gQ + i_b * q_b + i_t * q_t, bytes_q, &sCome, policy);
      if (G > 0) bulk_load(sHeads + t * row + H * D, gK + i_b * k_b + i_t * k_t, bytes_k, &sCome, policy);
    }
  }
  float rC[K], rS[K], rF[WIDTH], rG[WIDTH];
  const unsigned i_m = first + threadIdx.z;
  if (threadIdx.z < here) {
    const unsigned i_b = i_m / unsigned(length), i_t = i_m % unsigned(length);
    const long long place = GIVEN ? static_cast<const long long*>(gPositions)[i_b * p_b + i_t * p_t] : i_t;
    const int at = threadIdx.x * K;
    angles(rC, rS, gCos + place * stride_cos + at, gSin + place * stride_sin + at, place >= 0 && place < S, sign);
  }
  __syncthreads();  // the barrier is there
  mbarrier_wait(&sCome, 0);
  if (threadIdx.z < here) {
    T* sMine = sHeads + threadIdx.z * row + threadIdx.x * WIDTH;
#pragma unroll 2
    for (int i_h = threadIdx.y; i_h < H + G; i_h += blockDim.y) {
      Wide<T> rA, rB;
      load(rA, sMine + i_h * D);
      unpack<T>(rF, rA.whole);
      if (!PAIRS) load(rB, sMine + i_h * D + N), unpack<T>(rG, rB.whole);
      turn_pairs<PAIRS>(rF, rG, rC, rS);
      pack<T>(rA.whole, rF);
      store(sMine + i_h * D, rA);
      if (!PAIRS) pack<T>(rB.whole, rG), store(sMine + i_h * D + N, rB);
    }
  }
  fence_async();
  __syncthreads();
  if (!issues) return;
  for (unsigned t = 0; t < here; ++t) {
    const unsigned i_b = (first + t) / unsigned(length), i_t = (first + t) % unsigned(length);
    if (H > 0) bulk_store(gQo + i_b * qo_b + i_t * qo_t, sHeads + t * row, bytes_q);
    if (G > 0) bulk_store(gKo + i_b * ko_b + i_t * ko_t, sHeads + t * row + H * D, bytes_k);
  }
  bulk_commit();
  bulk_wait_read<0>();
}
