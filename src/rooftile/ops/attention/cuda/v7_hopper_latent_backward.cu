// adds: heads of 192 with values of 128 in one pass of five products for the seven of two passes
// costs: every register holds a sum: no third warpgroup, a thread's products one behind the other; dq in float32, cleared, added to by each tile of keys, read
// loses when: a query meets few keys, so that clearing and rounding dq weigh as much as adding to it; what adds in any order varies

// A block owns 128 keys, a warpgroup 64 of them, and walks the queries that see them, 64 at a time, of one head that reads them after the other. Of a step a
// warpgroup makes S^T = K Q^T, P^T, the left operand of dV += P^T dO as its registers hold it, dP^T = V dO^T, and dS^T, which goes to shared memory: a left
// operand as it lies of dK += dS^T Q, and turned of dQ = dS K, of which a warpgroup makes 96 columns over all 128 keys, a step late, when the other's dS has
// long been there. dQ is added in memory from registers. 160 of a thread's 255 are dK and dV: what one waits for, the other warpgroup's products run beside.
// The first thread of each brings tiles, in the middle of a step: then the other is through with the step before.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/add.cuh"
#include "rooftile/attention.cuh"
#include "rooftile/early.cuh"
#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/registers.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int D = 192, DV = 128, BLOCK_M = 64, BLOCK_N = 128, HALF = BLOCK_N / 2;  // queries of a step, keys of a block and of a warpgroup
constexpr int LINE = 128, KEY_LINE = 64;  // bytes of a panel's line: 64 columns, and 32 of keys, so that 96 are whole panels
constexpr int PANEL = BLOCK_M * LINE, KEY_PANEL = BLOCK_N * KEY_LINE, VALUE_PANEL = BLOCK_N * LINE;
constexpr int Q_STAGES = 3, DOUT_STAGES = 2, DS_STAGES = 2, ROW_BYTES = BLOCK_M * 4, NEVER = 1 << 30;
constexpr int K_BYTES = BLOCK_N * D * 2, V_BYTES = BLOCK_N * DV * 2, Q_BYTES = BLOCK_M * D * 2, DOUT_BYTES = BLOCK_M * DV * 2, DS_BYTES = BLOCK_N * BLOCK_M * 2;
constexpr int SUMS = BLOCK_M * D / 2;  // of dQ that a warpgroup adds in a step: 12 times 4 floats of each of 128 threads
// Where things lie in dynamic shared memory; the launcher counts the same bytes.
constexpr int AT_K = 0, AT_V = K_BYTES, AT_Q = AT_V + V_BYTES, AT_DOUT = AT_Q + Q_STAGES * Q_BYTES, AT_DS = AT_DOUT + DOUT_STAGES * DOUT_BYTES;
constexpr int AT_LSE = AT_DS + DS_STAGES * DS_BYTES, AT_DELTA = AT_LSE + Q_STAGES * ROW_BYTES;

// Query blocks `first` to `blocks` - 1 of each of several heads, from i_h on, against keys from i_s on of the head i_g they read.
struct Work {
  int i_b, i_g, i_h, i_bh, i_s, first, count, blocks;
};
struct Rings {  // only ever full: who tells of a step's dS is through with the step before
  Work work;    // read where it is wanted: registers are full
  MBarrier home;
  Pipeline<Q_STAGES> q;
  Pipeline<DOUT_STAGES> dout;
  Pipeline<DS_STAGES> ds;
};
template <int STAGES> ROOFTILE_DEVICE Stage<STAGES> stage_of(unsigned step) { return {int(step % STAGES), int(step / STAGES % 2)}; }

ROOFTILE_DEVICE Work work_of(bool causal, int G, int group, int T, int S) {
  Work w;
  const int tiles = ceil_div(S, BLOCK_N), i_bg = blockIdx.x / tiles;  // the first keys are seen by the most queries: the longest first
  w.i_s = blockIdx.x % tiles * BLOCK_N, w.blocks = ceil_div(T, BLOCK_M);
  w.i_b = i_bg / G, w.i_g = i_bg % G, w.i_h = w.i_g * group, w.i_bh = i_bg * group;
  w.first = causal ? max(0, w.i_s + T - S) / BLOCK_M : 0;
  w.count = (w.blocks - w.first) * group;
  return w;
}

// ---- tiles in ----------------------------------------------------------------------------------------------------------------

