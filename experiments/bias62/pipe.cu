// lab: rows by cp.async, a block's groups of rows summed in it; TICKET: the last blocks to come add the partial rows
#include "rooftile/early.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/sync.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T, typename B, int ROWS, int STAGES, int THREADS, int PER, int POLICY, bool TICKET>
__global__ void __launch_bounds__(THREADS, PER)
    backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask, B* __restrict__ gDbias,
             int* gTicket, long long M, int N, float scale, long long stride_dout, long long stride_mask) {
  constexpr int WIDTH = 16 / sizeof(T);
  using Bytes = typename Raw<WIDTH>::type;
  extern __shared__ __align__(128) uint4 sDout[];
  Bytes* sMask = reinterpret_cast<Bytes*>(sDout + STAGES * ROWS * THREADS);
  const int lanes = blockDim.x, groups = blockDim.y, i_t = threadIdx.y * lanes + threadIdx.x, strip = blockIdx.x * lanes * WIDTH;
  const int i_n = strip + threadIdx.x * WIDTH;
  const long long step = (long long)gridDim.y * groups * ROWS, i_m = blockIdx.y * (long long)groups * ROWS + threadIdx.y;
  const Policy policy = evict_last(POLICY ? M * N * (long long)(sizeof(T) + 1) : 0);
  const int left = i_n < N && i_m < M ? int(M - i_m) : 0;  // rows of M from this thread's first (lab: M < 2^31)
  int ahead = 0;
  const T* gFrom = gDout + i_m * stride_dout + i_n;
  const unsigned char* gKeep = gMask + i_m * stride_mask + i_n;
  const auto fetch = [&](int stage) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const bool there = ahead + r * groups < left;
      copy_async(sDout + (stage * ROWS + r) * THREADS + i_t, gFrom + r * groups * stride_dout, there, policy);
      copy_async<WIDTH>(sMask + (stage * ROWS + r) * THREADS + i_t, gKeep + r * groups * stride_mask, there);
    }
    copy_commit();
    ahead += int(step), gFrom += step * stride_dout, gKeep += step * stride_mask;
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(s);
  float rSum[WIDTH] = {};
  T* gTo = gDx + i_m * N + i_n;
  int stage = 0;
  let_next_stand_by();
  for (int at = 0; at < left; at += int(step)) {
    copy_wait<STAGES - 1>();
    uint4 rDout[ROWS];
    Vec<unsigned char, WIDTH> rMask[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rDout[r] = sDout[(stage * ROWS + r) * THREADS + i_t], rMask[r].whole = sMask[(stage * ROWS + r) * THREADS + i_t];
    fetch(stage);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r && at + r * groups >= left) break;
      float rF[WIDTH];
      unpack<T>(rF, rDout[r]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rMask[r][k] ? rF[k] * scale : 0.0f, rSum[k] += rF[k];
      pack<T>(rDout[r], rF);
      __stwb(reinterpret_cast<uint4*>(gTo + r * groups * (long long)N), rDout[r]);
    }
    gTo += step * N;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  copy_wait<0>();
  __syncthreads();
  const int columns = lanes * WIDTH, threads = lanes * groups;
  float* sSum = reinterpret_cast<float*>(sDout);
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4)
    *reinterpret_cast<float4*>(sSum + threadIdx.y * columns + threadIdx.x * WIDTH + k) = {rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]};
  __syncthreads();
  for (int i = i_t; i < columns && strip + i < N; i += threads) {
    float sum = 0.0f;
#pragma unroll 4
    for (int g = 0; g < groups; ++g) sum += sSum[g * columns + i];
    gPartial[blockIdx.y * (long long)N + strip + i] = sum;
  }
  if constexpr (TICKET) {
    __shared__ int sTurn;
    const int blocks = gridDim.x * gridDim.y, chunks = ceil_div(N, WARP), takers = chunks < blocks ? chunks : blocks;
    __threadfence();
    __syncthreads();
    if (i_t == 0) {
      sTurn = atomicAdd(gTicket, 1) - (blocks - takers);
      if (sTurn >= 0)
        while (load_acquire(gTicket) < blocks) spin_pause();
      __threadfence();
    }
    __syncthreads();
    if (sTurn < 0) return;
    constexpr int AT_ONCE = 8;
    const int wide = threads / WARP, w = i_t / WARP, l = i_t % WARP, P = gridDim.y;
    for (int chunk = sTurn; chunk < chunks; chunk += takers) {
      const int i_c = chunk * WARP + l;
      float sum = 0.0f;
      if (i_c < N && w < wide)
        for (int i_p = w; i_p < P; i_p += AT_ONCE * wide) {
          float r[AT_ONCE];
#pragma unroll
          for (int j = 0; j < AT_ONCE; ++j) r[j] = i_p + j * wide < P ? __ldcg(gPartial + (i_p + j * wide) * (long long)N + i_c) : 0.0f;
#pragma unroll
          for (int j = 0; j < AT_ONCE; ++j) sum += r[j];
        }
      if (w < wide) sSum[w * WARP + l] = sum;
      __syncthreads();
      if (w == 0 && i_c < N) {
        sum = 0.0f;
#pragma unroll 4
        for (int i = 0; i < wide; ++i) sum += sSum[i * WARP + l];
        gDbias[i_c] = B(sum);
      }
      __syncthreads();
    }
    if (i_t == 0 && atomicAdd(gTicket + 1, 1) == takers - 1) gTicket[0] = 0, gTicket[1] = 0;
  }
}
