// adds: a product whose tiles pass through an activation, or its gradient, while the next ones are multiplied: a warpgroup of its own finishes what two multiply
// costs: 64 KiB of shared memory between them, so that the ring of factors has 144; sums of dpre's columns as a partial row for each 128 rows
// loses when: K is long, so that what follows a tile hides behind its products anyway; or there are too few tiles to go round

// A block walks tiles of 128 x N. Each of two warpgroups multiplies 64 rows of a tile, rounds them as the operator would hand them over, and leaves them
// in its half of shared memory; the third reads them by whole rows, so that a thread keeps its 8 columns and their sums, and writes global memory from
// registers. The second begins each tile LAG steps behind the first: one leaves its half while the other multiplies. So it is the last to read a stage,
// and one thread of it asks for the next. A gated perceptron's gate and up lie side by side in a tile, so that one thread has both.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/activation.cuh"
#include "rooftile/async.cuh"
#include "rooftile/fragments.cuh"
#include "rooftile/pipeline.cuh"
#include "rooftile/tma.cuh"
#include "rooftile/vec.cuh"
#include "rooftile/wgmma.cuh"

using namespace rooftile;

constexpr int BLOCK_M = 128, HALF = 64, LINE = 128, PANEL = HALF * LINE;  // a panel: 64 rows of 64 columns
constexpr int ROWS = HALF / 4, AHEAD = 8, TOGETHER = 2;                   // a finishing warp's of a half; of pre asked for ahead; finished at a time

// K of a step, STAGES steps under way. MAJOR is B's: [PARTS F, K] forward, [K, F] backward. A tile is as many columns of each of the PARTS.
template <typename T_, Major MAJOR_, int PARTS_, int N_, int K_, int STAGES_, int LAG_> struct Tile {
  using T = T_;
  static constexpr Major MAJOR = MAJOR_;
  static constexpr int PARTS = PARTS_, N = N_, K = K_, STAGES = STAGES_, LAG = LAG_, WIDE = N / PARTS;
  static_assert(MAJOR == K_MAJOR || PARTS == 1, "columns of B that lie apart are not read as panels");
  static_assert(N % 64 == 0 && N <= 256 && (K == 32 || K == 64), "whole panels, a box of at most 256; a line of 64 or 128 bytes");
  static_assert(LAG < STAGES, "what the first has read more than the second is still there");
  static constexpr int A = BLOCK_M * K * 2, B = N * K * 2, OUT = HALF * N * 2;  // bytes
  static constexpr int OUTS = STAGES * (A + B), PRE = OUTS + 2 * OUT;  // where things lie behind the ring; the launcher counts the same bytes
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
    tensor_load(sA, tA, sFull, k * X::K, tile.x * BLOCK_M);
    if constexpr (X::MAJOR == K_MAJOR) {
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

// One step of 64 x N: A along K, B as it lies.
template <typename X> ROOFTILE_DEVICE void multiply(float (&d)[X::N / 2], const char* sA, const char* sB) {
  constexpr int SWIZZLE = X::K * 2, NEXT = X::MAJOR == K_MAJOR ? 32 : 16 * LINE;
  const Matrix a = k_major<SWIZZLE>(sA), b = X::MAJOR == K_MAJOR ? k_major<SWIZZLE>(sB) : mn_major<128>(sB, X::K * LINE);
  wgmma_fence(d);
#pragma unroll
  for (int i = 0; i < X::K / 16; ++i) wgmma<typename X::T, X::N, K_MAJOR, X::MAJOR>(d, a + i * 32, b + i * NEXT);
  wgmma_commit();
}

// Rounded, to where the third warpgroup reads it.
template <typename X> ROOFTILE_DEVICE void hand_over(char* sHalf, Pipeline<1>& sRing, const Stage<1>& at, const float (&d)[X::N / 2]) {
  producer_acquire(sRing, at);
  unsigned out[X::N / 16][4];
#pragma unroll
  for (int k = 0; k < X::N / 16; ++k) wgmma_operand<typename X::T>(out[k], d, k);
  store_operand(sHalf, PANEL, warp() % 4 * 16, out);
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
    hand_over<X>(sHalf, sR.out[SECOND], whole, d);
  }
}

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
// next tile: copies that a thread makes for itself. row(to, r, d, sPre) finishes one, half(...) what a half has come to.
template <int PARTS, typename X, typename Row, typename Half>
ROOFTILE_DEVICE void finish_beside(const typename X::T* gPre, char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles, Row row, Half end) {
  constexpr int DEEP = AHEAD / PARTS;
  const int mine = lane() * 8;
  uint4* sPre = reinterpret_cast<uint4*>(sX + X::PRE) + warp() % 4 * (AHEAD * WARP) + lane();
  auto ask = [&](const Strip& from, int first) {
#pragma unroll
    for (int r = first; r < first + TOGETHER; ++r) {
      const bool there = r < from.rows;
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
        copy_async<16>(sPre + (r % DEEP * PARTS + p) * WARP, there ? gPre + from.place(r, PARTS * tiles.F) + p * tiles.F : gPre, there);
    }
    copy_commit();
  };
  Stage<1> at;
  Strip from = strip(tiles, blockIdx.x, 0, mine);
  for (int r = 0; r < DEEP; r += TOGETHER) ask(from, r);
  for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++at)
    for (int half = 0; half < 2; ++half) {
      const Strip to = strip(tiles, i_tile, half, mine);
      consumer_wait(sR.out[half], at);
#pragma unroll 1
      for (int first = 0; first < ROWS; first += TOGETHER) {
        if (first == ROWS - DEEP) from = half ? strip(tiles, i_tile + gridDim.x, 0, mine) : strip(tiles, i_tile, 1, mine);
        copy_wait<DEEP / TOGETHER - 1>();
#pragma unroll
        for (int r = first; r < first + TOGETHER; ++r) {
          const uint4 d = mine < X::N ? in_half(sX + X::OUTS + half * X::OUT, r, mine) : make_uint4(0, 0, 0, 0);
          row(to, r, d, sPre + r % DEEP * PARTS * WARP);
        }
        ask(from, (first + DEEP) % ROWS);
      }
      end(half, i_tile);
      consumer_release(sR.out[half], at);
    }
  copy_wait<0>();
}