template <int PANELS, int COLUMNS = 64> ROOFTILE_DEVICE void bring(char* sX, int panel, const TensorMap& map, MBarrier* sBarrier, int i_h, int row, int i_b) {
#pragma unroll
  for (int p = 0; p < PANELS; ++p) tensor_load(sX + p * panel, map, sBarrier, p * COLUMNS, i_h, row, i_b);
}

// One thread: a step's queries, or dout, and a row of `gRows`.
template <int COLUMNS, int STAGES>
ROOFTILE_DEVICE void bring_step(char* sTiles, char* sRows, Pipeline<STAGES>& sRing, const TensorMap& map, const float* gRows, const Work& w, unsigned step) {
  constexpr int BYTES = BLOCK_M * COLUMNS * 2;
  const int walk = w.blocks - w.first, head = step / walk, i = w.first + step % walk, stage = step % STAGES;
  mbarrier_arrive_expect(&sRing.full[stage], BYTES + ROW_BYTES);
  bring<COLUMNS / 64>(sTiles + stage * BYTES, PANEL, map, &sRing.full[stage], w.i_h + head, i * BLOCK_M, w.i_b);
  bulk_load(sRows + stage * ROW_BYTES, gRows + ((long long)(w.i_bh + head) * w.blocks + i) * 2 * BLOCK_M, ROW_BYTES, &sRing.full[stage]);
}

// ---- products ----------------------------------------------------------------------------------------------------------------

// d[64 keys, 64 queries] = A B^T, lines of A_LINE bytes and of 128.
template <typename T, int COLUMNS, int A_LINE> ROOFTILE_DEVICE void scores(float (&d)[32], const Matrix& a, const Matrix& b) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < COLUMNS / 16; ++k)
    wgmma<T, 64>(d, a + (k * 32 / A_LINE * BLOCK_N * A_LINE + k * 32 % A_LINE), b + (k * 32 / LINE * PANEL + k * 32 % LINE), k > 0);
  wgmma_commit();
}

// d[64 keys, DV] += P^T dO, P^T in registers.
template <typename T> ROOFTILE_DEVICE void add_values(float (&d)[DV / 2], unsigned (&p)[4][4], const Matrix& dout) {
#pragma unroll
  for (int k = 0; k < 4; ++k) pin(p[k]);
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<T, DV, MN_MAJOR>(d, p[k], dout + k * 16 * LINE, true);
  wgmma_commit();
}

// d[64 keys, D] += dS^T Q.
template <typename T> ROOFTILE_DEVICE void add_keys(float (&d)[D / 2], const Matrix& ds, const Matrix& q) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<T, D, K_MAJOR, MN_MAJOR>(d, ds + k * 32, q + k * 16 * LINE, true);
  wgmma_commit();
}

// d[64 queries, 96 of D] = dS K.
template <typename T> ROOFTILE_DEVICE void queries(float (&d)[D / 4], const Matrix& ds, const Matrix& keys) {
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < BLOCK_N / 16; ++k) wgmma<T, D / 2, MN_MAJOR, MN_MAJOR>(d, ds + k * 16 * LINE, keys + k * 16 * KEY_LINE, k > 0);
  wgmma_commit();
}

// ---- what threads compute ----------------------------------------------------------------------------------------------------

// p = 2^(s scale - lse) in place, queries along the columns; one past T has lse = inf and so no weight.
ROOFTILE_DEVICE void weights(float (&s)[32], const float* sLse2, float scale_log2) {
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const float2 lse = *reinterpret_cast<const float2*>(sLse2 + i * 2);
    s[i] = exp2_fast(fmaf(s[i], scale_log2, -lse.x)), s[i + 1] = exp2_fast(fmaf(s[i + 1], scale_log2, -lse.y));
    s[i + 2] = exp2_fast(fmaf(s[i + 2], scale_log2, -lse.x)), s[i + 3] = exp2_fast(fmaf(s[i + 3], scale_log2, -lse.y));
  }
}

