// adds: heads of 256, and of 192 with values of 128: a pass with keys at home for dk and dv, a pass with queries at home for dq
// costs: seven products for five: 64 keys fill the registers with sums, and dq added from each 64 would pass through the L2 twice as often as the tiles
// loses when: one pass can hold enough keys for dq's additions to be few: heads of 128 and less

// `keys`: a block owns 64 keys and walks the queries that see them, 64 at a time, of one head that reads them after the other. Scores are made
// transposed. One warpgroup owns dV, the other dK: the first makes S^T = K Q^T and P^T, the left operand of dV += P^T dO as its registers hold it, and
// leaves it to the second, whose threads want the same elements beside dP^T = V dO^T for dK += dS^T Q. A third warpgroup brings tiles.
// `queries`: two warpgroups own 64 queries each and walk the keys that they see, 64 at a time: S = Q K^T, dP = dO V^T, dQ += dS K.
// Every step queues its last product and the next step's first ones together; what threads compute runs beside the other's products. AHEAD, the next
// step's first product is queued as soon as this step's has been read from its registers, and runs beside what is made of it.
// HELD panels of 64 columns of a left operand stay in registers: shared memory is used up as soon as the tensor cores are.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/attention.cuh"
#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int BLOCK = 64, LINE = 128, PANEL = BLOCK * LINE;  // rows of every tile; bytes of a panel's line, which is 64 columns, and of a panel
constexpr int ROW_BYTES = BLOCK * 4, P_STAGES = 2, P_BYTES = BLOCK * BLOCK * 2, NEVER = 1 << 30;
template <int D> constexpr int TILE = D / 64 * PANEL;

template <int D> ROOFTILE_DEVICE void bring(char* sX, const TensorMap& map, MBarrier* sBarrier, int i_h, int row, int i_b) {
#pragma unroll
  for (int p = 0; p < D / 64; ++p) tensor_load(sX + p * PANEL, map, sBarrier, p * 64, i_h, row, i_b);
}

// ---- products ----------------------------------------------------------------------------------------------------------------

// The first PANELS panels of a left operand [64, D], a row a line.
template <int PANELS> struct Held {
  unsigned a[PANELS ? PANELS * 4 : 1][4];
};
template <int PANELS> ROOFTILE_DEVICE void hold(Held<PANELS>& h, const char* sA) {
#pragma unroll
  for (int k = 0; k < PANELS * 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      h.a[k][i] = *reinterpret_cast<const unsigned*>(sA + k / 4 * PANEL + swizzled<128>((warp() % 4 * 16 + lane() / 4 + i % 2 * 8) * LINE + k % 4 * 32 + i / 2 * 16 + lane() % 4 * 4));
    pin(h.a[k]);
  }
}

// d[64, 64] = A B^T, both K-major along D, A held in part.
template <typename T, int D, int HELD> ROOFTILE_DEVICE void scores(float (&d)[32], const Held<HELD>& held, const char* sA, const char* sB) {
  const Matrix a = k_major<128>(sA), b = k_major<128>(sB);
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const int at = k / 4 * PANEL + k % 4 * 32;
    if (k / 4 < HELD)
      wgmma<T, 64>(d, held.a[k / 4 < HELD ? k : 0], b + at, k > 0);
    else
      wgmma<T, 64>(d, a + at, b + at, k > 0);
  }
  wgmma_commit();
}

// d[64, D] += A B: A [64, 64] in registers, B [64, D] as it lies.
template <typename T, int D> ROOFTILE_DEVICE void gradient(float (&d)[D / 2], unsigned (&a)[4][4], const char* sB, bool more) {
  const Matrix b = mn_major<128>(sB, PANEL);
#pragma unroll
  for (int k = 0; k < 4; ++k) pin(a[k]);
  wgmma_fence(d);
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<T, D, MN_MAJOR>(d, a[k], b + k * 16 * LINE, k > 0 || more);
  wgmma_commit();
}

