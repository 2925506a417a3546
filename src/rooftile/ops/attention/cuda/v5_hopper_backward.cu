// adds: dq, dk and dv in one pass of five products: wgmma on tiles the copy engine brings; P and dS turn into operands in registers; the engine adds dq
// costs: dq in float32, which is cleared, added to by every tile of keys and read again; 227 KiB and all registers: a block a multiprocessor
// loses when: few tiles of keys meet a query, so that clearing and converting dq weigh as much as adding to it; it varies unless ORDERED

// A block owns 128 keys and walks the queries that see them, BLOCK_M at a time, of one head that reads them after the other. Scores are made transposed, S^T = K Q^T: two warpgroups have 64 keys
// each, and P^T and dS^T, as registers hold them, are the left operands of dV += P^T dO and dK += dS^T Q. Only dS crosses between them, once through
// shared memory, for dQ = dS K: each makes a 64 x 64 half of it. A third warpgroup copies: one thread tiles in, two threads dQ out.
// gDq [B H, blocks of queries, half, 4096] keeps a half as the threads held it: 8 times 4 floats of each of 128 threads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/sync.cuh"
#include "rooftile/vec.cuh"
#include "rooftile/wgmma80.cuh"

using namespace rooftile;

constexpr int BLOCK_N = 128, LINE = 128;         // keys of a block; bytes of a panel's line: 64 columns
constexpr int DOUT_STAGES = 2, NEVER = 1 << 30;

template <int D, int M> struct Tile {  // M queries, a block of them
  static_assert((D == 64 && M == 128) || (D == 128 && (M == 64 || M == 80)), "128 queries of 64, 64 or 80 of 128");
  static constexpr int BLOCK_M = M, PANELS = D / 64;
  static constexpr int KEY_PANEL = BLOCK_N * LINE, QUERY_PANEL = M * LINE, KEYS = PANELS * KEY_PANEL, QUERIES = PANELS * QUERY_PANEL;
  static constexpr int N = M * D / 128, HALF = 64 * N, HALF_BYTES = 4 * HALF;  // of dQ a warpgroup makes N queries by 64 of D
};

// Where things lie in dynamic shared memory; the launcher counts the same bytes.
template <int D, int M, int Q_STAGES, int DQ_STAGES, int DS_STAGES> struct Place {
  using X = Tile<D, M>;
  static constexpr int K = 0, V = X::KEYS, Q = 2 * X::KEYS, DOUT = Q + Q_STAGES * X::QUERIES, DS = DOUT + DOUT_STAGES * X::QUERIES;
  static constexpr int DQ = DS + DS_STAGES * 2 * X::QUERY_PANEL, LSE = DQ + DQ_STAGES * 2 * X::HALF_BYTES, DELTA = LSE + Q_STAGES * M * 4;
};

template <int Q_STAGES, int DQ_STAGES, int DS_STAGES> struct Rings {
  MBarrier keys, begin;
  int first, blocks, count;  // of Work, read where they are wanted: registers are full
  Pipeline<Q_STAGES> q;
  Pipeline<DOUT_STAGES> dout;
  Pipeline<DQ_STAGES> dq[2];  // one a warpgroup
  Pipeline<2> ds;             // where dQ lags
};

// What a block does: query blocks `first` to `blocks` - 1 of each of `group` heads, from i_bh on, against one tile of keys of the head i_g they read.
struct Work {
  int i_b, i_g, i_h, i_bh, group, i_tile, tiles, first, count, blocks, T, S;
};
// Tiles are dealt out head by head, so that heads have the L2 to themselves one after the other. Causal, the first keys are seen by the most queries:
// `together` heads have their first tiles, then their second dealt out, the longest first, so that the last to begin are short. Those that add in turn begin
// with the last tile of a head.
template <int M, bool CAUSAL, bool ORDERED> ROOFTILE_DEVICE Work work(int G, int group, int T, int S) {
  Work w;
  w.T = T, w.S = S, w.tiles = ceil_div(S, BLOCK_N), w.blocks = ceil_div(T, M);
  const int together = CAUSAL && !ORDERED ? max(2, (1 << 15) / T) : 1, dealt = together * w.tiles, first = blockIdx.x / dealt * together;
  const int heads = min(together, int(gridDim.x) / w.tiles - first), i_bg = first + blockIdx.x % dealt % heads;
  w.i_tile = blockIdx.x % dealt / heads;
  if (CAUSAL && ORDERED) w.i_tile = w.tiles - 1 - w.i_tile;
  w.i_b = i_bg / G, w.i_g = i_bg % G, w.group = group, w.i_h = w.i_g * group, w.i_bh = i_bg * group;
  w.first = CAUSAL ? max(0, w.i_tile * BLOCK_N + T - S) / M : 0;
  w.count = (w.blocks - w.first) * group;
  return w;
}

