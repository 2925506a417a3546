// adds: one read: a running maximum and sum, the row waiting in shared memory as it came, then in HELD registers; what finds no room is read again
// costs: up to 227 KB of shared memory a block (so 1 block a multiprocessor for a row above 113 KB), and a second exponential an element
// loses when: a block waits for its row and nothing else is there to run: rows that leave room for one block, and the first row of every block
#include "rooftile/policy.cuh"
#include "rooftile/softmax.cuh"

using namespace rooftile;

template <typename Form, int WIDTH> __device__ __forceinline__ void add(Online& rS, const Form& form, const float(&rF)[WIDTH]) {
  float max = rS.max;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) max = fmaxf(max, form.score(rF[k]));
  const float base = base_of(max);
  rS = {max, rS.sum * exp_fast(rS.max - base)};
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) rS.sum += exp_fast(form.score(rF[k]) - base);
}

// LANES neighbouring threads a row, at most a warp, or with LANES = 0 the block. `parked`: how many of a row's vectors of 16 bytes shared
// memory holds. What a row may not look at is read up to the last column that it may, and waits as -inf.
template <int LANES, int HELD, typename T, typename Form>
__device__ __forceinline__ void online(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x, int parked, Form form) {
  constexpr int WIDTH = 16 / sizeof(T);
  extern __shared__ __align__(128) uint4 sX[];
  __shared__ Online sPartial[2][WARP];
  const int lanes = LANES ? LANES : blockDim.x, i_l = LANES ? threadIdx.x % lanes : threadIdx.x, row = LANES ? threadIdx.x / lanes : 0;
  const long long i_m = LANES ? blockIdx.x * (long long)(blockDim.x / lanes) + row : blockIdx.x;
  const int V = i_m < M ? N / WIDTH : 0;
  form.open(i_m);
  const int seen = min(V, ceil_div(form.end(), WIDTH)), near = min(parked, seen), held = parked + HELD * lanes;
  const uint4* gRow = reinterpret_cast<const uint4*>(gX + i_m * stride_x);
  uint4* gTo = reinterpret_cast<uint4*>(gOut + i_m * N);
  uint4* sRow = sX + row * parked;
  const Policy policy = evict_last(M * N * (long long)sizeof(T));
  for (int i_v = i_l; i_v < near; i_v += lanes) copy_async(sRow + i_v, gRow + i_v, true, policy);  // all of it in flight
  copy_commit();
  uint4 rHeld[HELD ? HELD : 1];
#pragma unroll
  for (int h = 0; h < HELD; ++h)
    if (parked + h * lanes + i_l < seen) rHeld[h] = load_global(gRow + parked + h * lanes + i_l, policy);
  Online rS = online_start();
  const auto take = [&](uint4 r, int i_v) {
    float rF[WIDTH];
    unpack<T>(rF, r);
    form.hide(rF, i_v * WIDTH);
    add(rS, form, rF);
    if (Form::HIDES) pack<T>(r, rF);
    return r;
  };
  if (!LANES) {
#pragma unroll 4
    for (int i_v = held + i_l; i_v < seen; i_v += lanes) take(gRow[i_v], i_v);
  }
  copy_wait<0>();  // a thread reads what it has itself copied: no barrier
  for (int i_v = i_l; i_v < near; i_v += lanes) {
    const uint4 r = take(sRow[i_v], i_v);
    if (Form::HIDES) sRow[i_v] = r;
  }
#pragma unroll
  for (int h = 0; h < HELD; ++h)
    if (parked + h * lanes + i_l < seen) rHeld[h] = take(rHeld[h], parked + h * lanes + i_l);
  rS = group_reduce<LANES ? LANES : WARP>(rS, Combine());
  if (!LANES) {  // blocks of any number of warps: those that are missing count as nothing
    if (lane() == 0) sPartial[0][warp()] = rS;
    __syncthreads();
    rS = group_reduce<WARP>(lane() < warps() ? sPartial[0][lane()] : online_start(), Combine());
  }
  form.close(rS);
  const auto give = [&](int i_v, uint4 r, bool hidden) {
    float rF[WIDTH];
    unpack<T>(rF, r);
    if (!hidden) form.hide(rF, i_v * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = form.out(form.score(rF[k]));
    pack<T>(r, rF);
    gTo[i_v] = r;
  };
  for (int i_v = i_l; i_v < near; i_v += lanes) give(i_v, sRow[i_v], true);
#pragma unroll
  for (int h = 0; h < HELD; ++h)
    if (parked + h * lanes + i_l < seen) give(parked + h * lanes + i_l, rHeld[h], true);
  if (!LANES)
    for (int i_v = held + i_l; i_v < seen; i_v += lanes) give(i_v, gRow[i_v], false);
  if (!Form::HIDES) return;
  uint4 rNone;
  float rF[WIDTH];
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) rF[k] = form.out(minus_infinity());
  pack<T>(rNone, rF);
  for (int i_v = seen + i_l; i_v < V; i_v += lanes) gTo[i_v] = rNone;
}

template <typename T, int LANES, int HELD>
__global__ void __launch_bounds__(1024) softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x, int parked) {
  online<LANES, HELD>(gOut, gX, M, N, stride_x, parked, Softmax{N});
}
template <typename T, int LANES, int HELD>
__global__ void __launch_bounds__(1024) log_softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x, int parked) {
  online<LANES, HELD>(gOut, gX, M, N, stride_x, parked, LogSoftmax{N});
}
template <typename E, bool MASK, bool CAUSAL, int LANES, int HELD>
__global__ void __launch_bounds__(1024)
    masked_softmax(E* __restrict__ gOut, const E* __restrict__ gX, const unsigned char* __restrict__ gMask, long long M, int N, long long stride_x,
                   int parked, int H, int T, long long mask_b, long long mask_h, long long mask_t, float scale) {
  online<LANES, HELD>(gOut, gX, M, N, stride_x, parked, Scores<MASK, CAUSAL>{N, H, T, gMask, mask_b, mask_h, mask_t, scale});
}