// This warpgroup's sums, scaled and rounded, to 64 rows of a tensor by way of its own memory.
template <typename T, int D> ROOFTILE_DEVICE void store_rows(const TensorMap& map, char* sX, float (&d)[D / 2], float scale, int i_h, int row, int i_b) {
  unsigned out[D / 16][4];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d[i] *= scale;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) wgmma_operand<T>(out[k], d, k);
  store_operand(sX, PANEL, warp() % 4 * 16, out);
  fence_async();
  barrier_sync(2 + threadIdx.x / 128, 128);
  if (threadIdx.x % 128 == 0) {
#pragma unroll
    for (int p = 0; p < D / 64; ++p) tensor_store(map, sX + p * PANEL, p * 64, i_h, row, i_b);
    bulk_commit();
    bulk_wait_read<0>();
  }
}

// ---- keys at home ------------------------------------------------------------------------------------------------------------

// Where things lie in dynamic shared memory; the launcher counts the same bytes.
template <int D, int DV, int STAGES> struct KeysPlace {
  static constexpr int K = 0, V = TILE<D>, Q = V + TILE<DV>, DOUT = Q + STAGES * TILE<D>, P = DOUT + STAGES * TILE<DV>;
  static constexpr int LSE = P + P_STAGES * P_BYTES, DELTA = LSE + STAGES * ROW_BYTES;
};
// What a block does: query blocks `first` to `blocks` - 1 of each of `group` heads, from i_h on, against 64 keys of the head i_g they read.
struct Keys {
  int i_b, i_g, i_h, i_bh, i_s, first, count, blocks;
};
template <int STAGES> struct KeysRings {
  Keys work;  // read where it is wanted: registers are full
  MBarrier home;
  Pipeline<STAGES> q, dout;
  Pipeline<P_STAGES> p;
};

ROOFTILE_DEVICE Keys keys_of(bool causal, int G, int group, int T, int S) {
  Keys w;
  const int tiles = ceil_div(S, BLOCK), i_bg = blockIdx.x / tiles;  // the first keys are seen by the most queries: the longest first
  w.i_s = blockIdx.x % tiles * BLOCK, w.blocks = ceil_div(T, BLOCK);
  w.i_b = i_bg / G, w.i_g = i_bg % G, w.i_h = w.i_g * group, w.i_bh = i_bg * group;
  w.first = causal ? max(0, w.i_s + T - S) / BLOCK : 0;
  w.count = (w.blocks - w.first) * group;
  return w;
}

// One thread: queries, or dout, and a row of `gRow` with each tile.
template <int D, int STAGES>
ROOFTILE_DEVICE void bring_queries(char* sTiles, char* sRows, Pipeline<STAGES>& sRing, const TensorMap& map, const float* gRow, const Keys& w) {
  Stage<STAGES> at;
  gRow += ((long long)w.i_bh * w.blocks + w.first) * 2 * BLOCK;
  for (int step = 0, i = w.first, i_h = w.i_h; step < w.count; ++step, ++at, gRow += 2 * BLOCK) {
    producer_acquire(sRing, at, TILE<D> + ROW_BYTES);
    bring<D>(sTiles + at.index * TILE<D>, map, &sRing.full[at.index], i_h, i * BLOCK, w.i_b);
    bulk_load(sRows + at.index * ROW_BYTES, gRow, ROW_BYTES, &sRing.full[at.index]);
    if (++i == w.blocks) i = w.first, ++i_h, gRow += w.first * 2 * BLOCK;  // the next head's, which lie behind this one's
  }
}

// log2 of p = 2^(s scale - lse), queries along the columns; a query past T has lse = inf and so no weight.
ROOFTILE_DEVICE void exponents(float (&x)[32], const float (&s)[32], const float* sLse2, float scale_log2) {
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const float2 lse = *reinterpret_cast<const float2*>(sLse2 + wgmma_column(i));
    x[i] = fmaf(s[i], scale_log2, -lse.x), x[i + 1] = fmaf(s[i + 1], scale_log2, -lse.y);
    x[i + 2] = fmaf(s[i + 2], scale_log2, -lse.x), x[i + 3] = fmaf(s[i + 3], scale_log2, -lse.y);
  }
}
ROOFTILE_DEVICE void less_delta(float (&x)[32], const float (&dp)[32], const float* sDelta) {
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const float2 delta = *reinterpret_cast<const float2*>(sDelta + wgmma_column(i));
    x[i] = dp[i] - delta.x, x[i + 1] = dp[i + 1] - delta.y, x[i + 2] = dp[i + 2] - delta.x, x[i + 3] = dp[i + 3] - delta.y;
  }
}

