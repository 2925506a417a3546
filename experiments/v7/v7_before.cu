// adds: heads of 192 with values of 128 in one pass of five products
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/attention.cuh"
#include "rooftile/early.cuh"
#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

#define VARIANT 1
#define REVERSE 0
#define AHEAD 0
#define EARLY_DP 0

constexpr int D = 192, DV = 128, BLOCK_M = 64, BLOCK_N = 128, LINE = 128, KEY_LINE = 64, NEVER = 1 << 30;
constexpr int PANEL = BLOCK_M * LINE, KEY_PANEL = BLOCK_N * KEY_LINE, VALUE_PANEL = BLOCK_N * LINE;
constexpr int STAGES = 2, DS_STAGES = 3, ROW_BYTES = BLOCK_M * 4;
constexpr int K_BYTES = BLOCK_N * D * 2, V_BYTES = BLOCK_N * DV * 2, Q_BYTES = BLOCK_M * D * 2, DOUT_BYTES = BLOCK_M * DV * 2, DS_BYTES = BLOCK_M * BLOCK_N * 2;
constexpr int AT_K = 0, AT_V = K_BYTES, AT_Q = AT_V + V_BYTES, AT_DOUT = AT_Q + STAGES * Q_BYTES, AT_DS = AT_DOUT + STAGES * DOUT_BYTES,
              AT_LSE = AT_DS + DS_STAGES * DS_BYTES, AT_DELTA = AT_LSE + STAGES * ROW_BYTES;

struct Work {
  int i_b, i_g, i_h, i_bh, i_s, first, count, blocks;
};
struct Rings {
  Work work;
  MBarrier home;
  Pipeline<STAGES> q, dout;
  Pipeline<DS_STAGES> ds;
};

ROOFTILE_DEVICE unsigned uniform(unsigned x) { return __shfl_sync(ALL_LANES, x, 0); }
template <typename T> ROOFTILE_DEVICE T* uniform(T* sX) {
#ifdef ROOFTILE_SIMULATOR
  return sX;
#else
  return static_cast<T*>(__cvta_shared_to_generic(uniform(shared_address(sX))));
#endif
}
ROOFTILE_DEVICE unsigned anew(unsigned x) {
  unsigned as_array[1] = {x};
  pin(as_array);
  return as_array[0];
}

ROOFTILE_DEVICE Work work_of(bool causal, int G, int group, int T, int S) {
  Work w;
  const int tiles = ceil_div(S, BLOCK_N), i_bg = blockIdx.x / tiles;
  w.i_s = blockIdx.x % tiles * BLOCK_N, w.blocks = ceil_div(T, BLOCK_M);
  w.i_b = i_bg / G, w.i_g = i_bg % G, w.i_h = w.i_g * group, w.i_bh = i_bg * group;
  w.first = causal ? max(0, w.i_s + T - S) / BLOCK_M : 0;
  w.count = (w.blocks - w.first) * group;
  return w;
}

template <int PANELS, int WIDTH = 64> ROOFTILE_DEVICE void bring(char* sX, int panel, const TensorMap& map, MBarrier* sBarrier, int i_h, int row, int i_b) {
#pragma unroll
  for (int p = 0; p < PANELS; ++p) tensor_load(sX + p * panel, map, sBarrier, p * WIDTH, i_h, row, i_b);
}

// One thread: a block of queries, or of dout, and its row of `gRows`, into the stage that a step has.
template <int COLUMNS>
ROOFTILE_DEVICE void bring_block(char* sTiles, char* sRows, Pipeline<STAGES>& sRing, const TensorMap& map, const float* gRows, const Work& w, unsigned step) {
  constexpr int BYTES = BLOCK_M * COLUMNS * 2;
  const int walk = w.blocks - w.first, head = step / walk, i = REVERSE ? w.blocks - 1 - step % walk : w.first + step % walk, stage = step % STAGES;
  mbarrier_arrive_expect(&sRing.full[stage], BYTES + ROW_BYTES);
  bring<COLUMNS / 64>(sTiles + stage * BYTES, PANEL, map, &sRing.full[stage], w.i_h + head, i * BLOCK_M, w.i_b);
  bulk_load(sRows + stage * ROW_BYTES, gRows + ((long long)(w.i_bh + head) * w.blocks + i) * 2 * BLOCK_M, ROW_BYTES, &sRing.full[stage]);
}

