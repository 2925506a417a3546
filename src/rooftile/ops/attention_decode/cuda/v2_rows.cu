// adds: keys split over blocks; the copy engine brings whole rows of the cache, all key heads of a key; a warp has a head, tensor cores, sums in registers
// costs: key heads that lie one behind the other; sums of each share in memory and a launch that adds them up; a tile of 16 rows however few queries there are
// loses when: the shares are short, or there are more than 16 rows of queries a key head
#include "rooftile/attention.cuh"
#include "rooftile/early.cuh"
#include "rooftile/fragments.cuh"
#include "rooftile/mma.cuh"
#include "rooftile/passing.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/wgmma.cuh"

using namespace rooftile;

constexpr int WARPS = 8, ROWS = 16;  // warps that multiply, and a warp's rows of queries and of keys: a mma's

// A cache of 16 bits. Of a product of 16 x 8 a lane holds r[2 h + e]: row lane / 4 + 8 h, column lane % 4 * 2 + e.
template <typename X, typename C, int D> struct Tile {
  static constexpr int LIFT = 0;
  unsigned q[D / 16][4];

  // The rows before `rows` of 16; returns nothing to scale by.
  template <typename Row> ROOFTILE_DEVICE void queries(Row&& row_at, int rows, float (&power)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane() / 4 + 8 * h;
      const X* from = row_at(row) + lane() % 4 * 2;
      power[h] = 1.0f;
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int e = 0; e < 2; ++e) q[k][h + 2 * e] = row < rows ? *reinterpret_cast<const unsigned*>(from + 16 * k + 8 * e) : 0u;
    }
  }
  ROOFTILE_DEVICE void products(float (&s)[2][4], const char* sK, int pitch) const {
    sK += (lane() % 8 + lane() / 16 * 8) * pitch + lane() / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      unsigned b[4];
      ldmatrix(b, sK + 32 * k);
      const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_m16n8k16<X>(s[0], q[k], left);
      mma_m16n8k16<X>(s[1], q[k], right);
    }
  }
  // sums += p V
  static ROOFTILE_DEVICE void add(float (&sums)[D / 8][4], const float (&p)[2][4], const char* sV, int pitch) {
    sV += lane() % 16 * pitch + lane() / 16 * 16;
    unsigned a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack_pair(X(), p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      ldmatrix_transposed(b, sV + 32 * n);
      const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_m16n8k16<X>(sums[2 * n], a, left);
      mma_m16n8k16<X>(sums[2 * n + 1], a, right);
    }
  }
  // Of sums[2 n] and sums[2 n + 1], row h: pair i of neighbouring columns, and the first of them less 16 n.
  static ROOFTILE_DEVICE float2 pair(const float (&first)[4], const float (&second)[4], int h, int i) {
    return i == 0 ? make_float2(first[2 * h], first[2 * h + 1]) : make_float2(second[2 * h], second[2 * h + 1]);
  }
  static ROOFTILE_DEVICE int column(int i) { return 8 * i + lane() % 4 * 2; }
};

// Two of e4m3 as float16, exactly, the first of them in the low byte. By hand, from their bits: as a float16's they are 2^8 too small, subnormals as well.
ROOFTILE_DEVICE unsigned halves(unsigned two) {
#ifdef ROOFTILE_SIMULATOR
  const unsigned at = (two & 0x80u) << 8 | (two & 0x7fu) << 7 | (two & 0x8000u) << 16 | (two & 0x7f00u) << 15;
  const float2 x = unpack_pair(__half(), at);
  const float nan = __int_as_float(0x7fffffff);
  return pack_pair(__half(), (two & 0x7fu) == 0x7fu ? nan : x.x * 256.0f, (two & 0x7f00u) == 0x7f00u ? nan : x.y * 256.0f);
#else
  unsigned both;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"((unsigned short)two));
  return both;
#endif
}