// The n-th stage of a ring that holds a power of two: two registers fewer than walking it.
template <int STAGES> ROOFTILE_DEVICE Stage<STAGES> nth_stage(int n) {
  static_assert(power_of_two(STAGES), "");
  return {n % STAGES, n / STAGES % 2};
}

// The same in all lanes of a warp, and what the assembler cannot make anew: it stays in the uniform registers that descriptors are read from, where what
// follows from threadIdx would be brought there before each product, and an address of shared memory be made from its parts in each step.
ROOFTILE_DEVICE unsigned uniform(unsigned x) { return __shfl_sync(ALL_LANES, x, 0); }
template <typename T> ROOFTILE_DEVICE T* uniform(T* sX) {
#ifdef ROOFTILE_SIMULATOR
  return sX;
#else
  return static_cast<T*>(__cvta_shared_to_generic(uniform(shared_address(sX))));
#endif
}

// ---- the third warpgroup -----------------------------------------------------------------------------------------------------

template <int PANELS> ROOFTILE_DEVICE void bring(char* sX, int panel, const TensorMap& map, MBarrier* sBarrier, int i_h, int row, int i_b) {
#pragma unroll
  for (int p = 0; p < PANELS; ++p) tensor_load(sX + p * panel, map, sBarrier, p * 64, i_h, row, i_b);
}

template <int D, int M, int Q_STAGES, int DQ_STAGES, int DS_STAGES>
ROOFTILE_DEVICE void produce(char* sX, Rings<Q_STAGES, DQ_STAGES, DS_STAGES>& sR, const TensorMap& tQ, const TensorMap& tK, const TensorMap& tV, const TensorMap& tDout,
                             const float* gRows, const Work& w) {
  using X = Tile<D, M>;
  using At = Place<D, M, Q_STAGES, DQ_STAGES, DS_STAGES>;
  constexpr int ROWS = M * 4;
  mbarrier_arrive_expect(&sR.keys, 2 * X::KEYS);
  bring<X::PANELS>(sX + At::K, X::KEY_PANEL, tK, &sR.keys, w.i_g, w.i_tile * BLOCK_N, w.i_b);
  bring<X::PANELS>(sX + At::V, X::KEY_PANEL, tV, &sR.keys, w.i_g, w.i_tile * BLOCK_N, w.i_b);
  Stage<Q_STAGES> q;
  const float* gRow = gRows + ((long long)w.i_bh * w.blocks + w.first) * 2 * M;
  for (int step = 0, i = w.first, i_h = w.i_h; step < sR.count; ++step, ++q, gRow += 2 * M) {
    const Stage<DOUT_STAGES> dout = nth_stage<DOUT_STAGES>(step);
    const int i_t = i * M;
    producer_acquire(sR.q, q, X::QUERIES + ROWS);
    bring<X::PANELS>(sX + At::Q + q.index * X::QUERIES, X::QUERY_PANEL, tQ, &sR.q.full[q.index], i_h, i_t, w.i_b);
    bulk_load(sX + At::LSE + q.index * ROWS, gRow, ROWS, &sR.q.full[q.index]);
    producer_acquire(sR.dout, dout, X::QUERIES + ROWS);
    bring<X::PANELS>(sX + At::DOUT + dout.index * X::QUERIES, X::QUERY_PANEL, tDout, &sR.dout.full[dout.index], i_h, i_t, w.i_b);
    bulk_load(sX + At::DELTA + dout.index * ROWS, gRow + M, ROWS, &sR.dout.full[dout.index]);
    if (++i == sR.blocks) i = sR.first, ++i_h, gRow += sR.first * 2 * M;  // the next head's, which lie behind this one's
  }
}

