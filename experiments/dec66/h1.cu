// adds: a warp has tiles of 16 keys to itself, with the next on their way and no barrier; a lane's part of an operand is 16 bytes of a row, whole words as they lie
// costs: which element a lane has of a row follows from its place in the product, so that queries, weights and results are dealt out the same way
// loses when: more than 32 rows (queries x heads of one key head) share keys, or a key is not 128 or 256 bytes: it takes no others
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/approximate.cuh"
#include "rooftile/early.cuh"
#include "rooftile/float8.cuh"
#include "rooftile/mma.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int KEYS = 16;  // of a tile: the scores' rows in mma.m16n8k16, and the depth of weights times values
constexpr float LN2 = 0.6931471805599453f, LOG2E = 1.4426950408889634f;

// What a cache of C is multiplied as. 8 bits become float16, two in an instruction, which holds every one of them; and weights are lifted by 2^15, below which
// float16 ends.
template <typename C> struct Factor {
  using type = C;
};
template <> struct Factor<unsigned char> {
  using type = __half;
};
template <typename F> constexpr int LIFT = 0;
template <> constexpr int LIFT<__half> = 15;
template <typename E, typename C> constexpr bool HALVED = false;  // whether queries become float16
template <> constexpr bool HALVED<__nv_bfloat16, unsigned char> = true;

// Two neighbours of 8 bits, in the low half of a word.
ROOFTILE_DEVICE unsigned halves(unsigned both) {
#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 890
  unsigned wide;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"((unsigned short)both));
  return wide;
#else
  const __half2 wide = __floats2half2_rn(widen_by_hand<E4M3>(both & 0xffu), widen_by_hand<E4M3>(both >> 8 & 0xffu));
  return *reinterpret_cast<const unsigned*>(&wide);
#endif
}

// Four neighbours of 8 bits.
ROOFTILE_DEVICE void halves(unsigned four, unsigned& low, unsigned& high) {
#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(low), "=r"(high) : "r"(four));
#else
  low = halves(four), high = halves(four >> 16);
#endif
}

ROOFTILE_DEVICE unsigned pack(float a, float b, __half) {
  const __half2 both = __floats2half2_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&both);
}
ROOFTILE_DEVICE unsigned pack(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&both);
}

// A matrix of 8 x 8 elements of 16 bits, of which lane 4 g + t holds columns 2 t and 2 t + 1 of row g, the other way round.
ROOFTILE_DEVICE unsigned turned(unsigned pair) {
#ifdef ROOFTILE_SIMULATOR
  unsigned all[WARP];
  rooftile_sim_exchange(ALL_LANES, &pair, 4, all, "movmatrix");
  const int column = lane() / 4, row = lane() % 4 * 2, by = column % 2 * 16;
  return (all[row * 4 + column / 2] >> by & 0xffffu) | (all[(row + 1) * 4 + column / 2] >> by & 0xffffu) << 16;
#else
  unsigned out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
#endif
}

// Where a piece of a row lies, such that eight lanes that read 64 bytes of two neighbouring rows, or 32 of every other of eight, meet no bank twice.
template <int PIECES> ROOFTILE_DEVICE int at(int row, int piece) { return row * PIECES + (piece ^ (row & 6) ^ (row & 1) << 2); }

template <typename S> ROOFTILE_DEVICE void with_sink(float& most, float& sum, float& shrink, const S* gSink) {  // a score more, to base 2
  const float sink = float(*gSink) * LOG2E, next = Max()(most, sink), base = next == -__int_as_float(0x7f800000) ? 0.0f : next;
  shrink = exp2_fast(most - base);
  sum = sum * shrink + exp2_fast(sink - base);
  most = next;
}