// A cache of 8 bits. Of 64 columns of a key a lane reads 16 that lie together, so the products' columns are not in their order: slot 2 t + 8 p + e of step j
// is column 16 t + 4 j + 2 p + e, of queries as of keys. Values are transposed in pairs of columns, and the sums' columns are the even and the odd ones.
// Queries of bfloat16 are divided by a power of 2 a row, weights lifted by 2^15, beyond which float16 ends.
template <typename X> constexpr bool HALF = false;
template <> constexpr bool HALF<__half> = true;
template <typename X, int D> struct Tile<X, unsigned char, D> {
  static constexpr int LIFT = 15;
  unsigned q[D / 16][4];

  template <typename Row> ROOFTILE_DEVICE void queries(Row&& row_at, int rows, float (&power)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane() / 4 + 8 * h;
      const X* from = row_at(row) + lane() % 4 * 16;
      float largest = 0.0f;
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const unsigned two = row < rows ? *reinterpret_cast<const unsigned*>(from + k / 4 * 64 + k % 4 * 4 + 2 * p) : 0u;
          const float2 x = unpack_pair(X(), two);
          largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
          q[k][h + 2 * p] = two;
        }
      const int exponent = min(max(__float_as_int(warp_reduce<4>(largest, Max())) >> 23, 1), 253);  // with an inverse
      power[h] = HALF<X> ? 1.0f : __int_as_float(exponent << 23);
      const float inverse = HALF<X> ? 1.0f : __int_as_float((254 - exponent) << 23);
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const float2 x = unpack_pair(X(), q[k][h + 2 * p]);
          q[k][h + 2 * p] = pack_pair(__half(), x.x * inverse, x.y * inverse);
        }
    }
  }
  ROOFTILE_DEVICE void products(float (&s)[2][4], const char* sK, int pitch) const {
    sK += lane() / 4 * pitch + lane() % 4 * 16;
#pragma unroll
    for (int k = 0; k < D / 64; ++k)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint4 all = *reinterpret_cast<const uint4*>(sK + n * 8 * pitch + 64 * k);
        const unsigned words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const unsigned b[2] = {halves(words[j] & 0xffffu), halves(words[j] >> 16)};
          mma_m16n8k16<__half>(s[n], q[4 * k + j], b);
        }
      }
  }
  static ROOFTILE_DEVICE void add(float (&sums)[D / 8][4], const float (&p)[2][4], const char* sV, int pitch) {
    sV += lane() % 16 * pitch + lane() / 16 * 16;
    unsigned a[4], words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack_pair(__half(), p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 32; ++n) {
      ldmatrix_transposed(words, sV + 32 * n);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        unsigned even[2], odd[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const unsigned first = halves(words[2 * m + i] & 0xffffu), second = halves(words[2 * m + i] >> 16);
          even[i] = __byte_perm(first, second, 0x5410), odd[i] = __byte_perm(first, second, 0x7632);
        }
        mma_m16n8k16<__half>(sums[4 * n + 2 * m], a, even);
        mma_m16n8k16<__half>(sums[4 * n + 2 * m + 1], a, odd);
      }
    }
  }
  static ROOFTILE_DEVICE float2 pair(const float (&even)[4], const float (&odd)[4], int h, int i) { return make_float2(even[2 * h + i], odd[2 * h + i]); }
  static ROOFTILE_DEVICE int column(int i) { return lane() % 4 * 4 + 2 * i; }
};

// Of one row: what is left when a sink has its share, and how much of the sums that is.
struct Share {
  float max, sum, factor;
};
template <typename W> ROOFTILE_DEVICE Share with_sink(float max, float sum, const W* gSink) {
  const float sink = float(*gSink) * LOG2E, larger = Max()(max, sink), base = base_of(larger), factor = exp2_fast(max - base);
  return {larger, sum * factor + exp2_fast(sink - base), factor};
}

