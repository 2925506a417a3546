// adds: a product whose tiles pass through an activation, or its gradient, while the next ones are multiplied: a warpgroup of its own finishes what two multiply
// costs: 64 KiB of shared memory between them, so that the ring of factors has 144; sums of dpre's columns as a partial row for each 128 rows
// loses when: K is long, so that what follows a tile hides behind its products anyway; or there are too few tiles to go round

// The walk is product.cuh's. The warpgroup that finishes reads a half by whole rows, so that a thread keeps its 8 columns and their sums, and writes global
// memory from registers. A gated perceptron's gate and up lie side by side in a tile, so that one thread has both.
#include "rooftile/activation.cuh"
#include "rooftile/async.cuh"
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

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/wgmma.cuh"
#include "rooftile/cluster.cuh"
namespace rooftile {
ROOFTILE_DEVICE void tensor_load_both(void* sX, const TensorMap& map, MBarrier* sBarrier, int x, int y) {
  ROOFTILE_SM90("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(sX)),
                "l"(&map), "r"(shared_address(sBarrier)), "r"(x), "r"(y), "h"((unsigned short)3) : "memory");
}
template <int STAGES> ROOFTILE_DEVICE void release_both(Pipeline<STAGES>& sRing, const Stage<STAGES>& at) {
  __syncwarp();
  if (lane() < 2) ROOFTILE_SM90("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(&sRing.empty[at.index], lane())) : "memory");
}
}

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

// One thread asks for step k of A's 128 rows from `row` on and of B's from `column` on, of each of its parts, which lie F rows apart.
template <typename X>
ROOFTILE_DEVICE void ask_step(char* sX, Pipeline<X::STAGES>& sRing, const Stage<X::STAGES>& at, const TensorMap& tA, const TensorMap& tB, int row, int column,
                              int F, int k) {
  char *sA = sX + at.index * (X::A + X::B), *sB = sA + X::A;
  MBarrier* sFull = &sRing.full[at.index];
  producer_acquire(sRing, at, X::A + X::B);
  if constexpr (X::A_MAJOR == K_MAJOR) {
    tensor_load(sA, tA, sFull, k * X::K, row);
  } else {
#pragma unroll
    for (int p = 0; p < BLOCK_M / 64; ++p) tensor_load(sA + p * X::K * LINE, tA, sFull, row + p * 64, k * X::K);
  }
  if constexpr (X::B_MAJOR == K_MAJOR) {
#pragma unroll
    for (int p = cluster_rank(); p == cluster_rank(); ++p) tensor_load_both(sB + p * X::WIDE * X::K * 2, tB, sFull, k * X::K, p * F + column);
  } else {
#pragma unroll
    for (int q = 0; q < X::N / 128; ++q) {
      const int p = q + cluster_rank() * (X::N / 128);
      tensor_load_both(sB + p * X::K * LINE, tB, sFull, column + p * 64, k * X::K);
    }
  }
}

// The steps of all of this block's tiles, one after the other.
template <typename X> struct Producer {
  const TensorMap &tA, &tB;
  const Tiles<X::WIDE>& tiles;
  const int steps;
  int i_tile, k;
  int2 tile;
  Stage<X::STAGES> at;

  ROOFTILE_DEVICE Producer(const TensorMap& tA, const TensorMap& tB, const Tiles<X::WIDE>& tiles, int steps)
      : tA(tA), tB(tB), tiles(tiles), steps(steps), i_tile(blockIdx.x), k(0), tile(tiles.at(blockIdx.x)) {}

  ROOFTILE_DEVICE void ask(char* sX, Pipeline<X::STAGES>& sRing) {
    if (i_tile >= tiles.count()) return;
    ask_step<X>(sX, sRing, at, tA, tB, tile.x * BLOCK_M, tile.y * X::WIDE, tiles.F, k);
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

// A multiplier's `steps` steps of a tile, from stage `at` on: a stage is released when the next is being multiplied, and ask() asks for another in its
// place; begun(k) when step k is.
template <typename X, bool SECOND, typename Ask, typename Begun>
ROOFTILE_DEVICE void multiply_steps(float (&d)[X::N / 2], const char* sX, Pipeline<X::STAGES>& sRing, Stage<X::STAGES>& at, int steps, Ask ask, Begun begun) {
  Stage<X::STAGES> before = at;
  for (int k = 0; k < steps; ++k, ++at) {
    const char* sA = sX + at.index * (X::A + X::B);
    consumer_wait(sRing, at);
    multiply<X>(d, sA + SECOND * HALF * X::K * 2, sA + X::A);
    if (k > 0) {
      wgmma_wait<1>();
      release_both(sRing, before);
      ++before;
      ask();
    }
    begun(k);
  }
  wgmma_wait<0>(d);
  release_both(sRing, before);
  ask();
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
  auto ask = [&] {
    if (asks) producer.ask(sX, sR.factors);
  };
  Stage<X::STAGES> at;
  Stage<1> whole;
  for (int i = 0; i < X::STAGES; ++i) ask();
  for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++whole) {
    float d[X::N / 2];
    end.begin(d, tiles.at(i_tile).y);
    pin(d);
    if (SECOND) {
      consumer_wait(sR.turn, whole);
      consumer_release(sR.turn, whole);
    }
    multiply_steps<X, SECOND>(d, sX, sR.factors, at, steps, ask, [&](int k) {
      if (SECOND || k != min(X::LAG, steps - 1)) return;
      producer_acquire(sR.turn, whole);  // or it would be two tiles ahead where they have few steps
      __syncwarp();                      // or a lane that waits yet is overtaken: the next phase completed looks like the last one open
      if (lane() == 0) producer_commit(sR.turn, whole);
    });
    hand_over<X, End::COPIED>(sHalf, sR.out[SECOND], whole, d);
  }
}

// ---- the block ---------------------------------------------------------------------------------------------------------------

template <typename X, typename End>
ROOFTILE_DEVICE void block(const End& end, const TensorMap& tA, const TensorMap& tB, const Tiles<X::WIDE>& tiles, int steps) {
  extern __shared__ __align__(1024) char sX[];
  __shared__ Rings<X::STAGES> sR;
  if (threadIdx.x == 0) {
    pipeline_init(sR.factors, 1, 16);
    for (int half = 0; half < 2; ++half) pipeline_init(sR.out[half], 4, 4);
    pipeline_init(sR.turn, 4, 4);
  }
  cluster_sync();
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
  cluster_sync();
}

}  // namespace rooftile

#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int ROWS = HALF / 4, AHEAD = 8, TOGETHER = 1;  // a finishing warp's of a half; of pre asked for ahead; finished at a time

// ---- the one that finishes ---------------------------------------------------------------------------------------------------

// 8 columns of a thread of its warp's rows of a half, from the first of them on: how many of those there are.
struct Strip {
  int row, column, rows;
  ROOFTILE_DEVICE long long place(int r, long long stride) const { return (row + r) * stride + column; }
};
template <int N> ROOFTILE_DEVICE Strip strip(const Tiles<N>& tiles, int i_tile, int half, int mine, int first = 0) {
  if (i_tile >= tiles.count()) return {0, 0, 0};
  const int2 tile = tiles.at(i_tile);
  const int row = tile.x * BLOCK_M + half * HALF + warp() % 4 * ROWS + first, column = tile.y * N + mine;
  return {row, column, mine < N && column < tiles.F ? tiles.M - row : 0};
}
// 16 bytes of a warp's row of a half: its panels lie side by side.
ROOFTILE_DEVICE uint4 in_half(const char* sHalf, int r, int column) {
  return *reinterpret_cast<const uint4*>(sHalf + column / 64 * PANEL + swizzled<128>((warp() % 4 * ROWS + r) * LINE + column % 64 * 2));
}

// Backward: to each row of d its PARTS vectors of gPre [M, PARTS F], which are on their way while those before it are finished, into the next half and the
// next tile: copies that a thread makes for itself. start(to) begins a half, row(there, d, sPre) finishes its next row, end(half, i_tile) what it has come to.
template <int PARTS, typename X, typename Start, typename Row, typename Half>
ROOFTILE_DEVICE void finish_beside(const typename X::T* gPre, char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles, Start start, Row row, Half end) {
  constexpr int DEEP = AHEAD / PARTS;
  const int mine = lane() * 8, F = tiles.F;
  uint4* sPre = reinterpret_cast<uint4*>(sX + X::BESIDE) + warp() % 4 * (AHEAD * WARP) + lane();
  Strip from;
  const typename X::T* gFrom;  // the row to be asked for
  auto open = [&](int i_tile, int half) { from = strip(tiles, i_tile, half, mine), gFrom = gPre + from.place(0, PARTS * F); };
  auto ask = [&](int first) {
#pragma unroll
    for (int r = first; r < first + TOGETHER; ++r, gFrom += PARTS * F)
#pragma unroll
      for (int p = 0; p < PARTS; ++p) copy_async<16>(sPre + (r % DEEP * PARTS + p) * WARP, gFrom + p * F, r < from.rows);
    copy_commit();
  };
  Stage<1> at;
  open(blockIdx.x, 0);
  for (int r = 0; r < DEEP; r += TOGETHER) ask(r);
  for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++at)
    for (int half = 0; half < 2; ++half) {
      const Strip to = strip(tiles, i_tile, half, mine);
      const char* sHalf = sX + X::OUTS + half * X::OUT;
      start(to);
      consumer_wait(sR.out[half], at);
#pragma unroll 1
      for (int first = 0; first < ROWS; first += TOGETHER) {
        if (first == ROWS - DEEP) open(half ? i_tile + gridDim.x : i_tile, half ^ 1);
        copy_wait<DEEP / TOGETHER - 1>();
#pragma unroll
        for (int r = first; r < first + TOGETHER; ++r)
          row(r < to.rows, mine < X::N ? in_half(sHalf, r, mine) : make_uint4(0, 0, 0, 0), sPre + r % DEEP * PARTS * WARP);
        ask((first + DEEP) % ROWS);
      }
      end(half, i_tile);
      consumer_release(sR.out[half], at);
    }
  copy_wait<0>();
}

