// D[M,F] = A[M,K] B[K,F] by tiles of 128 x N, and a warpgroup of its own that takes each tile away while the next ones are multiplied. Hopper and later.
//
// A block walks tiles. Each of two warpgroups multiplies 64 rows of a tile, rounds them as the operator would hand them over, and leaves them in its half of
// shared memory, where the third finds them. The second begins each tile LAG steps behind the first: one leaves its half while the other multiplies. So it is
// the last to read a stage, and one thread of it asks for the next.
//
//   struct End {                                                        // what an operator makes of a tile
//     static constexpr bool COPIED;                                     // whether the copy engine takes the halves, and no threads
//     void begin(float (&d)[X::N / 2], int i_n) const;                  // what the sums of tile column i_n begin with, by the two that multiply
//     void finish(char* sX, Rings<X::STAGES>&, const Tiles&) const;     // the third warpgroup: of each tile both halves, waited for and released
//   };
//   block<X>(End{...}, tA, tB, Tiles<X::WIDE>{M, F, group}, steps);     // 384 threads, dynamic shared memory: `product` of _shared/hopper_products.py
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/wgmma.cuh"

namespace rooftile {

constexpr int BLOCK_M = 128, HALF = 64, LINE = 128, PANEL = HALF * LINE;  // a panel: 64 rows of 64 columns

// K of a step, STAGES steps under way. A is stored [M, K] where it is K_MAJOR, else [K, M]; B [PARTS F, K] or [K, F]. A tile is as many columns of each of
// the PARTS, which it has side by side.
template <typename T_, Major A_MAJOR_, Major B_MAJOR_, int PARTS_, int N_, int K_, int STAGES_, int LAG_> struct Tile {
  using T = T_;
  static constexpr Major A_MAJOR = A_MAJOR_, B_MAJOR = B_MAJOR_;
  static constexpr int PARTS = PARTS_, N = N_, K = K_, STAGES = STAGES_, LAG = LAG_, WIDE = N / PARTS;
  static_assert(B_MAJOR == K_MAJOR || PARTS == 1, "columns of B that lie apart are not read as panels");
  static_assert(N % 64 == 0 && N <= 256 && (K == 32 || K == 64), "whole panels, a box of at most 256; a line of 64 or 128 bytes");
  static_assert(LAG < STAGES, "what the first has read more than the second is still there");
  static constexpr int A = BLOCK_M * K * 2, B = N * K * 2, OUT = HALF * N * 2;  // bytes
  static constexpr int OUTS = STAGES * (A + B), BESIDE = OUTS + 2 * OUT;  // where things lie behind the ring; the launcher counts the same bytes
};

template <int STAGES> struct Rings {
  Pipeline<STAGES> factors;
  Pipeline<1> out[2];  // a half of a tile, one a multiplier
  Pipeline<1> turn;    // carries nothing: the first multiplier is LAG steps into a tile
};

// The tiles of [M, F], N columns each, `group` rows of tiles at a time and down their columns: blocks side by side read the same B, and a group's A stays in L2.
template <int N> struct Tiles {
  int M, F, group;
  ROOFTILE_DEVICE int rows() const { return ceil_div(M, BLOCK_M); }
  ROOFTILE_DEVICE int count() const { return rows() * ceil_div(F, N); }
  ROOFTILE_DEVICE int2 at(int i_tile) const {  // row and column of tiles
    const int dealt = group * ceil_div(F, N), first = i_tile / dealt * group, high = min(group, rows() - first), i = i_tile % dealt;
    return make_int2(first + i % high, i / high);
  }
};

// ---- what sums begin with ----------------------------------------------------------------------------------------------------

template <int R> ROOFTILE_DEVICE void from_zero(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) d[i] = 0.0f;
}
// Of the i_n-th column of tiles; where there is no bias `biased` is 0, else F.
template <typename X> ROOFTILE_DEVICE void from_bias(float (&d)[X::N / 2], const typename X::T* gBias, int biased, int i_n) {
#pragma unroll
  for (int i = 0; i < X::N / 2; i += 4) {
    const int column = i_n * X::N + wgmma_column(i);
    const float2 two = unpack_pair(typename X::T(), column < biased ? *reinterpret_cast<const unsigned*>(gBias + column) : 0u);
    d[i] = d[i + 2] = two.x, d[i + 1] = d[i + 3] = two.y;
  }
}

// ---- the two that multiply ---------------------------------------------------------------------------------------------------

// One thread: the steps of all of this block's tiles, one after the other.
template <typename X> struct Producer {
  const TensorMap &tA, &tB;
  const Tiles<X::WIDE>& tiles;
  const int steps;
  int i_tile, k;
  int2 tile;
  Stage<X::STAGES> at;

  ROOFTILE_DEVICE Producer(const TensorMap& tA, const TensorMap& tB, const Tiles<X::WIDE>& tiles, int steps)
      : tA(tA), tB(tB), tiles(tiles), steps(steps), i_tile(blockIdx.x), k(0), tile(tiles.at(blockIdx.x)) {}

  ROOFTILE_DEVICE void ask(char* sX, Rings<X::STAGES>& sR) {
    if (i_tile >= tiles.count()) return;
    char *sA = sX + at.index * (X::A + X::B), *sB = sA + X::A;
    MBarrier* sFull = &sR.factors.full[at.index];
    producer_acquire(sR.factors, at, X::A + X::B);
    if constexpr (X::A_MAJOR == K_MAJOR) {
      tensor_load(sA, tA, sFull, k * X::K, tile.x * BLOCK_M);
    } else {
#pragma unroll
      for (int p = 0; p < BLOCK_M / 64; ++p) tensor_load(sA + p * X::K * LINE, tA, sFull, tile.x * BLOCK_M + p * 64, k * X::K);
    }
    if constexpr (X::B_MAJOR == K_MAJOR) {
#pragma unroll
      for (int p = 0; p < X::PARTS; ++p) tensor_load(sB + p * X::WIDE * X::K * 2, tB, sFull, k * X::K, p * tiles.F + tile.y * X::WIDE);
    } else {
#pragma unroll
      for (int p = 0; p < X::N / 64; ++p) tensor_load(sB + p * X::K * LINE, tB, sFull, tile.y * X::N + p * 64, k * X::K);
    }
    ++at;
    if (++k < steps) return;
    k = 0, i_tile += gridDim.x;
    if (i_tile < tiles.count()) tile = tiles.at(i_tile);
  }
};