// How many tiles of keys add to this block of queries before this one. Causal, the last tile that the block sees comes to it first, in its first
// step, and the tile before it two or one steps later: in this order nobody waits for a tile that has not begun.
template <int M, bool CAUSAL> ROOFTILE_DEVICE int before(const Work& w, int i_block) {
  if (!CAUSAL) return w.i_tile;
  return min(w.tiles - 1, ((i_block + 1) * M - 1 + w.S - w.T) / BLOCK_N) - w.i_tile;
}

// One thread: a warpgroup's halves of dQ, added in global memory while both multiply on.
template <int D, int M, bool CAUSAL, bool ORDERED, int Q_STAGES, int DQ_STAGES, int DS_STAGES>
ROOFTILE_DEVICE void drain(float* gDq, int* gTurn, const char* sDq, Rings<Q_STAGES, DQ_STAGES, DS_STAGES>& sR, const Work& w, int half) {
  constexpr int HALF = Tile<D, M>::HALF, HALF_BYTES = Tile<D, M>::HALF_BYTES;
  Pipeline<DQ_STAGES>& sRing = sR.dq[half];
  gDq += ((long long)w.i_bh * w.blocks + w.first) * 2 * HALF + half * HALF;
  gTurn += (w.i_bh * w.blocks + w.first) * 2 + half;
  for (int step = 0, i = w.first; step < sR.count; ++step, gDq += 2 * HALF, gTurn += 2) {
    const Stage<DQ_STAGES> at = nth_stage<DQ_STAGES>(step);
    consumer_wait(sRing, at);
    if (ORDERED)
      while (load_acquire(gTurn) != before<M, CAUSAL>(w, i)) spin_pause();
    bulk_add(gDq, reinterpret_cast<const float*>(sDq + at.index * 2 * HALF_BYTES), HALF_BYTES);
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(&sRing.empty[at.index]);
    if (ORDERED) {
      bulk_wait<0>();
      fence_async_global();
      store_release(gTurn, before<M, CAUSAL>(w, i) + 1);
    }
    if (++i == sR.blocks) i = sR.first, gDq += sR.first * 2 * HALF, gTurn += sR.first * 2;
  }
}

// ---- the two that multiply ---------------------------------------------------------------------------------------------------

template <int R, int K> ROOFTILE_DEVICE void fence(float (&d)[R], unsigned (&a)[K][4]) {
#pragma unroll
  for (int k = 0; k < K; ++k) pin(a[k]);
  wgmma_fence(d);
}

template <typename T, int N, Major A = K_MAJOR> ROOFTILE_DEVICE void product(float (&d)[N / 2], Matrix a, Matrix b, bool more) {
  if constexpr (N == 80)
    wgmma_80<T, A>(d, a, b, more);
  else
    wgmma<T, N, A>(d, a, b, more);
}

// d[64 keys, M queries] = A B^T, both K-major along D.
template <typename T, int D, int M> ROOFTILE_DEVICE void scores(float (&d)[M / 2], const char* sA, const char* sB) {
  using X = Tile<D, M>;
  const Matrix a = k_major<128>(sA), b = k_major<128>(sB);
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) product<T, M>(d, a + (k / 4 * X::KEY_PANEL + k % 4 * 32), b + (k / 4 * X::QUERY_PANEL + k % 4 * 32), k > 0);
  wgmma_commit();
}

// d[64 keys, D] += A B: A [64 keys, M queries] in registers, B the queries' tile as it lies.
template <typename T, int D, int M> ROOFTILE_DEVICE void gradient(float (&d)[D / 2], unsigned (&a)[M / 16][4], const char* sB, bool more) {
  const Matrix b = mn_major<128>(sB, Tile<D, M>::QUERY_PANEL);
  fence(d, a);
#pragma unroll
  for (int k = 0; k < M / 16; ++k) wgmma<T, D, MN_MAJOR>(d, a[k], b + k * 16 * LINE, k > 0 || more);
  wgmma_commit();
}