// ---- gelu ----------------------------------------------------------------------------------------------------------------------

// pre = d, which begins with the bias, and h = gelu(pre).
template <typename X, typename Act> struct Activate {
  using T = typename X::T;
  T *gPre, *gH;
  const T* gBias;
  int biased;  // columns: F, or 0 where there is no bias

  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int i_n) const {
#pragma unroll
    for (int i = 0; i < X::N / 2; i += 4) {
      const int column = i_n * X::N + wgmma_column(i);
      const float2 two = unpack_pair(T(), column < biased ? *reinterpret_cast<const unsigned*>(gBias + column) : 0u);
      d[i] = d[i + 2] = two.x, d[i + 1] = d[i + 3] = two.y;
    }
  }

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
          const uint4 pre = in_half(sX + X::OUTS + half * X::OUT, r, mine);
          uint4 h;
          float x[8];
          unpack<T>(x, pre);
#pragma unroll
          for (int i = 0; i < 8; ++i) x[i] = Act::value(x[i]);
          pack<T>(h, x);
          __stwb(reinterpret_cast<uint4*>(gPre + to.place(r, tiles.F)), pre);
          __stwb(reinterpret_cast<uint4*>(gH + to.place(r, tiles.F)), h);
        }
        consumer_release(sR.out[half], at);
      }
  }
};

// dpre = d gelu'(pre), and of each tile the sums of its columns, of the numbers as they are written.
template <typename X, typename Act> struct Slope {
  using T = typename X::T;
  T* gDpre;
  const T* gPre;
  float* gPartial;

  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int i_n) const {
#pragma unroll
    for (int i = 0; i < X::N / 2; ++i) d[i] = 0.0f;
  }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    float sum[8] = {};
    auto row = [&](const Strip& to, int r, uint4 d, const uint4* sPre) {
      float x[8], pre[8];
      unpack<T>(x, d);
      unpack<T>(pre, *sPre);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= Act::point(pre[i]).d;
      pack<T>(d, x);
      if (r < to.rows) __stwb(reinterpret_cast<uint4*>(gDpre + to.place(r, tiles.F)), d);
      else d = make_uint4(0, 0, 0, 0);  // it is NaN where a weight is not finite
      unpack<T>(x, d);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += x[i];
    };
    finish_beside<1, X>(gPre, sX, sR, tiles, row, [&](int half, int i_tile) {
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

  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int i_n) const {
#pragma unroll
    for (int i = 0; i < X::N / 2; ++i) d[i] = 0.0f;
  }

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

  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int i_n) const {
#pragma unroll
    for (int i = 0; i < X::N / 2; ++i) d[i] = 0.0f;
  }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    const int F = tiles.F;
    auto row = [&](const Strip& to, int r, uint4 d, const uint4* sPre) {
      if (r >= to.rows) return;
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
      T* gTo = gDpre + to.place(r, 2LL * F);
      __stwb(reinterpret_cast<uint4*>(gTo), dgate);
      __stwb(reinterpret_cast<uint4*>(gTo + F), dup);
      __stwb(reinterpret_cast<uint4*>(gH + to.place(r, F)), h);
    };
    finish_beside<2, X>(gPre, sX, sR, tiles, row, [](int, int) {});
  }
};

// ---- the kernels -------------------------------------------------------------------------------------------------------------

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

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    mlp_forward(T* gPre, T* gH, const __grid_constant__ TensorMap tX, const __grid_constant__ TensorMap tWeight, const T* gBias, int biased, int M, int F,
                int steps, int group) {
  using X = Tile<T, K_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(Activate<X, Act>{gPre, gH, gBias, biased}, tX, tWeight, Tiles<N>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    mlp_backward(T* gDpre, float* gPartial, const __grid_constant__ TensorMap tDout, const __grid_constant__ TensorMap tWeight, const T* gPre, int M, int F,
                 int steps, int group) {
  using X = Tile<T, MN_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(Slope<X, Act>{gDpre, gPre, gPartial}, tDout, tWeight, Tiles<N>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    gated_forward(T* gPre, T* gH, const __grid_constant__ TensorMap tX, const __grid_constant__ TensorMap tWeight, int kept, int M, int F, int steps,
                  int group) {
  using X = Tile<T, K_MAJOR, 2, N, K, STAGES, LAG>;
  block<X>(Gate<X, Act>{gPre, gH, kept != 0}, tX, tWeight, Tiles<X::WIDE>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    gated_backward(T* gDpre, T* gH, const __grid_constant__ TensorMap tDout, const __grid_constant__ TensorMap tWeight, const T* gPre, int M, int F,
                   int steps, int group) {
  using X = Tile<T, MN_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(GateSlope<X, Act>{gDpre, gH, gPre}, tDout, tWeight, Tiles<N>{M, F, group}, steps);
}