// No weight where a query, from i_t on, does not see a key of 64 from i_s on, and for a key past S: its p may be inf, and inf times its row of zeros NaN in dQ.
template <bool CAUSAL> ROOFTILE_DEVICE void mask(float (&p)[32], int i_s, int i_t, int shift, int S) {
  if ((CAUSAL && i_t < i_s + HALF - 1 + shift) || i_s + HALF > S) {
    const unsigned i_thread = anew(threadIdx.x);
    const int key = i_s + i_thread / WARP % 4 * 16 + i_thread % WARP / 4, from = CAUSAL ? shift - i_t - int(i_thread % 4 * 2) : -NEVER;
    const int low = key < S ? key + from : NEVER, high = key + 8 < S ? key + 8 + from : NEVER;  // columns, less this thread's first
#pragma unroll
    for (int j = 0; j < 32; ++j)
      if (j / 4 * 8 + j % 2 < (j / 2 % 2 ? high : low)) p[j] = 0.0f;
  }
}

// Where a warp's 16 rows of 64 columns go, for store_matrices.
ROOFTILE_DEVICE char* rows_at(char* sX) {
  const unsigned i_thread = anew(threadIdx.x), i_lane = i_thread % WARP;
  return sX + (i_thread / WARP % 4 * 16 + i_lane % 16) * LINE;
}
ROOFTILE_DEVICE int chunk_at(int k) {  // of its 16 bytes in a line, swizzled
  const unsigned i_lane = anew(threadIdx.x) % WARP;
  return (k * 32 + i_lane / 16 * 16) ^ (i_lane % 8 * 16);
}

// dS^T = P^T (dP^T - delta), rounded, to shared memory.
template <typename T> ROOFTILE_DEVICE void store_score_gradients(char* sDs, const unsigned (&p16)[4][4], const float (&dp)[32], const float* sDelta) {
  char* sMine = rows_at(sDs);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    unsigned ds[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 p = unpack_pair(T(), p16[k][i]), delta = *reinterpret_cast<const float2*>(sDelta + k * 16 + i / 2 * 8);
      ds[i] = pack_pair(T(), p.x * (dp[8 * k + 2 * i] - delta.x), p.y * (dp[8 * k + 2 * i + 1] - delta.y));
    }
    store_matrices(sMine + chunk_at(k), ds);
  }
}

ROOFTILE_DEVICE void add_queries(float* gSums, const float (&dq)[D / 4]) {
  float* gMine = gSums + anew(threadIdx.x) % 128 * 4;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) add_four(gMine + k * 512, dq[4 * k], dq[4 * k + 1], dq[4 * k + 2], dq[4 * k + 3]);
}

// A warpgroup's sums, scaled and rounded, to 64 rows of a tensor by way of shared memory.
template <typename T, int COLUMNS>
ROOFTILE_DEVICE void store_rows(const TensorMap& map, char* sX, const float (&d)[COLUMNS / 2], float scale, const Work& w, int half) {
  char* sMine = rows_at(sX);
#pragma unroll
  for (int k = 0; k < COLUMNS / 16; ++k) {
    unsigned out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = pack_pair(T(), d[8 * k + 2 * i] * scale, d[8 * k + 2 * i + 1] * scale);
    store_matrices(sMine + k / 4 * PANEL + chunk_at(k % 4), out);
  }
  fence_async();
  barrier_sync(2 + half, 128);
  if (anew(threadIdx.x) % 128 == 0) {
#pragma unroll
    for (int p = 0; p < COLUMNS / 64; ++p) tensor_store(map, sX + p * PANEL, p * 64, w.i_g, w.i_s + half * HALF, w.i_b);
    bulk_commit();
  }
}

// ---- the pass ----------------------------------------------------------------------------------------------------------------