// HEADS key heads of a sequence, and a share of its keys. page 0: the cache is contiguous. A length or a page that does not exist makes its sequence NaN.
// One split: its result is the result. Lines in shared memory are 16 bytes longer than rows: 8 lines of a matrix lie in 8 different groups of 4 banks.
template <typename X, typename C, typename W, int D, int HEADS, int STAGES>
__global__ void __launch_bounds__(288, 1)
    split(X* gOut, float* gLse, float* gPart, float* gPartMax, float* gPartSum, const X* gQ, const C* gK, const C* gV, const int* gLengths,
          const int* gTable, const W* gSinks, const float* gKs, const float* gVs, int B, int T, int H, int G, int room, int pages, int page, int splits, int window, bool sinks, bool k_scaled,
          bool v_scaled, float scale, float softcap, long long bytes, long long q_b, long long q_t, long long q_h, long long k_m, long long k_s, long long v_m, long long v_s,
          long long stride_length, long long stride_row, long long stride_page, long long stride_sink, long long stride_ks,
          long long stride_vs) {
  constexpr int GROUPS = WARPS / HEADS, KEYS = ROWS * GROUPS, ROW = HEADS * D * int(sizeof(C)), PITCH = ROW + 16, TILE = KEYS * PITCH;
  extern __shared__ __align__(128) char sTiles[];
  __shared__ Pipeline<STAGES> sRing;
  __shared__ int sNowhere;
  const int i_s = int(blockIdx.x) % splits, blocks = G / HEADS, first_g = int(blockIdx.x) / splits % blocks * HEADS;
  const long long i_b = blockIdx.x / splits / blocks;
  const int given = gLengths[i_b * stride_length], group = H / G, rows = T * group, i_g = first_g + warp() % HEADS;
  if (threadIdx.x == 0) {
    pipeline_init(sRing, 1, WARPS);
    sNowhere = given < 0 || given > room;
  }
  let_next_stand_by();
  const int length = given < 0 || given > room ? 0 : given;
  // Tiles are dealt out to the shares in turn: what is read at a time lies together.
  const int mine = (window ? max(length - T - window + 1, 0) / KEYS : 0) + i_s, count = max(0, ceil_div(ceil_div(length, KEYS) - mine, splits));
  float out[D / 8][4] = {}, max[2] = {minus_inf(), minus_inf()}, sum[2] = {0.0f, 0.0f};
  Stage<STAGES> at;
  __syncthreads();  // the ring is there

  if (warp() == WARPS) {
    constexpr int EACH = 2 * KEYS / WARP;  // rows a lane asks for: keys' and then values'
    const Policy policy = evict_first(bytes);
    int ahead[EACH];  // the next tile's pages, asked for a tile before they lead to keys
    auto key = [&](int i, int j) { return min((mine + i * splits) * KEYS + (lane() + j * WARP) % KEYS, length - 1); };  // past the end the last, for zero weights
    auto look = [&](int i) {
#pragma unroll
      for (int j = 0; j < EACH; ++j) ahead[j] = page && i < count ? gTable[i_b * stride_row + key(i, j) / page * stride_page] : 0;
    };
    look(0);
    for (int i = 0; i < count; ++i, ++at) {
      if (lane() == 0) producer_acquire(sRing, at, 2 * KEYS * ROW);
      __syncwarp();
#pragma unroll
      for (int j = 0; j < EACH; ++j) {
        const int line = lane() + j * WARP;
        long long m = i_b, s = key(i, j);
        if (page) {
          const bool known = ahead[j] >= 0 && ahead[j] < pages;
          if (!known) sNowhere = 1;
          m = known ? ahead[j] : 0, s %= page;
        }
        const C* row = line < KEYS ? gK + m * k_m + s * k_s : gV + m * v_m + s * v_s;
        bulk_load(sTiles + at.index * 2 * TILE + line * PITCH, row + first_g * D, ROW, &sRing.full[at.index], policy);
      }
      look(i + 1);
    }
  } else {
    Tile<X, C, D> tile;
    int sees[2];  // the keys before this one, and with a window as many as it is wide
    float inner[2];
    tile.queries([&](int row) { return gQ + i_b * q_b + row / group * q_t + (i_g * group + row % group) * q_h; }, rows, inner);
    if (k_scaled) scale *= gKs[i_g * stride_ks];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sees[h] = length - T + (lane() / 4 + 8 * h) / group + 1;
      inner[h] *= softcap > 0.0f ? scale / softcap : scale * LOG2E;
    }
    const float outer = softcap * LOG2E;
    for (int i = 0; i < count; ++i, ++at) {
      const char* sK = sTiles + at.index * 2 * TILE + warp() / HEADS * ROWS * PITCH + warp() % HEADS * D * int(sizeof(C));
      const int start = (mine + i * splits) * KEYS + warp() / HEADS * ROWS;
      const bool whole = start + ROWS <= length - T + 1 && (!window || start >= length - window);
      float s[2][4] = {};
      consumer_wait(sRing, at);
      tile.products(s, sK, PITCH);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float larger = max[h];
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[n][2 * h + e];
            x *= inner[h];
            if (softcap > 0.0f) x = outer * tanhf(x);
            if (!whole) {
              const int key = start + 8 * n + lane() % 4 * 2 + e;
              if (key >= sees[h] || (window && key < sees[h] - window)) x = minus_inf();
            }
            larger = Max()(larger, x);
          }
        larger = warp_reduce<4>(larger, Max());
        const float base = base_of(larger), rescale = exp2_fast(max[h] - base);
        max[h] = larger, sum[h] *= rescale;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[n][2 * h + e];
            x = exp2_fast(x - (base - Tile<X, C, D>::LIFT)), sum[h] += x;
          }