// ---- gelu ----------------------------------------------------------------------------------------------------------------------

// Beside an activation what its gradient will need: itself what it was given, or, Sloped, its slope there, for which it has nearly all that it takes. That
// is what multiplies d then, Slope, and nothing is computed of it.
template <typename Act> struct Sloped : Act {};
struct Slope {
  static ROOFTILE_DEVICE Point point(float d) { return {0.0f, d}; }
};
template <typename Act> ROOFTILE_DEVICE Point activate(float x, Act) { return {Act::value(x), x}; }
template <typename Act> ROOFTILE_DEVICE Point activate(float x, Sloped<Act>) { return Act::point(x); }

// h = act(pre) of pre = d, which begins with the bias, and what the gradient needs.
template <typename X, typename Act> struct Activate {
  using T = typename X::T;
  T *gKept, *gH;
  const T* gBias;
  int biased;  // columns: F, or 0 where there is no bias

  static constexpr bool COPIED = false;
  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int i_n) const { from_bias<X>(d, gBias, biased, i_n); }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    const int mine = lane() * 8;
    Stage<1> at;
    for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++at)
      for (int half = 0; half < 2; ++half) {
        const Strip to = strip(tiles, i_tile, half, mine);
        consumer_wait(sR.out[half], at);
#pragma unroll 4
        for (int r = 0; r < ROWS; ++r) {
          if (r >= to.rows) break;
          uint4 kept = in_half(sX + X::OUTS + half * X::OUT, r, mine), h;
          float x[8], y[8];
          unpack<T>(x, kept);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const Point of = activate(x[i], Act());
            y[i] = of.y, x[i] = of.d;
          }
          pack<T>(h, y);
          pack<T>(kept, x);
          __stwb(reinterpret_cast<uint4*>(gKept + to.place(r, tiles.F)), kept);
          __stwb(reinterpret_cast<uint4*>(gH + to.place(r, tiles.F)), h);
        }
        consumer_release(sR.out[half], at);
      }
  }
};