// A block has a share of one sequence's keys for the rows (queries x heads) of one key head, and its warps the tiles of it in turn. Scores are K Q^T, the
// result is V^T P^T: keys, then columns of values, are the rows of 16, and eight rows of queries are the columns, with nothing in between but P turned.
// Lane 4 g + t: of K keys g and g + 8, of each 64 bytes of a row 16 from 16 t on; of V keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, of each 128 bytes of a row 16 from
// 16 g on. Which place of the product an element takes is free as long as its partner takes the same. Eight lanes copy 128 neighbouring bytes; asking for
// what they want themselves, 64 or 32 of a row at a time, took a third as long again.
template <typename E, typename C, typename S, int D, int TILES, bool PAGED, int STAGES, int WARPS, int PER>
__global__ void __launch_bounds__(WARPS* WARP, PER)
    shares(E* __restrict__ gOut, float* __restrict__ gLse, float* __restrict__ gPart, float* __restrict__ gPartMax, float* __restrict__ gPartSum,
           const E* __restrict__ gQ, const C* __restrict__ gK, const C* __restrict__ gV, const int* __restrict__ gLengths, const int* __restrict__ gTable,
           const S* __restrict__ gSinks, const float* __restrict__ gKs, const float* __restrict__ gVs, long long bytes, int T, int group, int room, int pages,
           int page, int window, int sinks, int k_scaled, int v_scaled, float scale, float softcap, long long q_b, long long q_t,
           long long q_h, long long k_m, long long k_s, long long k_g, long long v_m, long long v_s, long long v_g, long long stride_length,
           long long stride_row, long long stride_page, long long stride_sink, long long stride_ks, long long stride_vs) {
  using F = typename Factor<C>::type;
  constexpr int EACH = 16 / sizeof(C), K_LOADS = D / (4 * EACH), V_LOADS = D / (8 * EACH), STEPS = D / 16, QUERIES = 8 * TILES;
  constexpr int PIECES = D / EACH, TILE = KEYS * PIECES;  // 16 bytes each, of a row and of a tile
  constexpr bool BYTES = sizeof(C) == 1;
  static_assert(PIECES == 8 || PIECES == 16, "rows of 128 or 256 bytes, whose pieces are dealt out to the banks by `at`");
  extern __shared__ __align__(128) uint4 sPieces[];  // [WARPS, STAGES, 2, KEYS, PIECES]
  constexpr bool KEPT = TILES <= 2;  // queries in registers; of more rows they are read from shared memory for each tile
  __shared__ uint2 sQ[KEPT ? 1 : TILES * STEPS * WARP];
  __shared__ float sMax[WARPS][QUERIES], sSum[WARPS][QUERIES];
  const float INF = __int_as_float(0x7f800000), NOT = __int_as_float(0x7fffffff);
  const int l = lane(), g = l / 4, t = l % 4, w = warp(), rows = T * group;
  const int i_s = blockIdx.x, splits = gridDim.x, i_g = blockIdx.y, step = splits * WARPS * KEYS;
  const long long i_b = blockIdx.z;
  auto checked = [&](int length) { return 0 <= length && length <= room ? length : -1; };  // or none of its keys is read, and all becomes NaN
  const int* gLength = gLengths + i_b * stride_length;
  int n = (i_s * WARPS + w) * KEYS;
  if (window) {  // a load of its own: nobody else waits yet
    const int first = max(checked(*static_cast<const volatile int*>(gLength)) - T - window + 1, 0);
    n += PAGED ? first / KEYS * KEYS : first;  // no tile lies in two pages
  }
  // Where the next 32 tiles lie, a lane each, and the 32 behind them: a lookup takes as long as a tile where the memory is busy, and none waits for one.
  const int* gRow = PAGED ? gTable + i_b * stride_row : nullptr;
  int2 here, later;  // page, and row in it
  auto look_up = [&](int from) {  // beside the length: it decides nothing where that ends before
    const int at = from + l * step, entry = at / page;
    return make_int2(at < room ? gRow[entry * stride_page] : 0, at - entry * page);
  };
  int looked_up = 0;  // of these 32
  if constexpr (PAGED) here = look_up(n), later = look_up(n + WARP * step);
  const int i_row = l / PIECES, i_piece = l % PIECES;  // a lane's part of a copy, which is of 4 rows or 2
  const C* gKeys = gK + i_g * k_g + (PAGED ? 0 : i_b * k_m) + i_piece * EACH;
  const C* gValues = gV + i_g * v_g + (PAGED ? 0 : i_b * v_m) + i_piece * EACH;
  const Policy policy = evict_first(bytes);  // of what may be there; each is read once
  uint4* sWarp = sPieces + w * (STAGES * 2 * TILE);
  unsigned missing = 0;  // a bit for each tile on its way whose page does not exist: page 0 comes in its place, and its scores become NaN
  const int length = checked(*gLength);
  const int lowest = PAGED && window ? length - T - window + 1 : 0;  // the first key that any query sees, where a tile begins before it
  auto ask = [&](int ahead, int stage) {
    const int from = n + ahead * step;
    const C *gFromK = gKeys, *gFromV = gValues;
    int row = from + i_row;
    if constexpr (PAGED) {
      const int i_page = __shfl_sync(ALL_LANES, here.x, looked_up);
      row = __shfl_sync(ALL_LANES, here.y, looked_up) + i_row;
      if (++looked_up == WARP) looked_up = 0, here = later, later = look_up(from + (WARP + 1) * step);
      const bool known = 0 <= i_page && i_page < pages;
      if (!known) missing |= 1u << ahead;
      const long long m = known ? i_page : 0;
      gFromK += m * k_m, gFromV += m * v_m;
    }
    gFromK += row * k_s, gFromV += row * v_s;
    uint4* sTile = sWarp + stage * (2 * TILE);
#pragma unroll
    for (int row = 0; row < KEYS; row += WARP / PIECES) {
      const bool there = (!PAGED || from + row + i_row >= lowest) && from + row + i_row < length;  // or zeros: a weight of zero times what nobody may read could be NaN
      const int to = at<PIECES>(row + i_row, i_piece);
      copy_async(sTile + to, gFromK + row * k_s, there, policy);
      copy_async(sTile + TILE + to, gFromV + row * v_s, there, policy);
    }
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) ask(i, i);

  unsigned rQ[KEPT ? TILES : 1][STEPS][2];
  float rScale[TILES][2], rMax[TILES][2], rBase[TILES][2], rSum[TILES][2] = {};
  int rLast[TILES][2];  // the last key that a row sees
  if (k_scaled) scale *= gKs[i_g * stride_ks];
  const float cap = softcap > 0.0f ? softcap * LOG2E : 0.0f;
  scale *= softcap > 0.0f ? 1.0f / softcap : LOG2E;
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    const int m = 8 * j + g, i_t = m / group;
    const E* gQuery = gQ + i_b * q_b + i_t * q_t + (i_g * group + m - i_t * group) * q_h + t * EACH;
    unsigned(&rMine)[STEPS][2] = rQ[KEPT ? j : 0];
    float power = 1.0f;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      Vec<unsigned, 2> rWords;
      fill(rWords, 0u);
      if (m < rows) load(rWords, reinterpret_cast<const unsigned*>(gQuery + k / (EACH / 4) * 4 * EACH + k % (EACH / 4) * 4));
      rMine[k][0] = rWords[0], rMine[k][1] = rWords[1];
    }
    if constexpr (HALVED<E, C>) {  // bfloat16 as float16: exact but for what is 2^-24 of its row's largest
      float most = 0.0f;
      auto each = [&](auto&& f) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i) f(rMine[k][i], __uint_as_float(rMine[k][i] << 16), __uint_as_float(rMine[k][i] & 0xffff0000u));
      };
      each([&](unsigned&, float a, float b) { most = fmaxf(most, fmaxf(fabsf(a), fabsf(b))); });
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, distance));
      const int exponent = min(max(int(__float_as_uint(most) >> 23), 1), 253);  // with an inverse
      const float by = __int_as_float((254 - exponent) << 23);
      each([&](unsigned& both, float a, float b) { both = pack(a * by, b * by, __half()); });
      power = __int_as_float(exponent << 23);
    }
    if (!KEPT && w == j % WARPS) {
#pragma unroll
      for (int k = 0; k < STEPS; ++k) sQ[(j * STEPS + k) * WARP + l] = make_uint2(rMine[k][0], rMine[k][1]);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int from = (2 * t + e) * 4;  // who has looked at that row
      rScale[j][e] = scale * __shfl_sync(ALL_LANES, power, from);
      rLast[j][e] = length - T + __shfl_sync(ALL_LANES, i_t, from);
      rMax[j][e] = -INF, rBase[j][e] = -float(LIFT<F>);
    }
  }
  if (!KEPT) __syncthreads();
  float rAcc[TILES][STEPS][4] = {};
  const int whole = window ? 0 : length - T + 1;  // keys before it are seen by all queries
  int stage = 0;
  for (; n < length; n += step) {
    const uint4* sK = sWarp + stage * (2 * TILE);
    const uint4* sV = sK + TILE;
    copy_wait<STAGES - 2>();
    __syncwarp();
    ask(STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);  // where the tile before this one was
    float rS[TILES][4] = {};
#pragma unroll
    for (int c = 0; c < K_LOADS; ++c) {
      Vec<unsigned, 4> rK[2];
#pragma unroll
      for (int o = 0; o < 2; ++o) rK[o].whole = sK[at<PIECES>(8 * o + g, 4 * c + t)];
#pragma unroll
      for (int i = 0; i < EACH / 4; ++i) {
        unsigned a[4];
        if constexpr (BYTES) {
#pragma unroll
          for (int o = 0; o < 2; ++o) halves(rK[o][i], a[o], a[2 + o]);
        } else {
#pragma unroll
          for (int o = 0; o < 2; ++o) a[o] = rK[o][2 * i], a[2 + o] = rK[o][2 * i + 1];
        }
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
          const int k = c * (EACH / 4) + i;
          if constexpr (KEPT) {
            mma_m16n8k16<F>(rS[j], a, rQ[j][k]);
          } else {
            const uint2 both = sQ[(j * STEPS + k) * WARP + l];
            mma_m16n8k16<F>(rS[j], a, {both.x, both.y});
          }
        }
      }
    }
    const bool exists = !PAGED || !(missing & 1), masked = n + KEYS > whole;
    missing >>= 1;
    bool more = false;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = rS[j][i];
        x *= rScale[j][i % 2];
        if (cap > 0.0f) x = tanhf(x) * cap;
        if (!exists) x = NOT;
        if (masked) {
          const int key = n + i / 2 * 8 + g, last = rLast[j][i % 2];
          if (key > last || (window && key <= last - window)) x = -INF;
        }
        more |= x > rMax[j][i % 2];
      }
    if (__any_sync(ALL_LANES, more)) {
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float most = fmaxf(rMax[j][e], fmaxf(rS[j][e], rS[j][2 + e]));
#pragma unroll
          for (int distance = 4; distance < WARP; distance *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, distance));
          const float base = most == -INF ? 0.0f : most, shrink = exp2_fast(rMax[j][e] - base);
          rMax[j][e] = most, rBase[j][e] = base - LIFT<F>, rSum[j][e] *= shrink;
