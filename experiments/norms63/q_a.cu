// adds: a row in registers as float32 from its arrival to its bytes, one read of every input, 16 bytes an access
// costs: 8 registers a vector of 16-bit elements, 4 of float32; rows must be whole vectors, and a row has 1024 threads of 4 at most
// loses when: rows are longer than that (32768 columns of 16 bits), or the residual's stream is of another type than x
#include "rooftile/activation.cuh"
#include "rooftile/policy.cuh"
#include "rooftile/quantize.cuh"

using namespace rooftile;

// Of 512 threads and more two blocks are wanted, of fewer as many as make 1024: 64 registers a thread.
template <int THREADS> constexpr int BLOCKS = 1024 / THREADS;

// Vectors of `left` elements from rY on, each LANES vectors after the one before, with their scale.
template <typename Q, int LANES, int VECS, int WIDTH>
ROOFTILE_DEVICE void put(Q* gTo, const float (&rY)[VECS][WIDTH], int left, float scale) {
  const Symmetric<Q> how = {inverse_of(scale)};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * LANES * WIDTH < left) __stwb(reinterpret_cast<Bytes<WIDTH>*>(gTo + v * LANES * WIDTH), quantized(rY[v], how));
}
// The largest of each of VECS numbers over SIDE lanes, all in one butterfly: as long as there are several, a lane hands half of them to its neighbour
// and takes over the others. A lane ends with number `own` of its place, and of the first lanes number v is at `owner`.
template <int VECS> struct Together {
  static constexpr int ALL = VECS > 2 ? 4 : VECS;
  static_assert(VECS <= 4, "a number or none for each of 4 lanes");
  static __host__ __device__ constexpr int owner(int v) { return ALL == 4 ? (v & 1) << 1 | v >> 1 : v; }
  static __host__ __device__ constexpr int own(int place) { return owner(place & (ALL - 1)); }  // the two bits change places, and back
  template <int SIDE> static ROOFTILE_DEVICE float largest(const float (&rMax)[VECS]) {
    float rAll[ALL];
#pragma unroll
    for (int v = 0; v < ALL; ++v) rAll[v] = v < VECS ? rMax[v] : 0.0f;
    int distance = 1;
#pragma unroll
    for (int half = ALL / 2; half > 0; half /= 2, distance *= 2) {
      const bool upper = lane() & distance;
#pragma unroll
      for (int v = 0; v < half; ++v) {
        const float keep = upper ? rAll[v + half] : rAll[v], give = upper ? rAll[v] : rAll[v + half];
        rAll[v] = fmaxf(keep, shuffle_xor(give, distance));
      }
    }
#pragma unroll
    for (; distance < SIDE; distance *= 2) rAll[0] = fmaxf(rAll[0], shuffle_xor(rAll[0], distance));
    return rAll[0];
  }
};

template <int VECS, int WIDTH> ROOFTILE_DEVICE float largest_of(const float (&rY)[VECS][WIDTH]) {
  float amax = 0.0f;
#pragma unroll
  for (int v = 0; v < VECS; ++v) amax = largest_of(amax, rY[v]);
  return amax;
}