// dpre = d act'(pre), and of each tile the sums of its columns, of the numbers as they are written.
template <typename X, typename Act> struct Deactivate {
  using T = typename X::T;
  T* gDpre;
  const T* gKept;
  float* gPartial;

  static constexpr bool COPIED = false;
  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int) const { from_zero(d); }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    float sum[8] = {};
    T* gTo;
    auto start = [&](const Strip& to) { gTo = gDpre + to.place(0, tiles.F); };
    auto row = [&](bool there, uint4 d, const uint4* sPre) {
      float x[8], kept[8];
      unpack<T>(x, d);
      unpack<T>(kept, *sPre);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= Act::point(kept[i]).d;
      pack<T>(d, x);
      if (there) __stwb(reinterpret_cast<uint4*>(gTo), d);
      else d = make_uint4(0, 0, 0, 0);  // it is NaN where a weight is not finite
      gTo += tiles.F;
      unpack<T>(x, d);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += x[i];
    };
    finish_beside<1, X>(gKept, sX, sR, tiles, start, row, [&](int half, int i_tile) {
      if (half == 0) return;
      add_up(reinterpret_cast<float*>(sX + X::OUTS + X::OUT), sum, tiles, i_tile);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = 0.0f;
    });
  }

  // The four warps' sums, in one order: a thread adds two columns. A warp's lie where its rows of the half did.
  ROOFTILE_DEVICE void add_up(float* sSum, const float (&sum)[8], const Tiles<X::WIDE>& tiles, int i_tile) const {
    constexpr int APART = ROWS * LINE / 4;
    static_assert(X::N <= APART, "a row of sums in the place of a panel's rows");
    const int2 tile = tiles.at(i_tile);
    const int mine = threadIdx.x % 128 * 2, column = tile.y * X::N + mine;
    __syncwarp();
    if (lane() * 8 < X::N) {
      float4* sMine = reinterpret_cast<float4*>(sSum + warp() % 4 * APART + lane() * 8);
      sMine[0] = make_float4(sum[0], sum[1], sum[2], sum[3]), sMine[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
    barrier_sync(1, 128);
    if (mine < X::N && column < tiles.F) {
      float2 all = {0.0f, 0.0f};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 two = *reinterpret_cast<const float2*>(sSum + w * APART + mine);
        all.x += two.x, all.y += two.y;
      }
      *reinterpret_cast<float2*>(gPartial + (long long)tile.x * tiles.F + column) = all;
    }
  }
};

