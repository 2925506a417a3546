// adds: a head's rows together: their place and length are found once a thread, and 16 bytes are shifts of one word by how many entries are still seen
// costs: rows of whole 16 bytes; a row's end leaves lanes idle where its vectors are no multiple of them
// loses when: there are a few rows, of which a thread takes ROWS
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/check.cuh"

using namespace rooftile;

// Four bytes of entries that are hidden, and what turns them into seen ones when they are shifted out.
template <typename T> constexpr unsigned HIDDEN = 0xff800000u;
template <> constexpr unsigned HIDDEN<__nv_bfloat16> = 0xff80ff80u;
template <> constexpr unsigned HIDDEN<__half> = 0xfc00fc00u;
template <> constexpr unsigned HIDDEN<unsigned char> = 0x01010101u;

// 16 bytes of a row, of which the first `left` entries are seen: below 0 none, beyond them all. A true byte is one that its word's hidden ones lack.
template <typename T> ROOFTILE_DEVICE uint4 seen(int left) {
  constexpr unsigned FLIP = sizeof(T) == 1 ? HIDDEN<T> : 0;
  const int bits = 8 * int(sizeof(T)) * min(max(left, 0), int(16 / sizeof(T)));
  return {__funnelshift_lc(0, HIDDEN<T>, bits) ^ FLIP, __funnelshift_lc(0, HIDDEN<T>, max(bits - 32, 0)) ^ FLIP,
          __funnelshift_lc(0, HIDDEN<T>, max(bits - 64, 0)) ^ FLIP, __funnelshift_lc(0, HIDDEN<T>, max(bits - 96, 0)) ^ FLIP};
}

// A block is lanes x rows of one head, of which `tiles` blocks share the rows: a thread has the same vectors of every blockDim.y-th row, ROWS of them.
template <typename T, typename L, bool CAUSAL, int ROWS>
__global__ void attention_mask(T* gMask, const L* __restrict__ gLengths, unsigned tiles, int queries, int keys, int G, int repeats, long long stride_b,
                               long long stride_g) {
  constexpr int WIDTH = 16 / sizeof(T);
  const unsigned i_bh = blockIdx.x / tiles, i_b = i_bh / unsigned(G * repeats), i_h = i_bh % unsigned(G * repeats);
  const int first = int(blockIdx.x % tiles) * int(blockDim.y) * ROWS + threadIdx.y, vectors = keys / WIDTH, step = blockDim.y;
  const long long given = gLengths[i_b * stride_b + i_h / unsigned(repeats) * stride_g];
  const int length = int(min(max(given, 0LL), (long long)keys));
  uint4* gTo = reinterpret_cast<uint4*>(gMask) + ((long long)i_bh * queries + first) * vectors;
  for (int i_v = threadIdx.x; i_v < vectors; i_v += blockDim.x) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int i_t = first + r * step;
      if (i_t >= queries) break;
      const int end = CAUSAL ? min(length, i_t + (keys - queries) + 1) : length;
      __stwb(gTo + (long long)(r * step) * vectors + i_v, seen<T>(end - i_v * WIDTH));
    }
  }
}
