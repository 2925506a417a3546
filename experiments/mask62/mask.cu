// lab: attention_mask, 16 bytes of a row by one bound. rows: SIMT; bulk: rows out of shared memory by the copy engine
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/tma.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename T> struct Entry;  // four bytes of what hides, and what its complement is turned by
template <> struct Entry<unsigned char> { static constexpr unsigned HIDDEN = 0x01010101u, FLIP = 0x01010101u; };
template <> struct Entry<__nv_bfloat16> { static constexpr unsigned HIDDEN = 0xff80ff80u, FLIP = 0; };
template <> struct Entry<__half> { static constexpr unsigned HIDDEN = 0xfc00fc00u, FLIP = 0; };
template <> struct Entry<float> { static constexpr unsigned HIDDEN = 0xff800000u, FLIP = 0; };

// x << by, 0 from 32 on.
ROOFTILE_DEVICE unsigned shifted(unsigned x, int by) {
#ifdef ROOFTILE_SIMULATOR
  return by > 31 ? 0 : x << by;
#else
  unsigned y;
  asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(by));
  return y;
#endif
}

// WIDTH entries, of which the first `left` are seen: less than 0 is none, more than there are all.
template <typename T> ROOFTILE_DEVICE uint4 seen(int left) {
  constexpr int WIDTH = 16 / sizeof(T);
  const int bits = 8 * int(sizeof(T)) * min(max(left, 0), WIDTH);
  using E = Entry<T>;
  return {shifted(E::HIDDEN, bits) ^ E::FLIP, shifted(E::HIDDEN, max(bits - 32, 0)) ^ E::FLIP, shifted(E::HIDDEN, max(bits - 64, 0)) ^ E::FLIP,
          shifted(E::HIDDEN, max(bits - 96, 0)) ^ E::FLIP};
}

template <int HOW> ROOFTILE_DEVICE void put(uint4* g, uint4 x) {
#ifdef ROOFTILE_SIMULATOR
  *g = x;
#else
  if (HOW == 0) __stwb(g, x);
  if (HOW == 1) __stcs(g, x);
  if (HOW == 2) __stcg(g, x);
#endif
}

// A block is lanes x rows; it takes blockDim.y * ROWS rows of one head at a time.
template <typename T, typename L, bool CAUSAL, int ROWS, int HOW>
__global__ void rows(T* gMask, const L* __restrict__ gLengths, unsigned all, unsigned tiles, int queries, int keys, int G, int repeats,
                     long long stride_b, long long stride_g) {
  constexpr int WIDTH = 16 / sizeof(T);
  const int vectors = keys / WIDTH;
  for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x) {
    const unsigned i_bh = tile / tiles, i_b = i_bh / unsigned(G * repeats), i_h = i_bh % unsigned(G * repeats);
    const int first = int(tile % tiles) * int(blockDim.y) * ROWS + threadIdx.y;
    const int length = int(min((long long)gLengths[i_b * stride_b + i_h / unsigned(repeats) * stride_g], (long long)keys));
    uint4* gTo = reinterpret_cast<uint4*>(gMask) + ((long long)i_bh * queries + first) * vectors;
    for (int i_v = threadIdx.x; i_v < vectors; i_v += blockDim.x) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int i_t = first + r * int(blockDim.y);
        if (i_t >= queries) break;
        const int end = CAUSAL ? min(length, i_t + (keys - queries) + 1) : length;
        put<HOW>(gTo + (long long)(r * int(blockDim.y)) * vectors + i_v, seen<T>(end - i_v * WIDTH));
      }
    }
  }
}

// A warp a row at a time, of which it has `bytes` in shared memory; every blockDim.y-th row is its, and from one to its next as many entries appear.
template <typename T, typename L, bool CAUSAL>
__global__ void bulk(T* gMask, const L* __restrict__ gLengths, unsigned chunks, unsigned tiles, int each, int bytes, int queries, int keys, int G,
                     int repeats, long long stride_b, long long stride_g) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(128) uint4 sAll[];
  const unsigned chunk = blockIdx.x % chunks, tile = blockIdx.x / chunks % tiles, i_bh = blockIdx.x / chunks / tiles;
  const unsigned i_b = i_bh / unsigned(G * repeats), i_h = i_bh % unsigned(G * repeats);
  const int length = int(min((long long)gLengths[i_b * stride_b + i_h / unsigned(repeats) * stride_g], (long long)keys));
  const int begin = int(chunk) * (bytes / int(sizeof(T))), many = min(bytes / int(sizeof(T)), keys - begin), lane = threadIdx.x, last = min(queries, (int(tile) + 1) * each);
  uint4* sRow = sAll + threadIdx.y * (bytes / 16);
  int i_t = int(tile) * each + threadIdx.y;
  if (i_t >= last) return;
  T* gTo = gMask + ((long long)i_bh * queries + i_t) * keys + begin;
  int end = (CAUSAL ? min(length, i_t + (keys - queries) + 1) : length) - begin;
  for (int v = lane; v < many / WIDTH; v += WARP) sRow[v] = seen<T>(end - v * WIDTH);
  for (;;) {
    fence_async();
    __syncwarp();
    if (lane == 0) {
      bulk_store(gTo, sRow, many * int(sizeof(T)));
      bulk_commit();
    }
    i_t += blockDim.y;
    if (i_t >= last) break;
    gTo += (long long)blockDim.y * keys;
    const int next = (CAUSAL ? min(length, i_t + (keys - queries) + 1) : length) - begin;
    if (CAUSAL && next > 0 && end < many && next > end) {
      if (lane == 0) bulk_wait_read<0>();
      __syncwarp();
      for (int i = max(end, 0) + lane; i < min(next, many); i += WARP)
        reinterpret_cast<T*>(sRow)[i] = sizeof(T) == 1 ? T(1) : T(0.0f);
    }
    end = next;
  }
  if (lane == 0) bulk_wait_read<0>();
}