// ---- an activation as a gate ---------------------------------------------------------------------------------------------------

// gate and up = d, side by side as in pre, which is written where it is to be kept, and h = act(gate) up. Half a warp has a row.
template <typename X, typename Act> struct Gate {
  using T = typename X::T;
  T *gPre, *gH;
  bool kept;

  static constexpr bool COPIED = false;
  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int) const { from_zero(d); }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    const int mine = lane() % 16 * 8, odd = lane() / 16, F = tiles.F;
    Stage<1> at;
    for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++at)
      for (int half = 0; half < 2; ++half) {
        const Strip to = strip(tiles, i_tile, half, mine, odd);
        const char* sHalf = sX + X::OUTS + half * X::OUT;
        consumer_wait(sR.out[half], at);
#pragma unroll 4
        for (int r = 0; r < ROWS; r += 2) {
          if (r >= to.rows) break;
          const uint4 gate = in_half(sHalf, r + odd, mine), up = in_half(sHalf, r + odd, X::WIDE + mine);
          uint4 h;
          float x[8], y[8];
          unpack<T>(x, gate);
          unpack<T>(y, up);
#pragma unroll
          for (int i = 0; i < 8; ++i) x[i] = Act::value(x[i]) * y[i];
          pack<T>(h, x);
          if (kept) {
            T* gTo = gPre + to.place(r, 2LL * F);
            __stwb(reinterpret_cast<uint4*>(gTo), gate);
            __stwb(reinterpret_cast<uint4*>(gTo + F), up);
          }
          __stwb(reinterpret_cast<uint4*>(gH + to.place(r, F)), h);
        }
        consumer_release(sR.out[half], at);
      }
  }
};