// d[64 of D, N queries] = K^T dS^T over the block's 128 keys: K as it lies, dS a query a line, 64 keys a panel.
template <typename T, int N> ROOFTILE_DEVICE void queries(float (&d)[N / 2], const char* sK, const char* sDs, int panel) {
  const Matrix a = mn_major<128>(sK, 0), b = k_major<128>(sDs);
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < BLOCK_N / 16; ++k) product<T, N, MN_MAJOR>(d, a + k * 16 * LINE, b + (k / 4 * panel + k % 4 * 32), k > 0);
  wgmma_commit();
}

// store_matrices with rows for columns: lane 8 i + r brings the address of column r of matrix i.
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
// A warp's 16 rows of D, 16 K columns as wgmma_operand makes them, into lines of 64 of the warpgroup's rows, a column a line.
template <int K> ROOFTILE_DEVICE void store_columns(char* sX, const unsigned (&a)[K][4]) {
  char* sMine = sX + swizzled<128>((lane() / 16 * 8 + lane() % 8) * LINE + warp() % 4 * 32 + lane() / 8 % 2 * 16);
#pragma unroll
  for (int k = 0; k < K; ++k) store_transposed(sMine + k * 16 * LINE, a[k]);
}

// lse or delta of this thread's queries. The first EARLY pairs are read before the products that are waited for, as registers allow: shared memory
// answers late while products read it.
template <int EARLY> struct Columns {
  const float2* sMine;
  float2 first[EARLY];
  ROOFTILE_DEVICE explicit Columns(const float* sRow) : sMine(reinterpret_cast<const float2*>(sRow + wgmma_column(0))) {
#pragma unroll
    for (int i = 0; i < EARLY; ++i) first[i] = sMine[4 * i];
  }
  ROOFTILE_DEVICE float2 of(int i) const { return i < EARLY ? first[i < EARLY ? i : 0] : sMine[4 * i]; }
};

// 2^x for x below 128 by sums and products, 1.0e-4 of itself off at most, in 8 instructions; 0 where x is -127 or less. The least such polynomial that is 1 at 0.
ROOFTILE_DEVICE float exp2_by_products(float x) {
  x = fmaxf(x, -127.0f);
  const float whole = x + 12582912.0f, part = x - (whole - 12582912.0f);  // 1.5 * 2^23: whole's last bits are x, rounded
  const float y = fmaf(fmaf(fmaf(0.0550089301f, part, 0.242210959f), part, 0.693282927f), part, 1.0f);
  return __uint_as_float(__float_as_uint(y) + (__float_as_uint(whole) << 23));
}

// p = 2^(s scale - lse) in place; a query past T has lse = inf and so no weight. BY_FMA of 8 are made by products: the unit for exponentials takes 4 a cycle
// of a scheduler's 32 threads.
template <int BY_FMA, int R, int EARLY> ROOFTILE_DEVICE void weights(float (&s)[R], const Columns<EARLY>& lse, float scale_log2) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float2 of = lse.of(i / 4);
    const float x = fmaf(s[i], scale_log2, i % 2 ? -of.y : -of.x);
    s[i] = i * BY_FMA % 8 < BY_FMA ? exp2_by_products(x) : exp2_fast(x);
  }
}

// No weight where a query does not see a key; a key past S is seen by none: its p may be inf, and inf times its row of zeros would be NaN in dQ.
template <int R> ROOFTILE_DEVICE void mask(float (&p)[R], int i_key, int S, int shift) {
  const int mine = wgmma_column(0), low = i_key < S ? i_key + shift - mine : NEVER, high = i_key + 8 < S ? i_key + 8 + shift - mine : NEVER;
#pragma unroll
  for (int i = 0; i < R; ++i)
    if (i / 4 * 8 + i % 2 < (i / 2 % 2 ? high : low)) p[i] = 0.0f;  // the column, less this thread's first
}