template <typename T> ROOFTILE_DEVICE void make_scores(float (&d)[32], const Matrix& keys, const Matrix& q) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) wgmma<T, 64>(d, keys + (k / 2 * KEY_PANEL + k % 2 * 32), q + (k / 4 * PANEL + k % 4 * 32), k > 0);
  wgmma_commit();
}
template <typename T> ROOFTILE_DEVICE void make_dp(float (&d)[32], const Matrix& values, const Matrix& dout) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < DV / 16; ++k) wgmma<T, 64>(d, values + (k / 4 * VALUE_PANEL + k % 4 * 32), dout + (k / 4 * PANEL + k % 4 * 32), k > 0);
  wgmma_commit();
}
template <typename T, int N> ROOFTILE_DEVICE void gradient(float (&d)[N / 2], unsigned (&a)[4][4], const Matrix& b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) pin(a[k]);
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<T, N, MN_MAJOR>(d, a[k], b + k * 16 * LINE, true);
  wgmma_commit();
}
// d[64 queries, 96 of D] = dS K
template <typename T> ROOFTILE_DEVICE void make_dq(float (&d)[48], const Matrix& ds, const Matrix& keys) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < BLOCK_N / 16; ++k) wgmma<T, 96, K_MAJOR, MN_MAJOR>(d, ds + (k / 4 * PANEL + k % 4 * 32), keys + k * 16 * KEY_LINE, k > 0);
  wgmma_commit();
}

ROOFTILE_DEVICE void store_transposed(void* sColumn, const unsigned (&a)[4]) {
#ifdef ROOFTILE_SIMULATOR
  struct Words { unsigned of[4]; };
  Words mine{{a[0], a[1], a[2], a[3]}}, all[WARP];
  rooftile_sim_exchange(ALL_LANES, &mine, sizeof mine, all, "stmatrix");
  const int l = int(rooftile_sim_lane()), i = l / 8, column = l % 8;
  unsigned word[4];
  for (int r = 0; r < 8; r += 2) {
    const unsigned low = all[4 * r + column / 2].of[i] >> column % 2 * 16 & 0xffff, high = all[4 * r + 4 + column / 2].of[i] >> column % 2 * 16 & 0xffff;
    word[r / 2] = low | high << 16;
  }
  *static_cast<uint4*>(sColumn) = make_uint4(word[0], word[1], word[2], word[3]);
#else
  ROOFTILE_SM90("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(sColumn)), "r"(a[0]), "r"(a[1]), "r"(a[2]),
                "r"(a[3])
                : "memory");
#endif
}
ROOFTILE_DEVICE char* columns_of(char* sX) {
  const unsigned t = anew(threadIdx.x), l = t % 32;
  return sX + swizzled<128>((l / 16 * 8 + l % 8) * LINE + t / 32 % 4 * 32 + l / 8 % 2 * 16);
}
template <typename T> ROOFTILE_DEVICE void make_dk(float (&d)[96], const Matrix& ds, const Matrix& q) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<T, D, MN_MAJOR, MN_MAJOR>(d, ds + k * 16 * LINE, q + k * 16 * LINE, true);
  wgmma_commit();
}
ROOFTILE_DEVICE void add_four(float* g, float a, float b, float c, float d) {
#ifdef ROOFTILE_SIMULATOR
  atomicAdd(g, a), atomicAdd(g + 1, b), atomicAdd(g + 2, c), atomicAdd(g + 3, d);
#else
  ROOFTILE_SM90("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(g)), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
#endif
}

ROOFTILE_DEVICE void add_queries(float* gHalf, const float (&dq)[48]) {
  float* gMine = gHalf + anew(threadIdx.x) % 128 * 4;
#pragma unroll
  for (int k = 0; k < 12; ++k) add_four(gMine + k * 512, dq[4 * k], dq[4 * k + 1], dq[4 * k + 2], dq[4 * k + 3]);
}

ROOFTILE_DEVICE int column_of(unsigned t) { return t % 4 * 2; }

template <bool CAUSAL> ROOFTILE_DEVICE void mask(float (&p)[32], int i_s, int i, int T_, int S) {
  if ((CAUSAL && i * BLOCK_M < i_s + 63 + T_ - S) || i_s + 64 > S) {
    const unsigned t = anew(threadIdx.x);
    const int key = t / 32 % 4 * 16 + t % 32 / 4, shift = CAUSAL ? i_s + T_ - S - i * BLOCK_M - int(t % 4 * 2) : -NEVER;
    const int low = i_s + key < S ? key + shift : NEVER, high = i_s + key + 8 < S ? key + 8 + shift : NEVER;
#pragma unroll
    for (int j = 0; j < 32; ++j)
      if (j / 4 * 8 + j % 2 < (j / 2 % 2 ? high : low)) p[j] = 0.0f;
  }
}

template <typename T, int N> ROOFTILE_DEVICE void store_rows(const TensorMap& map, char* sX, float (&d)[N / 2], float scale, int i_h, int row, int i_b) {
  const unsigned t = anew(threadIdx.x), l = t % 32;
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    unsigned out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = pack_pair(T(), d[8 * k + 2 * i] * scale, d[8 * k + 2 * i + 1] * scale);
    store_matrices(sX + k / 4 * PANEL + swizzled<128>((t / 32 % 4 * 16 + l % 16) * 128 + k % 4 * 32 + l / 16 * 16), out);
  }
  fence_async();
  barrier_sync(2 + t / 128, 128);
  if (t % 128 == 0) {
#pragma unroll
    for (int p = 0; p < N / 64; ++p) tensor_store(map, sX + p * PANEL, p * 64, i_h, row, i_b);
    bulk_commit();
  }
}