// dV and P.
template <typename T, int D, int DV, bool CAUSAL, bool AHEAD, int HELD, int STAGES>
ROOFTILE_DEVICE void own_values(const TensorMap& tDv, char* sX, KeysRings<STAGES>& sR, const Keys& w, int T_, int S, float scale_log2) {
  using At = KeysPlace<D, DV, STAGES>;
  const int shift = T_ - S, i_key = w.i_s + wgmma_row(0);
  float dv[DV / 2], s[32];
  Held<HELD> k;
  Stage<STAGES> at;
  Stage<P_STAGES> at_p;
  int step = 0, i = w.first;
  mbarrier_wait(&sR.home, 0);
  hold(k, sX + At::K);
  consumer_wait(sR.q, at);
  scores<T, D>(s, k, sX + At::K, sX + At::Q);
  wgmma_wait<0>(s);
  do {
    float x[32];
    unsigned p16[4][4];
    exponents(x, s, reinterpret_cast<const float*>(sX + At::LSE + at.index * ROW_BYTES), scale_log2);
    consumer_release(sR.q, at);
    Stage<STAGES> next = at;
    if (step + 1 < w.count) ++next;  // after the last block its own S is made again, and not read
    if (AHEAD) {
      if (step + 1 < w.count) consumer_wait(sR.q, next);
      scores<T, D>(s, k, sX + At::K, sX + At::Q + next.index * TILE<D>);
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) x[j] = exp2_fast(x[j]);
    if (CAUSAL && i * BLOCK < w.i_s + BLOCK - 1 + shift) {  // a key past S makes rows of dK and dV that nobody stores
      const int low = i_key + shift - i * BLOCK - wgmma_column(0);
#pragma unroll
      for (int j = 0; j < 32; ++j)
        if (j / 4 * 8 + j % 2 < (j / 2 % 2 ? low + 8 : low)) x[j] = 0.0f;  // the column, less this thread's first
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) wgmma_operand<T>(p16[j], x, j);
    producer_acquire(sR.p, at_p);
    uint4* sP = reinterpret_cast<uint4*>(sX + At::P + at_p.index * P_BYTES) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < 4; ++j) sP[j * 128] = make_uint4(p16[j][0], p16[j][1], p16[j][2], p16[j][3]);
    __syncwarp();
    if (lane() == 0) producer_commit(sR.p, at_p);
    ++at_p;
    consumer_wait(sR.dout, at);
    gradient<T, DV>(dv, p16, sX + At::DOUT + at.index * TILE<DV>, step > 0);
    if (!AHEAD) {
      if (step + 1 < w.count) consumer_wait(sR.q, next);
      scores<T, D>(s, k, sX + At::K, sX + At::Q + next.index * TILE<D>);
      wgmma_wait<1>(dv);
      consumer_release(sR.dout, at);
    }
    wgmma_wait<0>(s, dv);
    if (AHEAD) consumer_release(sR.dout, at);
    at = next;
    if (++i == w.blocks) i = w.first;
  } while (++step < w.count);
  barrier_sync(1, 256);
  store_rows<T, DV>(tDv, sX + At::K, dv, 1.0f, w.i_g, w.i_s, w.i_b);
}