// One step of 64 x N, of factors as they lie.
template <typename X> ROOFTILE_DEVICE void multiply(float (&d)[X::N / 2], const char* sA, const char* sB) {
  constexpr int SWIZZLE = X::K * 2, NEXT_A = X::A_MAJOR == K_MAJOR ? 32 : 16 * LINE, NEXT_B = X::B_MAJOR == K_MAJOR ? 32 : 16 * LINE;
  const Matrix a = X::A_MAJOR == K_MAJOR ? k_major<SWIZZLE>(sA) : mn_major<128>(sA, X::K * LINE);
  const Matrix b = X::B_MAJOR == K_MAJOR ? k_major<SWIZZLE>(sB) : mn_major<128>(sB, X::K * LINE);
  wgmma_fence(d);
#pragma unroll
  for (int i = 0; i < X::K / 16; ++i) wgmma<typename X::T, X::N, X::A_MAJOR, X::B_MAJOR>(d, a + i * NEXT_A, b + i * NEXT_B);
  wgmma_commit();
}

// Rounded, to where the third warpgroup finds it.
template <typename X, bool COPIED> ROOFTILE_DEVICE void hand_over(char* sHalf, Pipeline<1>& sRing, const Stage<1>& at, const float (&d)[X::N / 2]) {
  producer_acquire(sRing, at);
  unsigned out[X::N / 16][4];
#pragma unroll
  for (int k = 0; k < X::N / 16; ++k) wgmma_operand<typename X::T>(out[k], d, k);
  store_operand(sHalf, PANEL, warp() % 4 * 16, out);
  if (COPIED) fence_async();
  __syncwarp();
  if (lane() == 0) producer_commit(sRing, at);
}

template <typename X, bool SECOND, typename End>
ROOFTILE_DEVICE void walk(const End& end, const TensorMap& tA, const TensorMap& tB, char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles, int steps) {
  const bool asks = SECOND && threadIdx.x % 128 == 0;
  char* sHalf = sX + X::OUTS + SECOND * X::OUT;
  Producer<X> producer(tA, tB, tiles, steps);
  Stage<X::STAGES> at;
  Stage<1> whole;
  if (asks)
    for (int i = 0; i < X::STAGES; ++i) producer.ask(sX, sR);
  for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++whole) {
    float d[X::N / 2];
    end.begin(d, tiles.at(i_tile).y);
    pin(d);
    if (SECOND) {
      consumer_wait(sR.turn, whole);
      consumer_release(sR.turn, whole);
    }
    Stage<X::STAGES> before = at;
    for (int k = 0; k < steps; ++k, ++at) {
      const char* sA = sX + at.index * (X::A + X::B);
      consumer_wait(sR.factors, at);
      multiply<X>(d, sA + SECOND * HALF * X::K * 2, sA + X::A);
      if (k > 0) {
        wgmma_wait<1>();
        consumer_release(sR.factors, before);
        ++before;
        if (asks) producer.ask(sX, sR);
      }
      if (!SECOND && k == min(X::LAG, steps - 1)) {
        producer_acquire(sR.turn, whole);  // or it would be two tiles ahead where they have few steps
        __syncwarp();                      // or a lane that waits yet is overtaken: the next phase completed looks like the last one open
        if (lane() == 0) producer_commit(sR.turn, whole);
      }
    }
    wgmma_wait<0>(d);
    consumer_release(sR.factors, before);
    if (asks) producer.ask(sX, sR);
    hand_over<X, End::COPIED>(sHalf, sR.out[SECOND], whole, d);
  }
}

// ---- the block ---------------------------------------------------------------------------------------------------------------

template <typename X, typename End>
ROOFTILE_DEVICE void block(const End& end, const TensorMap& tA, const TensorMap& tB, const Tiles<X::WIDE>& tiles, int steps) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings<X::STAGES> sR;
  if (threadIdx.x == 0) {
    pipeline_init(sR.factors, 1, 8);
    for (int half = 0; half < 2; ++half) pipeline_init(sR.out[half], 4, 4);
    pipeline_init(sR.turn, 4, 4);
  }
  __syncthreads();
  // Three warpgroups have 3 x 168 registers to share: 128 of a multiplier's are sums.
  if (threadIdx.x >= 256) {
    registers_lower<136>();
    end.finish(sX, sR, tiles);
  } else if (threadIdx.x >= 128) {
    registers_raise<184>();
    walk<X, true>(end, tA, tB, sX, sR, tiles, steps);
  } else {
    registers_raise<184>();
    walk<X, false>(end, tA, tB, sX, sR, tiles, steps);
  }
}

}  // namespace rooftile