template <typename T, bool CAUSAL>
ROOFTILE_DEVICE void multiply(const TensorMap& tDk, const TensorMap& tDv, const TensorMap& tQ, const TensorMap& tDout, const float* gRows, float* gDq, char* sX, Rings& sR, int half, int T_, int S, float scale, float scale_log2) {
  const Matrix keys = k_major<64>(sX + AT_K + half * 64 * KEY_LINE), values = k_major<128>(sX + AT_V + half * 64 * LINE);
  const Matrix queries_by_d = k_major<128>(sX + AT_Q), d_by_queries = mn_major<128>(sX + AT_Q, PANEL);
  const Matrix dout_by_d = k_major<128>(sX + AT_DOUT), d_by_dout = mn_major<128>(sX + AT_DOUT, PANEL);
  const Matrix keys_by_d = mn_major<64>(sX + AT_K + half * 3 * KEY_PANEL, KEY_PANEL), all_ds = k_major<128>(sX),
               ds_by_keys = mn_major<128>(sX + AT_DS + half * PANEL, 0);
  float dk[D / 2] = {}, dv[DV / 2] = {};
  unsigned step = 0;
  int i = REVERSE ? sR.work.blocks - 1 : sR.work.first;
  int i_half = (sR.work.i_bh * sR.work.blocks + i) * 2 + half;
  mbarrier_wait(&sR.home, 0);
  float s[32];
#if AHEAD
  consumer_wait(sR.q, Stage<STAGES>{0, 0});
  make_scores<T>(s, keys, queries_by_d);
  wgmma_wait<0>(s);
#endif
  do {
    const Stage<STAGES> at{int(step % STAGES), int(step / STAGES % 2)};
    float dp[32];
    unsigned p16[4][4];
#if !AHEAD
    consumer_wait(sR.q, at);
    make_scores<T>(s, keys, queries_by_d + at.index * Q_BYTES);
#endif
#if EARLY_DP
    consumer_wait(sR.dout, at);
    make_dp<T>(dp, values, dout_by_d + at.index * DOUT_BYTES);
#endif
    const float2* sLse = reinterpret_cast<const float2*>(sX + AT_LSE + at.index * ROW_BYTES) + anew(threadIdx.x) % 4;
#if !AHEAD
    wgmma_wait<EARLY_DP>(s);
#endif
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      const float2 lse = sLse[j];
      s[j] = exp2_fast(fmaf(s[j], scale_log2, -lse.x)), s[j + 1] = exp2_fast(fmaf(s[j + 1], scale_log2, -lse.y));
      s[j + 2] = exp2_fast(fmaf(s[j + 2], scale_log2, -lse.x)), s[j + 3] = exp2_fast(fmaf(s[j + 3], scale_log2, -lse.y));
    }
    mask<CAUSAL>(s, sR.work.i_s + half * 64, i, T_, S);
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_operand<T>(p16[k], s, k);
    if (step > 0 && step + 1 < sR.work.count && anew(threadIdx.x) % 128 == 0) {  // the other has read what lies there when it told of its dS
      mbarrier_wait(&sR.ds.full[(step + 2) % DS_STAGES], (step - 1) / DS_STAGES % 2);
      if (half == 0)
        bring_block<D>(sX + AT_Q, sX + AT_LSE, sR.q, tQ, gRows, sR.work, step + 1);
      else
        bring_block<DV>(sX + AT_DOUT, sX + AT_DELTA, sR.dout, tDout, gRows + BLOCK_M, sR.work, step + 1);
    }
    __syncwarp();
#if !EARLY_DP
    consumer_wait(sR.dout, at);
    make_dp<T>(dp, values, dout_by_d + at.index * DOUT_BYTES);
#endif
    gradient<T, DV>(dv, p16, d_by_dout + at.index * DOUT_BYTES);
    const float2* sDelta = reinterpret_cast<const float2*>(sX + AT_DELTA + at.index * ROW_BYTES) + anew(threadIdx.x) % 4;
    wgmma_wait<1>(dp);
    char* sDs = columns_of(sX + AT_DS + step % DS_STAGES * DS_BYTES + half * PANEL);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      unsigned ds16[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 p = unpack_pair(T(), p16[k][n]), delta = sDelta[8 * k + n / 2 * 4];
        ds16[n] = pack_pair(T(), p.x * (dp[8 * k + 2 * n] - delta.x), p.y * (dp[8 * k + 2 * n + 1] - delta.y));
      }
      store_transposed(sDs + k * 16 * LINE, ds16);
    }
    fence_async();
    barrier_sync(2 + half, 128);
    float dq[48];
    const int before = (step + 2) % DS_STAGES;
