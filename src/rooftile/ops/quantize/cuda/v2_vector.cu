// adds: 16 bytes an access and a block of elements in registers, read once; one scale for everything begins its second read where the first ended
// costs: rows must be whole vectors; a row has 1024 threads of 8 vectors at most; every block of the second pass reduces the first pass's ends
// loses when: rows are longer than that, or x is so small that the second launch is what it costs
#include "rooftile/quantize.cuh"

using namespace rooftile;

// 40 registers a thread, or 64 where 8 vectors are held: left to itself the compiler takes vectors apart early, and fewer threads fit
template <int VECS, int THREADS, int LESS = 0> constexpr int BLOCKS = ((VECS > 4 ? 1024 : 1536) - LESS) / THREADS;

// A scale for each BLOCK_M x BLOCK_N of x: 1 x 0 (a row), 1 x 128, 128 x 128. LANES threads hold one, each VECS vectors of it.
// `across` blocks lie beside each other.
template <typename T, typename Q, int BLOCK_M, int BLOCK_N, int LANES, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    blocks(Q* __restrict__ gOut, float* __restrict__ gScale, const T* __restrict__ gX, long long M, int N, long long stride, int across, bool power) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a block of elements belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), SIDE = BLOCK_N ? BLOCK_N / WIDTH : 1;
  static_assert(!BLOCK_N || LANES * VECS == BLOCK_M * SIDE, "the vectors of a block of elements, dealt out evenly");
  __shared__ float sPartial[2][WARP];
  const unsigned zero = hidden_zero(N);
  const int i_l = threadIdx.x % LANES;
  const long long i_b = blockIdx.x * (long long)(THREADS / LANES) + threadIdx.x / LANES;
  const long long i_m = BLOCK_N ? unsigned(i_b) / unsigned(across) * (long long)BLOCK_M : i_b;  // the host counts fewer than 2^31 of them
  const int i_n = BLOCK_N ? unsigned(i_b) % unsigned(across) * BLOCK_N : 0;
  const auto row = [&](int v) { return BLOCK_M > 1 ? (i_l + v * LANES) / SIDE : 0; };
  const auto column = [&](int v) { return (BLOCK_M > 1 ? (i_l + v * LANES) % SIDE : i_l + v * LANES) * WIDTH; };
  const auto there = [&](int v) { return i_m + row(v) < M && i_n + column(v) < N; };
  uint4 rX[VECS] = {};
  float rF[WIDTH], amax = 0.0f;
  const T* gFrom = gX + i_m * stride + i_n;
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (there(v)) rX[v] = __ldca(reinterpret_cast<const uint4*>(gFrom + row(v) * stride + column(v)));
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rF, rX[v]);
    amax = largest_of(amax, rF);
    stay_packed(rX[v], zero);
  }
  const float scale = scale_of<Q>(row_reduce<LANES>(amax, Larger(), sPartial, 0), power);
  const Symmetric<Q> how = {inverse_of(scale)};
  Q* gTo = gOut + i_m * N + i_n;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (!there(v)) continue;
    unpack<T>(rF, rX[v]);
    __stwb(reinterpret_cast<Bytes<WIDTH>*>(gTo + row(v) * (long long)N + column(v)), quantized(rF, how));
  }
  if (i_l == 0 && i_m < M) gScale[i_b] = scale;
}

// The smallest and the largest element that each block meets, 0 among them: gEnds [2, blocks]; without AFFINE the largest magnitude alone.
// All blocks walk through memory together. From element `keep` on, what is read is to stay in the L2.
template <typename T, bool AFFINE, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, 2048 / THREADS)
    extremes(float* __restrict__ gEnds, const T* __restrict__ gX, long long total, long long keep) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const long long vectors = total / WIDTH, step = gridDim.x * (long long)THREADS;
  const uint4* gFrom = reinterpret_cast<const uint4*>(gX);
  float rF[WIDTH], low = 0.0f, high = 0.0f;
  const auto meet = [&](const uint4& r) {
    unpack<T>(rF, r);
    if (!AFFINE) high = largest_of(high, rF);
#pragma unroll
    for (int k = 0; k < WIDTH && AFFINE; ++k) low = fminf(low, rF[k]), high = fmaxf(high, rF[k]);
  };
  long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  for (; i + (VECS - 1) * step < vectors; i += VECS * step) {
    uint4 rX[VECS];
    if (i * WIDTH < keep) {
#pragma unroll
      for (int v = 0; v < VECS; ++v) rX[v] = __ldca(gFrom + i + v * step);
    } else {
#pragma unroll
      for (int v = 0; v < VECS; ++v) rX[v] = __ldcg(gFrom + i + v * step);
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) meet(rX[v]);
  }
  for (; i < vectors; i += step) meet(__ldcg(gFrom + i));
  i = vectors * WIDTH + threadIdx.x;  // fewer than WIDTH are left
  if (blockIdx.x == 0 && i < total) low = fminf(low, float(gX[i])), high = fmaxf(high, fmaxf(float(gX[i]), AFFINE ? 0.0f : -float(gX[i])));
  high = row_reduce<THREADS>(high, Larger(), sPartial, 0);
  if (AFFINE) low = -row_reduce<THREADS>(-low, Larger(), sPartial, 1);
  if (threadIdx.x == 0) gEnds[blockIdx.x] = fmaxf(low, -HUGEST), gEnds[gridDim.x + blockIdx.x] = fminf(high, HUGEST);
}