#pragma unroll
        for (int n = 0; n < D / 8; ++n) out[n][2 * h] *= rescale, out[n][2 * h + 1] *= rescale;
      }
      tile.add(out, s, sK + TILE, PITCH);
      consumer_release(sRing, at);
    }
  }
  __syncthreads();  // all tiles are read: what warps have in common with others of their head comes in their place

  float4* sSums = reinterpret_cast<float4*>(sTiles);
  float2* sShares = reinterpret_cast<float2*>(sSums + (WARPS - HEADS) * D / 8 * WARP);  // maximum and sum of two rows a lane
  const int other = (warp() - HEADS) * WARP + lane();
#pragma unroll
  for (int h = 0; h < 2; ++h) sum[h] = sNowhere ? __int_as_float(0x7fffffff) : warp_reduce<4>(sum[h], Sum());
  if (warp() >= HEADS && warp() < WARPS) {
#pragma unroll
    for (int h = 0; h < 2; ++h) sShares[2 * other + h] = make_float2(max[h], sum[h]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) sSums[n * (WARPS - HEADS) * WARP + other] = make_float4(out[n][0], out[n][1], out[n][2], out[n][3]);
  }
  if (GROUPS > 1) __syncthreads();
  if (warp() >= HEADS) return;
#pragma unroll
  for (int w = 0; w < GROUPS - 1; ++w) {
    const int from = (warp() + w * HEADS) * WARP + lane();
    float keep[2], take[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 share = sShares[2 * from + h];
      const float larger = Max()(max[h], share.x), base = base_of(larger);
      keep[h] = exp2_fast(max[h] - base), take[h] = exp2_fast(share.x - base);
      max[h] = larger, sum[h] = sum[h] * keep[h] + share.y * take[h];
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float4 all = sSums[n * (WARPS - HEADS) * WARP + from];
      const float x[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = out[n][i] * keep[i / 2] + x[i] * take[i / 2];
    }
  }
  constexpr float down = 1.0f / (1 << Tile<X, C, D>::LIFT);
  const float scaled = down * (v_scaled ? gVs[i_g * stride_vs] : 1.0f);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane() / 4 + 8 * h, i_t = row / group, i_h = i_g * group + row % group;
    if (row >= rows) continue;
    const long long to = (i_b * T + i_t) * H + i_h, part = (long long)i_s * B * T * H + to;
    float share = scaled;
    sum[h] *= down;
    if (splits > 1) {
      if (lane() % 4 == 0) gPartMax[part] = max[h], gPartSum[part] = sum[h];
    } else {
      if (sinks) {
        const Share with = with_sink(max[h], sum[h], gSinks + i_h * stride_sink);
        max[h] = with.max, sum[h] = with.sum, share *= with.factor;
      }
      share /= sum[h] == 0.0f ? 1.0f : sum[h];
      if (lane() % 4 == 0) gLse[(i_b * H + i_h) * T + i_t] = max[h] * LN2 + logf(sum[h]);
    }
#pragma unroll
    for (int n = 0; n < D / 16; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 two = Tile<X, C, D>::pair(out[2 * n], out[2 * n + 1], h, i);
        const int d = 16 * n + Tile<X, C, D>::column(i);
        if (splits > 1) {
          *reinterpret_cast<float2*>(gPart + part * D + d) = make_float2(two.x * share, two.y * share);
        } else {
          *reinterpret_cast<unsigned*>(gOut + to * D + d) = pack_pair(X(), two.x * share, two.y * share);
        }
      }
  }
}

