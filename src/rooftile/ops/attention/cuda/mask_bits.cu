// adds: a mask's bits as v5's threads hold scores, and of each tile of keys which queries see any of it
// costs: the mask is read once, a byte a pair, and an eighth of that written, and read by the pass
// loses when: a mask shows nearly all of few keys, and this takes as long as the pass that it spares tiles
#include "rooftile/check.cuh"

using namespace rooftile;

constexpr int KEYS = 128;  // of a tile

// Which of four bytes are not 0.
ROOFTILE_DEVICE unsigned four_bits(unsigned x) {
  const unsigned any = (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) >> 7 & 0x01010101;
  return any * 0x10204080 >> 28;
}

// The bits of a mask [B, H, queries, keys], a byte each, as threads that multiply hold scores: of 64 keys by 128 queries two words of each of 128 threads,
// for its keys 8 apart. Of keys and queries that are not there they are zeros. A block has a tile of keys; gAny: whether any of its bits is set. WIDE: rows
// of whole 16 bytes.
template <bool WIDE>
__global__ void __launch_bounds__(256)
    pack_bits(uint2* gBits, int* gAny, const unsigned char* gMask, int H, int T_, int S, long long stride_b, long long stride_h, long long stride_t,
              long long stride_s) {
  __shared__ unsigned short sBits[128][8];  // of a query: a key a bit
  const int across = ceil_div(T_, 128), tiles = ceil_div(S, KEYS), i_tile = blockIdx.x % tiles, i_block = blockIdx.x / tiles % across;
  const int i_bh = blockIdx.x / tiles / across, i_t = i_block * 128, i_s = i_tile * KEYS;
  const unsigned char* gMine = gMask + (i_bh / H * stride_b + i_bh % H * stride_h + i_t * stride_t + i_s * stride_s);
#pragma unroll
  for (int i = threadIdx.x; i < 1024; i += 256) {
    const int query = i / 8, key = i % 8 * 16;
    const unsigned char* gKeys = gMine + query * stride_t + key * stride_s;
    unsigned bits = 0;
    if (i_t + query < T_) {
      if constexpr (WIDE) {
        const uint4 x = i_s + key < S ? *reinterpret_cast<const uint4*>(gKeys) : make_uint4(0, 0, 0, 0);
        bits = four_bits(x.x) | four_bits(x.y) << 4 | four_bits(x.z) << 8 | four_bits(x.w) << 12;
      } else {
        for (int k = 0; k < min(16, S - i_s - key); ++k) bits |= unsigned(gKeys[k * stride_s] != 0) << k;
      }
    }
    sBits[query][i % 8] = bits;
  }
  __syncthreads();
  const int query = threadIdx.x % 4 * 2, half = threadIdx.x / 128;
  uint2 words = make_uint2(0, 0);
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const unsigned bits = sBits[query + j / 2 * 8 + j % 2][warp()] >> lane() / 4;
    words.x |= (bits & 1) << j, words.y |= (bits >> 8 & 1) << j;
  }
  const long long at = (long long)i_bh * tiles + i_tile;
  gBits[((at * 2 + half) * across + i_block) * 128 + threadIdx.x % 128] = words;
  const int any = __syncthreads_or(words.x | words.y);
  if (threadIdx.x == 0) gAny[at * across + i_block] = any;
}

// Of a tile of keys a warp: the first block of queries that sees any of it, and behind the last, of those that a window lets see it, and of 128 as bits lie.
// Where there is none, one that does not.
template <int M>
__global__ void __launch_bounds__(128) span_bits(int2* gSpans, const int* gAny, int T_, int S, int tiles, int all, int left, int right) {
  const int i = blockIdx.x * 4 + warp(), across = ceil_div(T_, 128);
  if (i >= all) return;
  int first = across, end = 0;
  for (int j = lane(); j < across; j += WARP)
    if (gAny[(long long)i * across + j]) first = min(first, j), end = j + 1;
  const int low = i % tiles * KEYS + T_ - S, high = min(i % tiles * KEYS + KEYS, S) + T_ - S + left;
  first = min(max(max(0, low - right), __reduce_min_sync(ALL_LANES, first) * 128), T_ - 1) / M;
  end = min(min(T_, high), __reduce_max_sync(ALL_LANES, end) * 128);
  if (lane() == 0) gSpans[i] = make_int2(first, max(ceil_div(end, M), first + 1));
}