// A block's vectors are asked for before it reduces the ends of `parts` blocks; the first block takes the last of x, which is still in the L2.
template <typename T, typename Q, bool AFFINE, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, BLOCKS<VECS, THREADS, AFFINE ? 512 : 0>)
    whole(Q* __restrict__ gOut, float* __restrict__ gScale, int* __restrict__ gZero, const T* __restrict__ gX, const float* __restrict__ gEnds,
          int parts, long long total, bool power) {
  constexpr int WIDTH = 16 / sizeof(T);
  __shared__ float sPartial[2][WARP];
  const long long first = (gridDim.x - 1 - blockIdx.x) * (long long)(THREADS * VECS * WIDTH), left = total - first;
  const int i_t = threadIdx.x * WIDTH;
  uint4 rX[VECS] = {};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (i_t + (v * THREADS + 1) * WIDTH <= left) rX[v] = __ldca(reinterpret_cast<const uint4*>(gX + first + i_t + v * THREADS * WIDTH));
  float low = 0.0f, high = 0.0f;
  for (int i = threadIdx.x; i < parts; i += THREADS) {
    high = fmaxf(high, __ldg(gEnds + parts + i));
    if (AFFINE) low = fminf(low, __ldg(gEnds + i));
  }
  high = row_reduce<THREADS>(high, Larger(), sPartial, 0);
  if (AFFINE) low = -row_reduce<THREADS>(-low, Larger(), sPartial, 1);
  const auto write = [&](const auto& how) {
    float rF[WIDTH];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      if (i_t + (v * THREADS + 1) * WIDTH > left) break;
      unpack<T>(rF, rX[v]);
      __stwb(reinterpret_cast<Bytes<WIDTH>*>(gOut + first + i_t + v * THREADS * WIDTH), quantized(rF, how));
    }
    const long long last = total / WIDTH * WIDTH + threadIdx.x;  // fewer than WIDTH
    if (blockIdx.x == 0 && last < total) put_one(gOut + last, float(gX[last]), how);
  };
  const bool first_thread = blockIdx.x == 0 && threadIdx.x == 0;
  if constexpr (AFFINE) {
    const float scale = affine_scale(low, high), inverse = inverse_of(scale), zero = affine_zero(low, inverse);
    if (first_thread) *gScale = scale, *gZero = int(zero);
    write(Affine{inverse, zero});
  } else {
    const float scale = scale_of<Q>(high, power);
    if (first_thread) *gScale = scale;
    write(Symmetric<Q>{inverse_of(scale)});
  }
}

// Rows of `tiles` blocks; a vector is 16 bytes of the result. rows, columns: a scale's, all of an axis where it spans it. Neighbours in a
// vector share a scale, as 128 columns do.
template <typename Q, typename T, bool SHIFTED, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, BLOCKS<VECS, THREADS>)
    dequantize(T* __restrict__ gOut, const Q* __restrict__ gX, const float* __restrict__ gScale, const int* __restrict__ gZero, long long N,
               int tiles, long long stride, long long rows, long long columns, int across) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long i_m = blockIdx.x / tiles, i_n = blockIdx.x % tiles * (long long)(THREADS * VECS * WIDTH) + threadIdx.x * WIDTH;
  const Q* gFrom = gX + i_m * stride + i_n;
  T* gTo = gOut + i_m * N + i_n;
  const float* gRow = gScale + (rows == 1 ? i_m : i_m / rows) * across;
  const float zero = SHIFTED ? float(*gZero) : 0.0f;
  Bytes<WIDTH> rX[VECS];
  float rF[WIDTH], rScale[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    const long long i = i_n + v * THREADS * WIDTH;
    if (i + WIDTH <= N) rX[v] = __ldca(reinterpret_cast<const Bytes<WIDTH>*>(gFrom + v * THREADS * WIDTH)), rScale[v] = gRow[columns == 128 ? i / 128 : 0];
  }
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    if (i_n + v * THREADS * WIDTH + WIDTH > N) break;
    dequantized<Q>(rF, rX[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = __fmul_rn(SHIFTED ? __fsub_rn(rF[k], zero) : rF[k], rScale[v]);
    uint4 rOut;
    pack<T>(rOut, rF);
    __stwb(reinterpret_cast<uint4*>(gTo + v * THREADS * WIDTH), rOut);
  }
  const long long last = N / WIDTH * WIDTH + threadIdx.x;  // of an only row: fewer than WIDTH
  if (blockIdx.x % tiles == 0 && last < N) {
    const float x = opened<Q>(*reinterpret_cast<const unsigned char*>(gX + i_m * stride + last)).x;
    gOut[i_m * N + last] = T(__fmul_rn(SHIFTED ? __fsub_rn(x, zero) : x, gRow[columns == 128 ? last / 128 : 0]));
  }
}