template <typename T, bool CAUSAL>
ROOFTILE_DEVICE void multiply(const TensorMap& tDk, const TensorMap& tDv, const TensorMap& tQ, const TensorMap& tDout, float* gDq, const float* gRows,
                              char* sX, Rings& sR, int half, int T_, int S, float scale, float scale_log2) {
  const Work& w = sR.work;
  const Matrix keys = k_major<KEY_LINE>(sX + AT_K + half * HALF * KEY_LINE), values = k_major<LINE>(sX + AT_V + half * HALF * LINE);
  const Matrix keys_by_d = mn_major<KEY_LINE>(sX + AT_K + half * 3 * KEY_PANEL, KEY_PANEL);
  const Matrix queries_by_d = k_major<LINE>(sX + AT_Q), d_by_queries = mn_major<LINE>(sX + AT_Q, PANEL);
  const Matrix dout_by_d = k_major<LINE>(sX + AT_DOUT), d_by_dout = mn_major<LINE>(sX + AT_DOUT, PANEL);
  const Matrix ds_by_queries = k_major<LINE>(sX + AT_DS + half * HALF * LINE), queries_by_ds = mn_major<LINE>(sX, 0);
  float dk[D / 2] = {}, dv[DV / 2] = {};
  unsigned step = 0;
  int i = w.first, i_half = (w.i_bh * w.blocks + i) * 2 + half;  // i_half: of the sums that the step before adds to
  mbarrier_wait(&sR.home, 0);
  do {
    const Stage<Q_STAGES> at_q = stage_of<Q_STAGES>(step);
    const Stage<DOUT_STAGES> at_dout = stage_of<DOUT_STAGES>(step);
    const Stage<DS_STAGES> at_ds = stage_of<DS_STAGES>(step), before = stage_of<DS_STAGES>(step - 1);
    const bool more = step > 0;
    float s[32], dp[32], dq[D / 4];
    unsigned p16[4][4];
    consumer_wait(sR.q, at_q);
    scores<T, D, KEY_LINE>(s, keys, queries_by_d + at_q.index * Q_BYTES);
    wgmma_wait<0>(s);
    weights(s, reinterpret_cast<const float*>(sX + AT_LSE + at_q.index * ROW_BYTES) + anew(threadIdx.x) % 4 * 2, scale_log2);
    mask<CAUSAL>(s, w.i_s + half * HALF, i * BLOCK_M, T_ - S, S);
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_operand<T>(p16[k], s, k);
    if (more && step + 2 - half < w.count && anew(threadIdx.x) % 128 == 0) {
      consumer_wait(sR.ds, before);
      if (half == 0)
        bring_step<D>(sX + AT_Q, sX + AT_LSE, sR.q, tQ, gRows, w, step + 2);
      else
        bring_step<DV>(sX + AT_DOUT, sX + AT_DELTA, sR.dout, tDout, gRows + BLOCK_M, w, step + 1);
    }
    __syncwarp();
    consumer_wait(sR.dout, at_dout);
    scores<T, DV, LINE>(dp, values, dout_by_d + at_dout.index * DOUT_BYTES);
    add_values<T>(dv, p16, d_by_dout + at_dout.index * DOUT_BYTES);
    wgmma_wait<1>(dp);
    if (more) consumer_wait(sR.ds, before);  // and the one before that, which lies where this one goes, has been read
    store_score_gradients<T>(sX + AT_DS + at_ds.index * DS_BYTES + half * HALF * LINE, p16, dp,
                             reinterpret_cast<const float*>(sX + AT_DELTA + at_dout.index * ROW_BYTES) + anew(threadIdx.x) % 4 * 2);
    fence_async();
    barrier_sync(2 + half, 128);
    queries<T>(dq, queries_by_ds + (more ? AT_DS + before.index * DS_BYTES : 0), keys_by_d);  // else of something finite, and not added
    add_keys<T>(dk, ds_by_queries + at_ds.index * DS_BYTES, d_by_queries + at_q.index * Q_BYTES);
    wgmma_wait<1>(dq, dv);
    if (more) {
      add_queries(gDq + (long long)i_half * SUMS, dq);
      i_half += i == w.first ? 2 + 2 * i : 2;  // the next head's lie behind this one's
    }
    wgmma_wait<0>(dk);
    if (anew(threadIdx.x) % WARP == 0) producer_commit(sR.ds, at_ds);
    if (++i == w.blocks) i = w.first;
  } while (++step < w.count);
  float dq[D / 4];
  consumer_wait(sR.ds, stage_of<DS_STAGES>(step - 1));
  queries<T>(dq, queries_by_ds + int(AT_DS + (step - 1) % DS_STAGES * DS_BYTES), keys_by_d);
  wgmma_wait<0>(dq);
  add_queries(gDq + (long long)i_half * SUMS, dq);
  // V has been read by both, and of K a warpgroup has read last the half that its dK goes to.
  store_rows<T, DV>(tDv, sX + AT_V + half * HALF * DV * 2, dv, 1.0f, w, half);
  store_rows<T, D>(tDk, sX + AT_K + half * HALF * D * 2, dk, scale, w, half);
  if (anew(threadIdx.x) % 128 == 0) bulk_wait_read<0>();
}