#if VARIANT == 1
    if (step > 0) consumer_wait(sR.ds, Stage<DS_STAGES>{before, int((step - 1) / DS_STAGES % 2)});
    make_dq<T>(dq, all_ds + (step > 0 ? AT_DS + before * DS_BYTES : 0), keys_by_d);
    make_dk<T>(dk, ds_by_keys + int(step % DS_STAGES * DS_BYTES), d_by_queries + at.index * Q_BYTES);
    wgmma_wait<1>(dq, dv);
    if (step > 0) {
      add_queries(gDq + i_half * (64ll * 96), dq);
      i_half += REVERSE ? (i == sR.work.blocks - 1 ? 4 * i + 2 - 2 * sR.work.first : -2) : i == sR.work.first ? 2 + 2 * i : 2;
    }
#if AHEAD
    const unsigned next = step + 1 < sR.work.count ? step + 1 : step;
    consumer_wait(sR.q, Stage<STAGES>{int(next % STAGES), int(next / STAGES % 2)});
    make_scores<T>(s, keys, queries_by_d + int(next % STAGES * Q_BYTES));
    wgmma_wait<0>(dk, s);
#else
    wgmma_wait<0>(dk);
#endif
#else
    make_dk<T>(dk, ds_by_keys + int(step % DS_STAGES * DS_BYTES), d_by_queries + at.index * Q_BYTES);
    wgmma_wait<1>(dv);
    wgmma_wait<0>(dk);
    if (step > 0) {
      consumer_wait(sR.ds, Stage<DS_STAGES>{before, int((step - 1) / DS_STAGES % 2)});
      make_dq<T>(dq, all_ds + (step > 0 ? AT_DS + before * DS_BYTES : 0), keys_by_d);
      wgmma_wait<0>(dq);
      add_queries(gDq + i_half * (64ll * 96), dq);
      i_half += REVERSE ? (i == sR.work.blocks - 1 ? 4 * i + 2 - 2 * sR.work.first : -2) : i == sR.work.first ? 2 + 2 * i : 2;
    }
#endif
    __syncwarp();
    if (anew(threadIdx.x) % WARP == 0) producer_commit(sR.ds, Stage<DS_STAGES>{int(step % DS_STAGES), 0});
    if (REVERSE ? --i < sR.work.first : ++i == sR.work.blocks) i = REVERSE ? sR.work.blocks - 1 : sR.work.first;
  } while (++step < sR.work.count);
  {
    float dq[48];
    const unsigned before = step - 1;
    consumer_wait(sR.ds, Stage<DS_STAGES>{int(before % DS_STAGES), int(before / DS_STAGES % 2)});
    make_dq<T>(dq, all_ds + int(AT_DS + before % DS_STAGES * DS_BYTES), keys_by_d);
    wgmma_wait<0>(dq);
    add_queries(gDq + i_half * (64ll * 96), dq);
  }
  barrier_sync(1, 256);
  store_rows<T, DV>(tDv, sX + AT_V + half * 64 * DV * 2, dv, 1.0f, sR.work.i_g, sR.work.i_s + half * 64, sR.work.i_b);
  store_rows<T, D>(tDk, sX + AT_K + half * 64 * D * 2, dk, scale, sR.work.i_g, sR.work.i_s + half * 64, sR.work.i_b);
  if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
}