#pragma unroll
          for (int m = 0; m < STEPS; ++m) rAcc[j][m][e] *= shrink, rAcc[j][m][2 + e] *= shrink;
        }
    }
    unsigned rP[TILES][2];
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int o = 0; o < 2; ++o) {
        const float a = exp2_fast(rS[j][2 * o] - rBase[j][0]), b = exp2_fast(rS[j][2 * o + 1] - rBase[j][1]);
        rSum[j][0] += a, rSum[j][1] += b;
        rP[j][o] = turned(pack(a, b, F()));
      }
#pragma unroll
    for (int c = 0; c < V_LOADS; ++c) {
      Vec<unsigned, 4> rV[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) rV[r].whole = sV[at<PIECES>(2 * t + r % 2 + r / 2 * 8, 8 * c + g)];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int u = 0; u < (BYTES ? 2 : 1); ++u) {  // two columns of values
          unsigned a[4];
#pragma unroll
          for (int o = 0; o < 2; ++o) {
            const unsigned one = rV[2 * o][i], two = rV[2 * o + 1][i];  // of a key and the next
            if constexpr (BYTES) {
              const unsigned both = __byte_perm(one, two, u ? 0x7362 : 0x5140);
              halves(both, a[2 * o], a[2 * o + 1]);
            } else {
              a[2 * o] = __byte_perm(one, two, 0x5410), a[2 * o + 1] = __byte_perm(one, two, 0x7632);
            }
          }
#pragma unroll
          for (int j = 0; j < TILES; ++j) mma_m16n8k16<F>(rAcc[j][(c * 4 + i) * (BYTES ? 2 : 1) + u], a, rP[j]);
        }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  let_next_stand_by();
  copy_wait<0>();
  __syncthreads();
  float* sAcc = reinterpret_cast<float*>(sPieces);  // [WARPS, rows, D]

