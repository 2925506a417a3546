// adds: a plain product on the walk of mlp's: each factor as it lies, along K or across it; the copy engine takes a tile away while the next ones are multiplied
// costs: 64 KiB of shared memory for the tile on its way out, so that the ring of factors has 144
// loses when: there are too few tiles to go round, as of a weight's gradient, whose sums are long

// No thread touches a rounded number again: a warp of the third warpgroup has the engine store a panel of 64 rows of 64 columns, and the engine leaves out what
// lies past the edges. There too it brought zeros, of K as of M and F.
#include "rooftile/product.cuh"

using namespace rooftile;

template <typename X> struct Store {
  const TensorMap& tOut;
  const typename X::T* gBias;
  int biased;  // columns: F, or 0 where there is no bias

  static constexpr bool COPIED = true;
  // Without a bias too: of sums that begin in two branches the assembler runs the products one by one.
  ROOFTILE_DEVICE void begin(float (&d)[X::N / 2], int i_n) const { from_bias<X>(d, gBias, biased, i_n); }

  ROOFTILE_DEVICE void finish(char* sX, Rings<X::STAGES>& sR, const Tiles<X::WIDE>& tiles) const {
    const int p = warp() % 4;  // its panel
    Stage<1> at;
    for (int i_tile = blockIdx.x; i_tile < tiles.count(); i_tile += gridDim.x, ++at) {
      const int2 tile = tiles.at(i_tile);
      for (int half = 0; half < 2; ++half) {
        const char* sHalf = sX + X::OUTS + half * X::OUT;
        consumer_wait(sR.out[half], at);
        if (p < X::N / 64 && lane() == 0) {
          tensor_store(tOut, sHalf + p * PANEL, tile.y * X::N + p * 64, tile.x * BLOCK_M + half * HALF);
          bulk_commit();
          bulk_wait_read<0>();
        }
        consumer_release(sR.out[half], at);
      }
    }
  }
};

// A [M, K] or, MN_MAJOR, [K, M]; B [F, K] or, MN_MAJOR, [K, F].
template <typename T, Major A, Major B, int N, int K, int STAGES, int LAG>
__global__ void __launch_bounds__(384, 1)
    product(const __grid_constant__ TensorMap tOut, const __grid_constant__ TensorMap tA, const __grid_constant__ TensorMap tB, const T* gBias, int biased,
            int M, int F, int steps, int group) {
  using X = Tile<T, A, B, 1, N, K, STAGES, LAG>;
  block<X>(Store<X>{tOut, gBias, biased}, tA, tB, Tiles<N>{M, F, group}, steps);
}