template <typename T, int R> ROOFTILE_DEVICE void operands(unsigned (&a)[R / 8][4], const float (&d)[R]) {
#pragma unroll
  for (int k = 0; k < R / 8; ++k) wgmma_operand<T>(a[k], d, k);
}
// As in fragments.cuh, for words that are not operands yet.
template <int R> ROOFTILE_DEVICE void finish_first(const float (&s)[R]) {
  unsigned last[1][4] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) last[0][1] |= __float_as_uint(s[i]);
  finish_first(last);
}

// dS = P (dP - delta), two at a time as operands. At D = 64 P is taken from its 16 bits: its float32 registers are wanted for the other 128 queries' dP.
template <typename T, bool FROM_PACKED, int R, int EARLY>
ROOFTILE_DEVICE void score_gradients(unsigned (&ds)[R / 8][4], const unsigned (&p16)[R / 8][4], const float (&p)[R], const float (&dp)[R], const Columns<EARLY>& rows) {
#pragma unroll
  for (int i = 0; i < R; i += 4) {
    const float2 delta = rows.of(i / 4);
#pragma unroll
    for (int j = i; j < i + 4; j += 2) {
      const float2 both = FROM_PACKED ? unpack_pair(T(), p16[j / 8][j / 2 % 4]) : make_float2(p[j], p[j + 1]);
      ds[j / 8][j / 2 % 4] = pack_pair(T(), both.x * (dp[j] - delta.x), both.y * (dp[j + 1] - delta.y));
    }
  }
}

template <typename T, int D, int M>
ROOFTILE_DEVICE void store_keys(const TensorMap& map, char* sX, float (&d)[D / 2], float scale, const Work& w, int half) {
  using X = Tile<D, M>;
  unsigned out[D / 16][4];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d[i] *= scale;
  operands<T>(out, d);
  store_operand(sX, X::KEY_PANEL, half * 64 + warp() % 4 * 16, out);
  fence_async();
  barrier_sync(2 + half, 128);
  if (threadIdx.x % 128 == 0) {
#pragma unroll
    for (int p = 0; p < X::PANELS; ++p)
      tensor_store(map, sX + p * X::KEY_PANEL + half * 64 * LINE, p * 64, w.i_g, w.i_tile * BLOCK_N + half * 64, w.i_b);
    bulk_commit();
  }
}

// dQ as this thread holds it, to the ring that `drain` empties.
template <int R, int DQ_STAGES>
ROOFTILE_DEVICE void hand_over(char* sHalf, Pipeline<DQ_STAGES>& sRing, const Stage<DQ_STAGES>& at, const float (&dq)[R]) {
  producer_acquire(sRing, at);
  float4* sDq = reinterpret_cast<float4*>(sHalf + at.index * 2 * 128 * R * 4) + threadIdx.x % 128;
#pragma unroll
  for (int k = 0; k < R / 4; ++k) sDq[k * 128] = make_float4(dq[4 * k], dq[4 * k + 1], dq[4 * k + 2], dq[4 * k + 3]);
  fence_async();
  __syncwarp();
  if (lane() == 0) producer_commit(sRing, at);
}