#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = rSum[j][e];
#pragma unroll
      for (int distance = 4; distance < WARP; distance *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
      const int m = 8 * j + 2 * t + e;
      if (g == 0) sMax[w][m] = rMax[j][e], sSum[w][m] = sum;
      if (m < rows) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
          const int d = k / (EACH / 2) * 8 * EACH + g * EACH + k % (EACH / 2) * 2;
          *reinterpret_cast<float2*>(sAcc + (w * rows + m) * D + d) = make_float2(rAcc[j][k][e], rAcc[j][k][2 + e]);
        }
      }
    }
  __syncthreads();
  const int H = int(gridDim.y) * group;
  const float share = v_scaled ? gVs[i_g * stride_vs] : 1.0f;
  for (int i = threadIdx.x; i < rows * (D / 4); i += WARPS * WARP) {
    const int m = i / (D / 4), d = i % (D / 4) * 4, i_h = i_g * group + m % group, i_t = m / group;
    float most = -INF, sum = 0.0f, rOut[4] = {};
#pragma unroll
    for (int o = 0; o < WARPS; ++o) most = fmaxf(most, sMax[o][m]);
    const float base = most == -INF ? 0.0f : most;
#pragma unroll
    for (int o = 0; o < WARPS; ++o) {
      const float by = exp2_fast(sMax[o][m] - base);
      const float4 part = *reinterpret_cast<const float4*>(sAcc + (o * rows + m) * D + d);
      sum += sSum[o][m] * by;
      rOut[0] += part.x * by, rOut[1] += part.y * by, rOut[2] += part.z * by, rOut[3] += part.w * by;
    }
    if (length < 0) sum = NOT;
    most -= LIFT<F>;  // the sums are 2^LIFT of what they are
    const long long row = (i_b * T + i_t) * H + i_h;
    float by = share;
    if (splits > 1) {
      const long long part = (i_s * (long long)gridDim.z * T) * H + row;
      *reinterpret_cast<float4*>(gPart + part * D + d) = make_float4(rOut[0] * by, rOut[1] * by, rOut[2] * by, rOut[3] * by);
      if (d == 0) gPartMax[part] = most, gPartSum[part] = sum;
    } else {
      if (sinks) {
        float shrink;
        with_sink(most, sum, shrink, gSinks + i_h * stride_sink);
        by *= shrink;
      }
      by /= sum == 0.0f ? 1.0f : sum;
      Vec<E, 4> rE;
#pragma unroll
      for (int k = 0; k < 4; ++k) rE[k] = E(rOut[k] * by);
      store(gOut + row * D + d, rE);
      if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;
    }
  }
}