// dK, of the P that the other leaves.
template <typename T, int D, int DV, bool AHEAD, int HELD, int STAGES>
ROOFTILE_DEVICE void own_keys(const TensorMap& tDk, char* sX, KeysRings<STAGES>& sR, const Keys& w, float scale) {
  using At = KeysPlace<D, DV, STAGES>;
  float dk[D / 2], dp[32];
  Held<HELD> v;
  Stage<STAGES> at;
  Stage<P_STAGES> at_p;
  int step = 0;
  mbarrier_wait(&sR.home, 0);
  hold(v, sX + At::V);
  consumer_wait(sR.dout, at);
  scores<T, DV>(dp, v, sX + At::V, sX + At::DOUT);
  wgmma_wait<0>(dp);
  do {
    float x[32];
    unsigned ds16[4][4];
    less_delta(x, dp, reinterpret_cast<const float*>(sX + At::DELTA + at.index * ROW_BYTES));
    consumer_release(sR.dout, at);
    Stage<STAGES> next = at;
    if (step + 1 < w.count) ++next;  // after the last block its own dP is made again, and not read
    if (AHEAD) {
      if (step + 1 < w.count) consumer_wait(sR.dout, next);
      scores<T, DV>(dp, v, sX + At::V, sX + At::DOUT + next.index * TILE<DV>);
    }
    consumer_wait(sR.p, at_p);
    const uint4* sP = reinterpret_cast<const uint4*>(sX + At::P + at_p.index * P_BYTES) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 four = sP[j * 128];
      const unsigned p16[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 p = unpack_pair(T(), p16[n]);
        ds16[j][n] = pack_pair(T(), p.x * x[j * 8 + 2 * n], p.y * x[j * 8 + 2 * n + 1]);
      }
    }
    consumer_release(sR.p, at_p);
    ++at_p;
    consumer_wait(sR.q, at);
    gradient<T, D>(dk, ds16, sX + At::Q + at.index * TILE<D>, step > 0);
    if (!AHEAD) {
      if (step + 1 < w.count) consumer_wait(sR.dout, next);
      scores<T, DV>(dp, v, sX + At::V, sX + At::DOUT + next.index * TILE<DV>);
      wgmma_wait<1>(dk);
      consumer_release(sR.q, at);
    }
    wgmma_wait<0>(dp, dk);
    if (AHEAD) consumer_release(sR.q, at);
    at = next;
  } while (++step < w.count);
  barrier_sync(1, 256);  // the other reads Q no more
  store_rows<T, D>(tDk, sX + At::Q, dk, scale, w.i_g, w.i_s, w.i_b);
}

template <typename T, int D, int DV, bool CAUSAL, int STAGES, int K_HELD, int V_HELD, bool AHEAD>
__global__ void __launch_bounds__(384, 1)
    keys(const __grid_constant__ TensorMap tDk, const __grid_constant__ TensorMap tDv, const __grid_constant__ TensorMap tQ,
         const __grid_constant__ TensorMap tK, const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, const float* gRows, int G,
         int group, int T_, int S, float scale, float scale_log2) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ KeysRings<STAGES> sR;
  const Keys& w = sR.work;
  if (threadIdx.x == 0) {
    sR.work = keys_of(CAUSAL, G, group, T_, S);
    mbarrier_init(&sR.home, 1);
    pipeline_init(sR.q, 1, 8);
    pipeline_init(sR.dout, 1, 8);
    pipeline_init(sR.p, 4, 4);
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_lower<24>();
    using At = KeysPlace<D, DV, STAGES>;
    if (threadIdx.x == 256) {
      mbarrier_arrive_expect(&sR.home, TILE<D> + TILE<DV>);
      bring<D>(sX + At::K, tK, &sR.home, w.i_g, w.i_s, w.i_b);
      bring<DV>(sX + At::V, tV, &sR.home, w.i_g, w.i_s, w.i_b);
      bring_queries<D>(sX + At::Q, sX + At::LSE, sR.q, tQ, gRows, w);
    }
    if (threadIdx.x == 256 + WARP) bring_queries<DV>(sX + At::DOUT, sX + At::DELTA, sR.dout, tDout, gRows + BLOCK, w);
  } else {
    registers_raise<240>();
    if (threadIdx.x < 128)
      own_values<T, D, DV, CAUSAL, AHEAD, K_HELD>(tDv, sX, sR, w, T_, S, scale_log2);
    else
      own_keys<T, D, DV, AHEAD, V_HELD>(tDk, sX, sR, w, scale);
  }
}

// ---- queries at home ---------------------------------------------------------------------------------------------------------

template <int D, int DV, int K_STAGES, int V_STAGES> struct QueriesPlace {  // two tiles of queries, one a warpgroup
  static constexpr int Q = 0, DOUT = 2 * TILE<D>, K = DOUT + 2 * TILE<DV>, V = K + K_STAGES * TILE<D>;
};
struct Queries {
  int i_b, i_g, i_h, i_t, count;
  long long i_row;
};
template <int K_STAGES, int V_STAGES> struct QueriesRings {
  Queries work;
  MBarrier home;
  Pipeline<K_STAGES> k;
  Pipeline<V_STAGES> v;
};