// A product under way across the loop's back edge makes the assembler run all of them one by one: the body ends with a wait for everything.
// AHEAD, products queue up in another order: dK before the barrier of dS, which it covers, and the next block's S beside what is done with dQ.
// LATE, dV is queued when dS is stored, not before dS is computed: it covers the barrier then.
template <typename T, int D, int M, bool CAUSAL, bool AHEAD, bool LATE, int LAG, int BY_FMA, int Q_STAGES, int DQ_STAGES, int DS_STAGES>
ROOFTILE_DEVICE void multiply(const TensorMap& tDk, const TensorMap& tDv, char* sX, Rings<Q_STAGES, DQ_STAGES, DS_STAGES>& sR, const Work& w, int half, float scale,
                              float scale_log2) {
  using X = Tile<D, M>;
  using At = Place<D, M, Q_STAGES, DQ_STAGES, DS_STAGES>;
  constexpr int EARLY = M == 64 ? M / 8 : 4;
  const int i_key = w.i_tile * BLOCK_N + half * 64 + wgmma_row(0), shift = CAUSAL ? w.T - w.S : -NEVER;
  char *sK = sX + At::K, *sV = sX + At::V;
  float dk[D / 2], dv[D / 2], s[M / 2];
  Stage<Q_STAGES> at_q;
  int step = 0, i = w.first;
  mbarrier_wait(&sR.keys, 0);
  if (LAG == 2 && half == 1) mbarrier_wait(&sR.begin, 0);
  if (AHEAD) {
    consumer_wait(sR.q, at_q);
    scores<T, D, M>(s, sK + half * 64 * LINE, sX + At::Q);
    wgmma_wait<0>(s);
  }
  do {
    const Stage<DOUT_STAGES> at_dout = nth_stage<DOUT_STAGES>(step);
    float dp[M / 2], dq[X::N / 2];
    unsigned p16[M / 16][4], ds16[M / 16][4];
    const char *sQ = sX + At::Q + at_q.index * X::QUERIES, *sDout = sX + At::DOUT + at_dout.index * X::QUERIES;
    if (!AHEAD) {
      consumer_wait(sR.q, at_q);
      scores<T, D, M>(s, sK + half * 64 * LINE, sQ);
    }
    const Columns<EARLY> lse(reinterpret_cast<const float*>(sX + At::LSE) + at_q.index * M);
    consumer_wait(sR.dout, at_dout);
    scores<T, D, M>(dp, sV + half * 64 * LINE, sDout);
    if (!AHEAD) wgmma_wait<1>(s);
    weights<BY_FMA>(s, lse, scale_log2);
    if ((w.i_tile + 1) * BLOCK_N > w.S || (CAUSAL && i * M < (w.i_tile + 1) * BLOCK_N - 1 + shift)) mask(s, i_key, w.S, shift - i * M);
    if (!LATE) operands<T>(p16, s);
    const Columns<EARLY> delta(reinterpret_cast<const float*>(sX + At::DELTA) + at_dout.index * M);
    if (LATE)
      finish_first(s);
    else
      finish_first(p16);
    wgmma_wait<0>(dp);
    if (!LATE) gradient<T, D, M>(dv, p16, sDout, step > 0);
    if (LAG == 2 && half == 0 && step == 0) {
      __syncwarp();
      if (lane() == 0) mbarrier_arrive(&sR.begin);
    }
    score_gradients<T, M != 64 && !LATE>(ds16, p16, s, dp, delta);
    if (LATE) operands<T>(p16, s);
    if (AHEAD && !LATE) gradient<T, D, M>(dk, ds16, sQ, step > 0);
    char* sDs = sX + At::DS + step % DS_STAGES * (2 * X::QUERY_PANEL);
    store_columns(sDs + half * X::QUERY_PANEL, ds16);
    if (LATE) gradient<T, D, M>(dv, p16, sDout, step > 0);
    if (AHEAD && LATE) gradient<T, D, M>(dk, ds16, sQ, step > 0);
    fence_async();
    if (!LAG)
      barrier_sync(1, 256);
    else if (step > 0)
      consumer_wait(sR.ds, nth_stage<2>(step - 1)), sDs = sX + At::DS + (step - 1) % DS_STAGES * (2 * X::QUERY_PANEL);
    else
      sDs = sX;  // something finite: what comes of it is not handed over
    queries<T, X::N>(dq, sK + (D == 128) * half * X::KEY_PANEL, sDs + (D == 64) * half * 64 * LINE, X::QUERY_PANEL);
    if (!AHEAD) gradient<T, D, M>(dk, ds16, sQ, step > 0);
    const Stage<Q_STAGES> now = at_q;
    if (AHEAD) {
      if (step + 1 < w.count) {  // after the last block its own S is made again, and not read
        ++at_q;
        consumer_wait(sR.q, at_q);
      }
      wgmma_wait<1>(dv, dk);  // their operands' registers are wanted
      scores<T, D, M>(s, sK + half * 64 * LINE, sX + At::Q + at_q.index * X::QUERIES);
    }
    wgmma_wait<1>(dq);
    consumer_release(sR.dout, at_dout);
    if (AHEAD) consumer_release(sR.q, now);
    if (!LAG || step > 0) hand_over(sX + At::DQ + half * X::HALF_BYTES, sR.dq[half], nth_stage<DQ_STAGES>(step - (LAG > 0)), dq);
    wgmma_wait<0>(s, dk, dv);
    if (LAG) {  // dS of this block is there, that of the one before has been read
      __syncwarp();
      if (lane() == 0) producer_commit(sR.ds, nth_stage<2>(step));
    }
    if (!AHEAD) {
      consumer_release(sR.q, now);
      ++at_q;
    }
    if (++i == sR.blocks) i = sR.first;
  } while (++step < w.count);
  if (LAG) {
    float dq[X::N / 2];
    consumer_wait(sR.ds, nth_stage<2>(step - 1));
    queries<T, X::N>(dq, sK + (D == 128) * half * X::KEY_PANEL, sX + At::DS + (step - 1) % DS_STAGES * (2 * X::QUERY_PANEL) + (D == 64) * half * 64 * LINE, X::QUERY_PANEL);
    wgmma_wait<0>(dq);
    hand_over(sX + At::DQ + half * X::HALF_BYTES, sR.dq[half], nth_stage<DQ_STAGES>(step - 1), dq);
  }
  store_keys<T, D, M>(tDv, sV, dv, 1.0f, w, half);  // these rows of V are this warpgroup's alone
  barrier_sync(1, 256);                                               // both read all of K
  store_keys<T, D, M>(tDk, sK, dk, scale, w, half);
  if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
}