template <typename T, bool CAUSAL>
__global__ void ROOFTILE_EARLY __launch_bounds__(256, 1)
    attention_backward(const __grid_constant__ TensorMap tDk, const __grid_constant__ TensorMap tDv, const __grid_constant__ TensorMap tQ,
                       const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, float* gDq,
                       const float* gRows, int G, int group, int T_, int S, float scale, float scale_log2) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings sR;
  const Work& w = sR.work;
  if (threadIdx.x == 0) {
    sR.work = work_of(CAUSAL, G, group, T_, S);
    mbarrier_init(&sR.home, 1);
    pipeline_init(sR.q, 1, 8);
    pipeline_init(sR.dout, 1, 8);
    pipeline_init(sR.ds, 8, 8);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&sR.home, K_BYTES + V_BYTES);
    bring<D / 32, 32>(sX + AT_K, KEY_PANEL, tK, &sR.home, w.i_g, w.i_s, w.i_b);
    bring<DV / 64>(sX + AT_V, VALUE_PANEL, tV, &sR.home, w.i_g, w.i_s, w.i_b);
    earlier_done();
#pragma unroll 1
    for (int step = 0; step < min(Q_STAGES, w.count); ++step) {
      bring_step<D>(sX + AT_Q, sX + AT_LSE, sR.q, tQ, gRows, w, step);
      if (step < DOUT_STAGES) bring_step<DV>(sX + AT_DOUT, sX + AT_DELTA, sR.dout, tDout, gRows + BLOCK_M, w, step);
    }
  }
  __syncwarp();
  earlier_done();
  const int half = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);  // which the compiler does not know to be one number in a warp
  multiply<T, CAUSAL>(tDk, tDv, tQ, tDout, gDq, gRows, sX, sR, half, T_, S, scale, scale_log2);
}

// ---- before and after --------------------------------------------------------------------------------------------------------

// Of 16 queries of a head, up to the end of the last block: a row of lse and of delta, and zeros to add to.
template <typename T>
__global__ void __launch_bounds__(256)
    prepare(float* gDq, float* gRows, const T* gDout, const T* gOut, const float* gLse, int H, int T_, long long stride_gb, long long stride_gt,
            long long stride_gh, long long stride_ob, long long stride_ot, long long stride_oh) {
  constexpr int LANES = DV / 8, ROWS = 256 / LANES;
  const int padded = ceil_div(T_, BLOCK_M) * BLOCK_M, chunks = padded / ROWS, i_bh = blockIdx.x / chunks;
  const int i_t = blockIdx.x % chunks * ROWS + threadIdx.x / LANES, i_d = threadIdx.x % LANES * 8;
  let_next_stand_by();
  float4* gZero = reinterpret_cast<float4*>(gDq + (long long)blockIdx.x * ROWS * D);
#pragma unroll
  for (int i = 0; i < ROWS * D / 1024; ++i) gZero[i * 256 + threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  prepare_query<BLOCK_M, DV>(gRows, head(gDout, stride_gb, stride_gt, stride_gh, i_bh, H), head(gOut, stride_ob, stride_ot, stride_oh, i_bh, H), gLse, i_bh,
                             i_t, i_d, T_, padded);
}

// dQ of its sums, 64 queries by 96 a block: what four threads hold of eight columns is a thread's here, of two rows.
template <typename T>
__global__ void __launch_bounds__(384)
    finish(T* gOut, const float* gDq, int H, int T_, long long stride_b, long long stride_t, long long stride_h, float scale) {
  constexpr int EIGHTS = D / 16;
  const int blocks = ceil_div(T_, BLOCK_M), half = blockIdx.x % 2, i_block = blockIdx.x / 2 % blocks, i_bh = blockIdx.x / 2 / blocks;
  const int i_eight = threadIdx.x % EIGHTS, quad = threadIdx.x / EIGHTS;
  const float* gMine = gDq + (long long)blockIdx.x * SUMS + i_eight * 512 + quad * 16;
  const auto to = head(gOut, stride_b, stride_t, stride_h, i_bh, H);
  Vec<float, 4> part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) load(part[i], gMine + i * 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i_t = i_block * BLOCK_M + quad / 8 * 16 + quad % 8 + r * 8;
    Wide<T> out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = T(part[i / 2][r * 2 + i % 2] * scale);
    if (i_t < T_) store_global(to[i_t] + half * D / 2 + i_eight * 8, out);
  }
}