// A block a row (sequence, query, head): its splits, a quarter to each of its groups of D / 4 threads, added in one order.
template <typename E, typename S, int D>
__global__ void ROOFTILE_EARLY __launch_bounds__(D) combine(E* __restrict__ gOut, float* __restrict__ gLse, const float* __restrict__ gPart,
                                                            const float* __restrict__ gPartMax, const float* __restrict__ gPartSum,
                                                            const S* __restrict__ gSinks, long long M, int T, int H, int splits, int sinks,
                                                            long long stride_sink) {
  constexpr int GROUPS = 4, FIRST = 4;  // splits of a group that are asked for beside the maxima
  __shared__ float4 sOut[GROUPS][D / 4];
  __shared__ float sSum[GROUPS];
  const float INF = __int_as_float(0x7f800000);
  const int part = int(threadIdx.x) / (D / 4), d = int(threadIdx.x) % (D / 4);
  const long long row = blockIdx.x;
  const int i_h = int(row % H), i_t = int(row / H % T);
  const long long i_b = row / H / T;
  earlier_done();
  float most = -INF, sum = 0.0f, rOut[4] = {};
  struct {
    float4 x;
    float most, sum;
  } rFirst[FIRST];
  auto read = [&](auto& r, int i) {
    const long long at = i * M + row;
    r = {*reinterpret_cast<const float4*>(gPart + at * D + 4 * d), gPartMax[at], gPartSum[at]};
  };
#pragma unroll
  for (int k = 0; k < FIRST; ++k) read(rFirst[k], min(part + k * GROUPS, splits - 1));
  for (int i = lane(); i < splits; i += WARP) most = fmaxf(most, gPartMax[i * M + row]);
  most = warp_reduce(most, Max());
  const float base = most == -INF ? 0.0f : most;
  auto add = [&](const auto& r) {
    const float by = exp2_fast(r.most - base);
    sum += r.sum * by;
    rOut[0] += r.x.x * by, rOut[1] += r.x.y * by, rOut[2] += r.x.z * by, rOut[3] += r.x.w * by;
  };
#pragma unroll
  for (int k = 0; k < FIRST; ++k)
    if (part + k * GROUPS < splits) add(rFirst[k]);
#pragma unroll 4
  for (int i = part + FIRST * GROUPS; i < splits; i += GROUPS) read(rFirst[0], i), add(rFirst[0]);
  sOut[part][d] = make_float4(rOut[0], rOut[1], rOut[2], rOut[3]);
  if (d == 0) sSum[part] = sum;
  __syncthreads();
  if (part != 0) return;
#pragma unroll
  for (int other = 1; other < GROUPS; ++other) {
    const float4 x = sOut[other][d];
    sum += sSum[other];
    rOut[0] += x.x, rOut[1] += x.y, rOut[2] += x.z, rOut[3] += x.w;
  }
  float by = 1.0f;
  if (sinks) with_sink(most, sum, by, gSinks + i_h * stride_sink);
  by /= sum == 0.0f ? 1.0f : sum;
  Vec<E, 4> rE;
#pragma unroll
  for (int k = 0; k < 4; ++k) rE[k] = E(rOut[k] * by);
  store(gOut + row * D + 4 * d, rE);
  if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;
}