template <typename T, bool CAUSAL>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, 1)
    attention_backward(const __grid_constant__ TensorMap tDk, const __grid_constant__ TensorMap tDv, const __grid_constant__ TensorMap tQ,
                       const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, float* gDq,
                       const float* gRows, int G, int group, int T_, int S, float scale, float scale_log2) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings sR;
  if (threadIdx.x == 0) {
    sR.work = work_of(CAUSAL, G, group, T_, S);
    mbarrier_init(&sR.home, 1);
    pipeline_init(sR.q, 1, 8);
    pipeline_init(sR.dout, 1, 8);
    pipeline_init(sR.ds, 8, 1);
  }
  __syncthreads();
  const Work& w = sR.work;
  earlier_done();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sR.home, K_BYTES + V_BYTES);
    bring<D / 32, 32>(sX + AT_K, KEY_PANEL, tK, &sR.home, w.i_g, w.i_s, w.i_b);
    bring<DV / 64>(sX + AT_V, VALUE_PANEL, tV, &sR.home, w.i_g, w.i_s, w.i_b);
#pragma unroll 1
    for (int step = 0; step < min(STAGES, w.count); ++step) {
      bring_block<D>(sX + AT_Q, sX + AT_LSE, sR.q, tQ, gRows, w, step);
      bring_block<DV>(sX + AT_DOUT, sX + AT_DELTA, sR.dout, tDout, gRows + BLOCK_M, w, step);
    }
  }
  __syncwarp();
  multiply<T, CAUSAL>(tDk, tDv, tQ, tDout, gRows, gDq, uniform(sX), *uniform(&sR), uniform(threadIdx.x / 128), T_, S, scale, scale_log2);
}

// 16 queries a block: rows, and zeros to add to.
template <typename T>
__global__ void __launch_bounds__(256)
    prepare(float* gDq, float* gRows, const T* gDout, const T* gOut, const float* gLse, int H, int T_, long long stride_gb, long long stride_gt, long long stride_gh,
            long long stride_ob, long long stride_ot, long long stride_oh) {
  constexpr int LANES = DV / 8, ROWS = 256 / LANES;
  const int padded = ceil_div(T_, BLOCK_M) * BLOCK_M, chunks = padded / ROWS, i_bh = blockIdx.x / chunks;
  const int i_t = blockIdx.x % chunks * ROWS + threadIdx.x / LANES, i_d = threadIdx.x % LANES * 8;
  float4* gZero = reinterpret_cast<float4*>(gDq + (long long)blockIdx.x * ROWS * D);
#pragma unroll
  for (int i = 0; i < ROWS * D / 1024; ++i) gZero[i * 256 + threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  prepare_query<BLOCK_M, DV>(gRows, head(gDout, stride_gb, stride_gt, stride_gh, i_bh, H), head(gOut, stride_ob, stride_ot, stride_oh, i_bh, H), gLse, i_bh,
                             i_t, i_d, T_, padded);
}

// dQ, scaled and rounded
template <typename T>
__global__ void __launch_bounds__(384)
    finish(T* gOut, const float* gDq, int H, int T_, long long stride_b, long long stride_t, long long stride_h, float scale) {
  const int blocks = ceil_div(T_, BLOCK_M), half = blockIdx.x % 2, i_block = blockIdx.x / 2 % blocks, i_bh = blockIdx.x / 2 / blocks;
  const int eight = threadIdx.x % 12, quad = threadIdx.x / 12;
  const float* gMine = gDq + (long long)blockIdx.x * 64 * 96 + eight * 512 + quad * 16;
  const auto to = head(gOut, stride_b, stride_t, stride_h, i_bh, H);
  Vec<float, 4> part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) load(part[i], gMine + i * 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = i_block * BLOCK_M + quad / 8 * 16 + quad % 8 + r * 8;
    Wide<T> out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = T(part[i / 2][r * 2 + i % 2] * scale);
    if (row < T_) store_global(to[row] + half * 96 + eight * 8, out);
  }
}
