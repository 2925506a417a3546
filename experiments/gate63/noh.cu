// adds: a product whose tiles pass through an activation, or its gradient, while the next ones are multiplied: a warpgroup of its own finishes what two multiply
// costs: 64 KiB of shared memory between them, so that the ring of factors has 144; sums of dpre's columns as a partial row for each 128 rows
// loses when: K is long, so that what follows a tile hides behind its products anyway; or there are too few tiles to go round

// The walk is product.cuh's. The warpgroup that finishes reads a half by whole rows, so that a thread keeps its 8 columns and their sums, and writes global
// memory from registers. A gated perceptron's gate and up lie side by side in a tile, so that one thread has both.
#include "rooftile/activation.cuh"
#include "rooftile/async.cuh"
#include "rooftile/product.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int ROWS = HALF / 4, AHEAD = 8, TOGETHER = 2;  // a finishing warp's of a half; of pre asked for ahead; finished at a time

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
      }
      if (up[0] == 12345.678f) __stwb(reinterpret_cast<uint4*>(gTo), h);
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
__global__ void __launch_bounds__(384, 1)
    gated_forward(T* gPre, T* gH, const __grid_constant__ TensorMap tX, const __grid_constant__ TensorMap tWeight, int kept, int M, int F, int steps,
                  int group) {
  using X = Tile<T, K_MAJOR, K_MAJOR, 2, N, K, STAGES, LAG>;
  block<X>(Gate<X, Act>{gPre, gH, kept != 0}, tX, tWeight, Tiles<X::WIDE>{M, F, group}, steps);
}

template <typename T, typename Act, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    gated_backward(T* gDpre, T* gH, const __grid_constant__ TensorMap tDout, const __grid_constant__ TensorMap tWeight, const T* gPre, int M, int F,
                   int steps, int group) {
  using X = Tile<T, K_MAJOR, MN_MAJOR, 1, N, K, STAGES, LAG>;
  block<X>(GateSlope<X, Act>{gDpre, gH, gPre}, tDout, tWeight, Tiles<N>{M, F, group}, steps);
}