// ---- the kernels -------------------------------------------------------------------------------------------------------------

template <typename T, int D, int M, bool CAUSAL, bool ORDERED, bool AHEAD, bool LATE, int LAG, int BY_FMA, int Q_STAGES, int DQ_STAGES>
__global__ void __launch_bounds__(384, 1)
    attention_backward(const __grid_constant__ TensorMap tDk, const __grid_constant__ TensorMap tDv, const __grid_constant__ TensorMap tQ,
                       const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, float* gDq,
                       int* gTurn, const float* gRows, int G, int group, int T_, int S, float scale, float scale_log2) {
  constexpr int DS_STAGES = LAG ? 3 : 2;
  using At = Place<D, M, Q_STAGES, DQ_STAGES, DS_STAGES>;
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings<Q_STAGES, DQ_STAGES, DS_STAGES> sR;
  const Work w = work<M, CAUSAL, ORDERED>(G, group, T_, S);
  if (threadIdx.x == 0) {
    sR.first = w.first, sR.blocks = w.blocks, sR.count = w.count;
    mbarrier_init(&sR.keys, 1);
    mbarrier_init(&sR.begin, 4);
    pipeline_init(sR.ds, 8, 1);
    pipeline_init(sR.q, 1, 8);
    pipeline_init(sR.dout, 1, 8);
    for (int half = 0; half < 2; ++half) pipeline_init(sR.dq[half], 4, 1);
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_lower<24>();  // three warpgroups have 3 x 168 to share
    const int i_warp = (threadIdx.x - 256) / WARP;
    if (lane() == 0 && i_warp == 0) produce<D, M>(sX, sR, tQ, tK, tV, tDout, gRows, w);
    if (lane() == 0 && (i_warp == 1 || i_warp == 2))
      drain<D, M, CAUSAL, ORDERED>(gDq, gTurn, sX + At::DQ + (i_warp - 1) * At::X::HALF_BYTES, sR, w, i_warp - 1);
  } else {
    registers_raise<240>();
    multiply<T, D, M, CAUSAL, AHEAD, LATE, LAG, BY_FMA>(tDk, tDv, uniform(sX), *uniform(&sR), w, uniform(threadIdx.x / 128), scale, scale_log2);
  }
}