ROOFTILE_DEVICE Queries queries_of(bool causal, int H, int group, int T, int S) {
  Queries w;
  const int blocks = ceil_div(T, 2 * BLOCK), i_bh = blockIdx.x / blocks;  // the last queries see the most keys: the longest first
  w.i_t = (blocks - 1 - blockIdx.x % blocks) * 2 * BLOCK, w.i_b = i_bh / H, w.i_h = i_bh % H, w.i_g = w.i_h / group;
  w.i_row = (long long)i_bh * ceil_div(T, BLOCK) * 2 * BLOCK;
  w.count = ceil_div(causal ? max(0, min(S, min(T, w.i_t + 2 * BLOCK) + S - T)) : S, BLOCK);
  return w;
}

// One thread: keys, or values, from the last that a query sees.
template <int D, int STAGES>
ROOFTILE_DEVICE void bring_keys(char* sTiles, Pipeline<STAGES>& sRing, const TensorMap& map, const Queries& w) {
  Stage<STAGES> at;
  for (int i = w.count - 1; i >= 0; --i, ++at) {
    producer_acquire(sRing, at, TILE<D>);
    bring<D>(sTiles + at.index * TILE<D>, map, &sRing.full[at.index], w.i_g, i * BLOCK, w.i_b);
  }
}

template <typename T, int D, int DV, bool CAUSAL, bool AHEAD, int Q_HELD, int DOUT_HELD, int K_STAGES, int V_STAGES>
ROOFTILE_DEVICE void own_queries(const TensorMap& tDq, char* sX, QueriesRings<K_STAGES, V_STAGES>& sR, const float* gRows, const Queries& w, int half, int T_,
                                 int S, float scale, float scale_log2) {
  using At = QueriesPlace<D, DV, K_STAGES, V_STAGES>;
  const int i_t = w.i_t + half * BLOCK, i_query = i_t + wgmma_row(0), last = CAUSAL ? S - T_ : NEVER;  // a query sees keys up to itself + last
  char *sQ = sX + At::Q + half * TILE<D>, *sDout = sX + At::DOUT + half * TILE<DV>;
  float dq[D / 2], s[32], dp[32], lse[2], delta[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const bool real = i_t < T_;  // rows are kept up to the end of a block of 64, and no further
    const float* gRow = gRows + w.i_row + i_t * 2 + wgmma_row(2 * n);
    lse[n] = real ? gRow[0] : __uint_as_float(0x7f800000u), delta[n] = real ? gRow[BLOCK] : 0.0f;
  }
  Held<Q_HELD> q;
  Held<DOUT_HELD> dout;
  Stage<K_STAGES> at_k;
  Stage<V_STAGES> at_v;
  mbarrier_wait(&sR.home, 0);
  if (w.count == 0) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dq[i] = 0.0f;
  } else {
    hold(q, sQ);
    hold(dout, sDout);
    consumer_wait(sR.k, at_k);
    scores<T, D>(s, q, sQ, sX + At::K);
    wgmma_wait<0>(s);
    int left = w.count;
    do {
      unsigned ds16[4][4];
      const int i_s = (left - 1) * BLOCK;
      consumer_wait(sR.v, at_v);
      scores<T, DV>(dp, dout, sDout, sX + At::V + at_v.index * TILE<DV>);
      float x[32];
#pragma unroll
      for (int j = 0; j < 32; ++j) x[j] = fmaf(s[j], scale_log2, -lse[j / 2 % 2]);
      Stage<K_STAGES> next = at_k;
      if (left > 1) ++next;  // after the last tile its own S is made again, and not read
      if (AHEAD) {
        if (left > 1) consumer_wait(sR.k, next);
        scores<T, D>(s, q, sQ, sX + At::K + next.index * TILE<D>);
      }
#pragma unroll
      for (int j = 0; j < 32; ++j) x[j] = exp2_fast(x[j]);
      if (i_s + BLOCK > S || (CAUSAL && i_s + BLOCK - 1 > i_t + last)) {  // a key past S: p may be inf, and inf times 0 would be NaN
        const int mine = i_s + wgmma_column(0), low = min(S - 1, CAUSAL ? i_query + last : NEVER) - mine,
                  high = min(S - 1, CAUSAL ? i_query + 8 + last : NEVER) - mine;
#pragma unroll
        for (int j = 0; j < 32; ++j)
          if (j / 4 * 8 + j % 2 > (j / 2 % 2 ? high : low)) x[j] = 0.0f;
      }
      unsigned done[8][4];
#pragma unroll
      for (int j = 0; j < 32; ++j) done[j / 4][j % 4] = __float_as_uint(x[j]);
      finish_first(done);
      wgmma_wait<AHEAD>(dp);
      consumer_release(sR.v, at_v);
      ++at_v;
#pragma unroll
      for (int j = 0; j < 32; j += 2)
        ds16[j / 8][j / 2 % 4] = pack_pair(T(), x[j] * (dp[j] - delta[j / 2 % 2]), x[j + 1] * (dp[j + 1] - delta[j / 2 % 2]));
      gradient<T, D>(dq, ds16, sX + At::K + at_k.index * TILE<D>, left < w.count);
      if (!AHEAD) {
        if (left > 1) consumer_wait(sR.k, next);
        scores<T, D>(s, q, sQ, sX + At::K + next.index * TILE<D>);
      }
      wgmma_wait<0>(s, dq);
      consumer_release(sR.k, at_k);
      at_k = next;
    } while (--left > 0);
  }
  store_rows<T, D>(tDq, sQ, dq, scale, w.i_h, i_t, w.i_b);
}

