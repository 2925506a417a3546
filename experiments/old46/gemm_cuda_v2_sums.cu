// adds: the bias's gradient beside the weight's: dout's columns are summed where its tiles lie in shared memory to be multiplied, by a warpgroup of its own
// costs: the rows are summed in parts, in float32, which a second launch adds up
// loses when: there are more tiles than multiprocessors, or so many parts that adding them up takes longer than reading dout once more

// dweight [F, K] = doutᵀ x of dout [M, F], x [M, K]. A block has one tile and one part of M, a multiplier 64 rows of the tile; both factors lie across their
// sums. The tiles of the first column see all of dout once.
#include "rooftile/early.cuh"
#include "rooftile/product.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

constexpr int GROUPS = 8;  // of the threads that sum: each has every eighth row of a step, 16 threads side by side 8 columns each

template <typename X> struct Share {  // of a block
  int row, column;                    // where its tile begins
  int first, last;                    // of the steps
};

// One thread asks for the block's steps.
template <typename X> struct Asking {
  const TensorMap &tDout, &tX;
  const Share<X>& share;
  int k;
  Stage<X::STAGES> at;

  ROOFTILE_DEVICE Asking(const TensorMap& tDout, const TensorMap& tX, const Share<X>& share) : tDout(tDout), tX(tX), share(share), k(share.first) {}
  ROOFTILE_DEVICE void ask(char* sX, Pipeline<X::STAGES>& sRing) {
    if (k == share.last) return;
    char *sA = sX + at.index * (X::A + X::B), *sB = sA + X::A;
    MBarrier* sFull = &sRing.full[at.index];
    producer_acquire(sRing, at, X::A + X::B);
#pragma unroll
    for (int p = 0; p < BLOCK_M / 64; ++p) tensor_load(sA + p * X::K * LINE, tDout, sFull, share.row + p * 64, k * X::K);
#pragma unroll
    for (int p = 0; p < X::N / 64; ++p) tensor_load(sB + p * X::K * LINE, tX, sFull, share.column + p * 64, k * X::K);
    ++at, ++k;
  }
};

// The two that multiply: SECOND the lower half, and of it one thread asks.
template <typename X, bool SECOND>
ROOFTILE_DEVICE void multiply_all(float* gPartial, const TensorMap& tDout, const TensorMap& tX, char* sX, Pipeline<X::STAGES>& sRing, const Share<X>& share,
                                  int F, int K) {
  const bool asks = SECOND && threadIdx.x % 128 == 0;
  Asking<X> asking(tDout, tX, share);
  if (asks)
    for (int i = 0; i < X::STAGES; ++i) asking.ask(sX, sRing);
  float d[X::N / 2];
  from_zero(d);
  pin(d);
  Stage<X::STAGES> at, before;
  for (int k = share.first; k < share.last; ++k, ++at) {
    const char* sA = sX + at.index * (X::A + X::B);
    consumer_wait(sRing, at);
    multiply<X>(d, sA + SECOND * X::K * LINE, sA + X::A);
    if (k == share.first) continue;
    wgmma_wait<1>();
    consumer_release(sRing, before);
    ++before;
    if (asks) asking.ask(sX, sRing);
  }
  wgmma_wait<0>(d);
#pragma unroll
  for (int i = 0; i < X::N / 2; i += 2) {
    const int row = share.row + SECOND * HALF + wgmma_row(i), column = share.column + wgmma_column(i);
    if (row < F && column < K) *reinterpret_cast<float2*>(gPartial + (long long)row * K + column) = make_float2(d[i], d[i + 1]);
  }
}

// The third sums the 128 columns of dout that the tile has.
template <typename X>
ROOFTILE_DEVICE void sum_columns(float* gSums, const char* sX, Pipeline<X::STAGES>& sRing, float (&sSum)[GROUPS][BLOCK_M], const Share<X>& share, int F) {
  const int group = threadIdx.x % 128 / 16, mine = threadIdx.x % 16;  // 16 bytes of a row
  float sum[8] = {};
  Stage<X::STAGES> at;
  for (int k = share.first; k < share.last; ++k, ++at) {
    const char* sPanel = sX + at.index * (X::A + X::B) + mine / 8 * X::K * LINE;
    consumer_wait(sRing, at);
#pragma unroll
    for (int r = group; r < X::K; r += GROUPS) {
      float x[8];
      unpack<typename X::T>(x, *reinterpret_cast<const uint4*>(sPanel + swizzled<128>(r * LINE + mine % 8 * 16)));
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += x[i];
    }
    consumer_release(sRing, at);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sSum[group][mine * 8 + i] = sum[i];
  barrier_sync(1, 128);
  const int column = threadIdx.x % 128;
  float all = 0.0f;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) all += sSum[g][column];
  if (share.row + column < F) gSums[share.row + column] = all;
}

// Part p of the sums over `steps` steps of M: gPartial[p] of dweight, gSums[p] of dbias.
template <typename T, int N, int K_STEP, int STAGES>
__global__ void __launch_bounds__(384, 1)
    weight_gradient(float* gPartial, float* gSums, const __grid_constant__ TensorMap tDout, const __grid_constant__ TensorMap tX, int F, int K, int steps,
                    int parts) {
  using X = Tile<T, MN_MAJOR, MN_MAJOR, 1, N, K_STEP, STAGES, 0>;
  extern __shared__ __align__(1024) char sX[];
  __shared__ Pipeline<STAGES> sRing;
  __shared__ float sSum[GROUPS][BLOCK_M];
  const int across = ceil_div(K, N), tiles = ceil_div(F, BLOCK_M) * across, part = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int each = ceil_div(steps, parts);
  const Share<X> share{tile / across * BLOCK_M, tile % across * N, min(part * each, steps), min((part + 1) * each, steps)};
  const bool summed = share.column == 0;
  gPartial += (long long)part * F * K, gSums += part * F;
  if (threadIdx.x == 0) pipeline_init(sRing, 1, summed ? 12 : 8);
  __syncthreads();
  if (threadIdx.x >= 256) {
    registers_lower<136>();
    if (summed) sum_columns<X>(gSums, sX, sRing, sSum, share, F);
  } else if (threadIdx.x >= 128) {
    registers_raise<184>();
    multiply_all<X, true>(gPartial, tDout, tX, sX, sRing, share, F, K);
  } else {
    registers_raise<184>();
    multiply_all<X, false>(gPartial, tDout, tX, sX, sRing, share, F, K);
  }
}

// gDweight = the sum of gPartial's parts, gDbias that of gSums', part after part; a thread has 8 neighbours of the one, or one of the other.
template <typename T>
__global__ void ROOFTILE_EARLY __launch_bounds__(256)
    add_parts(T* __restrict__ gDweight, T* __restrict__ gDbias, const float* __restrict__ gPartial, const float* __restrict__ gSums, long long size, int F,
              int parts) {
  const long long mine = blockIdx.x * 256LL + threadIdx.x, i = mine * 8;
  earlier_done();
  if (mine < F) {
    float all = 0.0f;
    for (int p = 0; p < parts; ++p) all += gSums[p * F + mine];
    gDbias[mine] = T(all);
  }
  if (i >= size) return;
  float all[8] = {};
  for (int p = 0; p < parts; ++p)
#pragma unroll
    for (int v = 0; v < 8; v += 4) {
      Vec<float, 4> four;
      load_global(four, gPartial + p * size + i + v);
#pragma unroll
      for (int j = 0; j < 4; ++j) all[v + j] += four[j];
    }
  Vec<T, 8> out;
  from_float(out, all);
  store_global(gDweight + i, out);
}