// delta = rowsum(dout out), lse to base 2, zeros in gDq and gTurn: 2048 / D queries of a head a block, D / 8 threads a query. Queries up to the end of
// the last block are written too; where one sees nothing, or is none, lse is inf.
template <typename T, int D, int BLOCK_M>
__global__ void __launch_bounds__(256)
    prepare(float* gDq, int* gTurn, float* gRows, const T* gDout, const T* gOut, const float* gLse, int H, int T_, long long stride_gb,
            long long stride_gt, long long stride_gh, long long stride_ob, long long stride_ot, long long stride_oh) {
  constexpr int LANES = D / 8, ROWS = 256 / LANES;
  const int padded = ceil_div(T_, BLOCK_M) * BLOCK_M, chunks = padded / ROWS, i_bh = blockIdx.x / chunks, i_b = i_bh / H, i_h = i_bh % H;
  const int i_t = blockIdx.x % chunks * ROWS + threadIdx.x / LANES, i_d = threadIdx.x % LANES * 8;
  const long long row = (long long)i_bh * padded + i_t;
  float4* gZero = reinterpret_cast<float4*>(gDq + (row - threadIdx.x / LANES) * D);
  gZero[threadIdx.x] = gZero[threadIdx.x + 256] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (i_t % BLOCK_M == 0 && i_d == 0) gTurn[row / BLOCK_M * 2] = gTurn[row / BLOCK_M * 2 + 1] = 0;
  const float INF = __uint_as_float(0x7f800000u);
  float sum = 0.0f;
  if (i_t < T_) {
    Wide<T> rDout, rOut;
    load_global(rDout, gDout + i_b * stride_gb + i_t * stride_gt + i_h * stride_gh + i_d);
    load_global(rOut, gOut + i_b * stride_ob + i_t * stride_ot + i_h * stride_oh + i_d);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += float(rDout[i]) * float(rOut[i]);
  }
  sum = warp_reduce<LANES>(sum, Sum());
  if (i_d == 0) {
    const float lse = i_t < T_ ? gLse[(long long)i_bh * T_ + i_t] : -INF;
    float* gRow = gRows + row / BLOCK_M * 2 * BLOCK_M + row % BLOCK_M;
    gRow[0] = lse == -INF ? INF : lse * 1.4426950408889634f;
    gRow[BLOCK_M] = sum;
  }
}

// dQ from the order of threads to rows, rounded: a half a block, through shared memory.
template <typename T, int D, int BLOCK_M>
__global__ void __launch_bounds__(128)
    finish(T* gOut, const float* gDq, int H, int T_, long long stride_b, long long stride_t, long long stride_h, float scale) {
  constexpr int N = Tile<D, BLOCK_M>::N, HALF = Tile<D, BLOCK_M>::HALF;
  __shared__ __align__(1024) char sX[N * LINE];
  const int blocks = ceil_div(T_, BLOCK_M), i_half = blockIdx.x % 2, i_bh = blockIdx.x / 2 / blocks, i_b = i_bh / H, i_h = i_bh % H;
  const int i_t = blockIdx.x / 2 % blocks * BLOCK_M + (D == 64) * i_half * N, i_d = (D == 128) * i_half * 64;
  unsigned out[N / 16][4];
#pragma unroll
  for (int k = 0; k < N / 8; ++k) {
    Vec<float, 4> r;
    load_global(r, gDq + (long long)blockIdx.x * HALF + k * 512 + threadIdx.x * 4);
    out[k / 2][k % 2 * 2] = pack_pair(T(), r[0] * scale, r[1] * scale), out[k / 2][k % 2 * 2 + 1] = pack_pair(T(), r[2] * scale, r[3] * scale);
  }
  store_columns(sX, out);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    const int row = k * 16 + threadIdx.x / 8, column = lane() % 8 * 8;
    Wide<T> r;
    load(r, reinterpret_cast<const T*>(sX + swizzled<128>(row * LINE + column * 2)));
    if (i_t + row < T_) store_global(gOut + i_b * stride_b + (i_t + row) * stride_t + i_h * stride_h + i_d + column, r);
  }
}