// 32 columns of a row (b, t, h) a block: a warp has every ACROSS-th split. The first are asked for before their shares are known.
template <typename X, typename W, int D, int ACROSS, int FIRST>
__global__ void ROOFTILE_EARLY __launch_bounds__(WARP * ACROSS)
    join(X* gOut, float* gLse, const float* gPart, const float* gPartMax, const float* gPartSum, const W* gSinks, int M, int T, int H, int splits, bool sinks,
         long long stride_sink) {
  constexpr int MOST = 256, STRIPS = D / WARP;
  __shared__ float sMax[MOST], sSum[MOST], sValue[ACROSS][WARP];
  const int i = blockIdx.x / STRIPS, d = int(blockIdx.x) % STRIPS * WARP + lane(), i_h = i % H, i_t = i / H % T;
  const long long i_b = i / H / T;
  earlier_done();
  float part[FIRST], larger = minus_inf(), total = 0.0f, value = 0.0f;
#pragma unroll
  for (int k = 0; k < FIRST; ++k) part[k] = warp() + k * ACROSS < splits ? gPart[((long long)(warp() + k * ACROSS) * M + i) * D + d] : 0.0f;
  for (int j = threadIdx.x; j < splits; j += WARP * ACROSS) sMax[j] = gPartMax[(long long)j * M + i], sSum[j] = gPartSum[(long long)j * M + i];
  __syncthreads();
  for (int j = lane(); j < splits; j += WARP) larger = Max()(larger, sMax[j]);
  larger = warp_reduce(larger, Max());
  const float base = base_of(larger);
#pragma unroll
  for (int k = 0; k < FIRST; ++k)
    if (warp() + k * ACROSS < splits) value += exp2_fast(sMax[warp() + k * ACROSS] - base) * part[k];
  for (int j = warp() + FIRST * ACROSS; j < splits; j += ACROSS) value += exp2_fast(sMax[j] - base) * gPart[((long long)j * M + i) * D + d];
  sValue[warp()][lane()] = value;
  __syncthreads();
  if (warp() > 0) return;
#pragma unroll
  for (int w = 1; w < ACROSS; ++w) value += sValue[w][lane()];
  for (int j = lane(); j < splits; j += WARP) total += exp2_fast(sMax[j] - base) * sSum[j];
  total = warp_reduce(total, Sum());
  if (sinks) {
    const Share share = with_sink(larger, total, gSinks + i_h * stride_sink);
    larger = share.max, total = share.sum, value *= share.factor;
  }
  gOut[(long long)i * D + d] = X(value / (total == 0.0f ? 1.0f : total));
  if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = larger * LN2 + logf(total);
}