// LANES threads a row, each VECS vectors of it. BLOCK_N is 128, of which SIDE neighbouring lanes hold a vector each, or 0: a scale a row.
// EXACT: squares that float holds whole. FULL: every thread has all its vectors, and a tenth of the instructions, which ask, are not there.
template <typename T, typename W, typename Q, bool ADD, bool WEIGHT, int BLOCK_N, bool EXACT, bool FULL, int LANES, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, BLOCKS<THREADS>)
    normed(Q* __restrict__ gOut, float* __restrict__ gScale, T* __restrict__ gSum, const T* __restrict__ gX, const T* __restrict__ gR,
           const W* __restrict__ gW, long long M, int N, long long stride_x, long long stride_r, float inverse_n, float eps, bool power) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), SIDE = 128 / WIDTH, NEXT = LANES * WIDTH;
  static_assert(BLOCK_N == 0 || LANES >= SIDE, "128 columns of one vector a lane");
  static_assert(!EXACT || sizeof(T) == 2, "squares of numbers of 16 bits");
  __shared__ double sSum[2][WARP];
  __shared__ float sMax[2][WARP];
  const int i_l = threadIdx.x % LANES * WIDTH;
  const long long i_m = blockIdx.x * (long long)(THREADS / LANES) + threadIdx.x / LANES;
  const int left = FULL ? VECS * NEXT : i_m < M ? N - i_l : 0;
  const T *gFrom = gX + i_m * stride_x + i_l, *gMore = gR + i_m * stride_r + i_l;
  const Policy policy = evict_last((ADD ? 2 : 1) * M * N * (long long)sizeof(T));
  uint4 rX[VECS] = {}, rR[ADD ? VECS : 1] = {};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < left) {
      rX[v] = load_global(reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy);
      if (ADD) rR[v] = load_global(reinterpret_cast<const uint4*>(gMore + v * NEXT), policy);
    }
  float rY[VECS][WIDTH];
  double sum = 0.0;
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    unpack<T>(rY[v], rX[v]);
    if constexpr (ADD) {
      float rF[WIDTH];
      unpack<T>(rF, rR[v]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rY[v][k] += rF[k];
      pack<T>(rX[v], rY[v]);
      if (v * NEXT < left) __stwb(reinterpret_cast<uint4*>(gSum + i_m * N + i_l + v * NEXT), rX[v]);
      unpack<T>(rY[v], rX[v]);  // of the rounded sum
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k += 4) sum += four_squares<EXACT>(rY[v][k], rY[v][k + 1], rY[v][k + 2], rY[v][k + 3]);
  }
  Parameters<W, WIDTH> rAsked[VECS];
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (WEIGHT && v * NEXT < left) rAsked[v].ask(gW + i_l + v * NEXT);
  const float rstd = inverse_root(row_reduce<LANES>(sum, Sum(), sSum, 0), inverse_n, eps);
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    float rW[WIDTH];
    if (WEIGHT && v * NEXT < left) rAsked[v].open(rW);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rY[v][k] = WEIGHT && v * NEXT < left ? __fmul_rn(__fmul_rn(rY[v][k], rstd), rW[k]) : __fmul_rn(rY[v][k], rstd);
  }
  Q* gTo = gOut + i_m * N + i_l;
  if constexpr (BLOCK_N == 0) {
    const float scale = scale_of<Q>(row_reduce<LANES>(largest_of(rY), Larger(), sMax, 0), power);
    put<Q, LANES>(gTo, rY, left, scale);
    if (i_l == 0 && i_m < M) gScale[i_m] = scale;
  } else {
    float rMax[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) rMax[v] = largest_of(0.0f, rY[v]);
    const float scale = scale_of<Q>(Together<VECS>::template largest<SIDE>(rMax), power), inverse = inverse_of(scale);
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
      const float its = __shfl_sync(ALL_LANES, inverse, Together<VECS>::owner(v), SIDE);
      if (v * NEXT < left) __stwb(reinterpret_cast<Bytes<WIDTH>*>(gTo + v * NEXT), quantized(rY[v], Symmetric<Q>{its}));
    }
    const int own = Together<VECS>::own(lane()), i_b = (i_l + own * NEXT) / 128;
    if (threadIdx.x % SIDE < Together<VECS>::ALL && own < VECS && (FULL || (i_m < M && i_b * 128 < N))) gScale[i_m * ceil_div(N, 128) + i_b] = scale;
  }
}

// A scale for a row (BLOCK_N = 0) or for 128 columns of one, `across` of which lie beside each other. LANES threads hold what has one scale,
// each VECS vectors of both inputs.
template <typename T, typename Q, int BLOCK_N, int LANES, int VECS, int THREADS>
__global__ void __launch_bounds__(THREADS, BLOCKS<THREADS>)
    gated(Q* __restrict__ gOut, float* __restrict__ gScale, const T* __restrict__ gGate, const T* __restrict__ gUp, long long M, int N,
          long long stride_gate, long long stride_up, int across, bool power) {
  static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "what has one scale belongs to a part of a warp or to the block");
  constexpr int WIDTH = 16 / sizeof(T), NEXT = LANES * WIDTH;
  static_assert(BLOCK_N == 0 || BLOCK_N == VECS * NEXT, "the vectors of 128 columns, dealt out evenly");
  __shared__ float sMax[2][WARP];
  const long long i_b = blockIdx.x * (long long)(THREADS / LANES) + threadIdx.x / LANES;
  const long long i_m = BLOCK_N ? unsigned(i_b) / unsigned(across) : i_b;  // the host counts fewer than 2^31 of them
  const int i_n = (BLOCK_N ? unsigned(i_b) % unsigned(across) * BLOCK_N : 0) + threadIdx.x % LANES * WIDTH, left = i_m < M ? N - i_n : 0;
  const Policy policy = evict_last(2 * M * N * (long long)sizeof(T));
  uint4 rGate[VECS] = {}, rUp[VECS] = {};
#pragma unroll
  for (int v = 0; v < VECS; ++v)
    if (v * NEXT < left) {
      rGate[v] = load_global(reinterpret_cast<const uint4*>(gGate + i_m * stride_gate + i_n + v * NEXT), policy);
      rUp[v] = load_global(reinterpret_cast<const uint4*>(gUp + i_m * stride_up + i_n + v * NEXT), policy);
    }
  float rY[VECS][WIDTH];
#pragma unroll
  for (int v = 0; v < VECS; ++v) {
    float rU[WIDTH];
    unpack<T>(rY[v], rGate[v]), unpack<T>(rU, rUp[v]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rY[v][k] = __fmul_rn(Silu::value(rY[v][k]), rU[k]);
  }
  const float scale = scale_of<Q>(row_reduce<LANES>(largest_of(rY), Larger(), sMax, 0), power);
  put<Q, LANES>(gOut + i_m * N + i_n, rY, left, scale);
  if (threadIdx.x % LANES == 0 && i_m < M) gScale[i_b] = scale;
}