template <typename T, int D, int DV, bool CAUSAL, int K_STAGES, int V_STAGES, int Q_HELD, int DOUT_HELD, bool AHEAD>
__global__ void __launch_bounds__(384, 1)
    queries(const __grid_constant__ TensorMap tDq, const __grid_constant__ TensorMap tQ, const __grid_constant__ TensorMap tK,
            const __grid_constant__ TensorMap tV, const __grid_constant__ TensorMap tDout, const float* gRows, int H, int group, int T_, int S, float scale,
            float scale_log2) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ QueriesRings<K_STAGES, V_STAGES> sR;
  const Queries& w = sR.work;
  if (threadIdx.x == 0) {
    sR.work = queries_of(CAUSAL, H, group, T_, S);
    mbarrier_init(&sR.home, 1);
    pipeline_init(sR.k, 1, 8);
    pipeline_init(sR.v, 1, 8);
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_lower<24>();
    using At = QueriesPlace<D, DV, K_STAGES, V_STAGES>;
    if (threadIdx.x == 256) {
      mbarrier_arrive_expect(&sR.home, 2 * (TILE<D> + TILE<DV>));
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        bring<D>(sX + At::Q + half * TILE<D>, tQ, &sR.home, w.i_h, w.i_t + half * BLOCK, w.i_b);
        bring<DV>(sX + At::DOUT + half * TILE<DV>, tDout, &sR.home, w.i_h, w.i_t + half * BLOCK, w.i_b);
      }
      bring_keys<D>(sX + At::K, sR.k, tK, w);
    }
    if (threadIdx.x == 256 + WARP) bring_keys<DV>(sX + At::V, sR.v, tV, w);
  } else {
    registers_raise<240>();
    own_queries<T, D, DV, CAUSAL, AHEAD, Q_HELD, DOUT_HELD>(tDq, sX, sR, gRows, w, threadIdx.x / 128, T_, S, scale, scale_log2);
  }
}

// ---- rows --------------------------------------------------------------------------------------------------------------------

// 2048 / DV queries a block.
template <typename T, int DV>
__global__ void __launch_bounds__(256)
    prepare(float* gRows, const T* gDout, const T* gOut, const float* gLse, int H, int T_, long long stride_gb, long long stride_gt, long long stride_gh,
            long long stride_ob, long long stride_ot, long long stride_oh) {
  constexpr int LANES = DV / 8, ROWS = 256 / LANES;
  const int padded = ceil_div(T_, BLOCK) * BLOCK, chunks = padded / ROWS, i_bh = blockIdx.x / chunks;
  const int i_t = blockIdx.x % chunks * ROWS + threadIdx.x / LANES, i_d = threadIdx.x % LANES * 8;
  prepare_query<BLOCK, DV>(gRows, head(gDout, stride_gb, stride_gt, stride_gh, i_bh, H), head(gOut, stride_ob, stride_ot, stride_oh, i_bh, H), gLse, i_bh,
                           i_t, i_d, T_, padded);
}