// d is h's gradient: dpre = d up act'(gate) and, beside it, d act(gate); and h once more, which nobody kept.
template <typename X, typename Act> struct GateSlope {
  using T = typename X::T;
  T *gDpre, *gH;
  const T* gPre;

  static constexpr bool COPIED = false;
  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int) const { from_zero(d); }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    const int F = tiles.F;
    T *gDgate, *gTo;
    auto start = [&](const Strip& to) { gDgate = gDpre + to.place(0, 2LL * F), gTo = gH + to.place(0, F); };
    auto row = [&](bool there, uint4 d, const uint4* sPre) {
      float x[8], gate[8], up[8];
      unpack<T>(x, d);
      unpack<T>(gate, sPre[0]);
      unpack<T>(up, sPre[WARP]);
      uint4 dgate, dup, h;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const Point of = Act::point(gate[i]);
        const float both = x[i] * of.y, all = up[i] * of.y;
        gate[i] = x[i] * up[i] * of.d, x[i] = both, up[i] = all;
      }
      pack<T>(dgate, gate);
      pack<T>(dup, x);
      pack<T>(h, up);
      if (there) {
        __stwb(reinterpret_cast<uint4*>(gDgate), dgate);
        __stwb(reinterpret_cast<uint4*>(gDgate + F), dup);
        __stwb(reinterpret_cast<uint4*>(gTo), h);
      }
      gDgate += 2 * F, gTo += F;
    };
    finish_beside<2, X>(gPre, sX, sR, tiles, start, row, [](int, int) {});
  }
};

// ---- the kernels -------------------------------------------------------------------------------------------------------------

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    mlp_forward(T* gKept, T* gH, const __grid_constant__ TensorMap tX, const __grid_constant__ TensorMap tWeight, const T* gBias, int biased, int M, int F,
                int steps, int group) {
  using X = Tile<T, K_MAJOR, K_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(Activate<X, Act>{gKept, gH, gBias, biased}, tX, tWeight, Tiles<N>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    mlp_backward(T* gDpre, float* gPartial, const __grid_constant__ TensorMap tDout, const __grid_constant__ TensorMap tWeight, const T* gKept, int M, int F,
                 int steps, int group) {
  using X = Tile<T, K_MAJOR, MN_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(Deactivate<X, Act>{gDpre, gKept, gPartial}, tDout, tWeight, Tiles<N>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1) ROOFTILE_CLUSTER(2)
    gated_forward(T* gPre, T* gH, const __grid_constant__ TensorMap tX, const __grid_constant__ TensorMap tWeight, int kept, int M, int F, int steps,
                  int group) {
  using X = Tile<T, K_MAJOR, K_MAJOR, 2, N, K, STAGES, LAG>;
  block<X>(Gate<X, Act>{gPre, gH, kept != 0}, tX, tWeight, Tiles<X::WIDE>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1) ROOFTILE_CLUSTER(2)
    gated_backward(T* gDpre, T* gH, const __grid_constant__ TensorMap tDout, const __grid_constant__ TensorMap tWeight, const T* gPre, int M, int F,
                   int steps, int group) {
  using X = Tile<T, K_MAJOR, MN_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(GateSlope<X, Act>{gDpre, gH, gPre}, tDout, tWeight, Tiles<N>{M, F, group}, steps);
}
