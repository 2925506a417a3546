// adds: 16 bytes an access, ROWS rows asked for before the first is used, one bias for them; backward a block walks down its columns
// costs: rows must begin at multiples of 16 bytes; backward a row of partial sums for each block of a strip
// loses when: M is small: a thread has ROWS rows or none, and backward a second launch for the sums costs as much as the first; hence `few`
#include "rooftile/early.cuh"
#include "rooftile/rows.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

// The mask of WIDTH neighbours, a byte each.
template <int WIDTH> using Kept = Vec<unsigned char, WIDTH>;

// A thread has WIDTH columns of ROWS rows; `strips` blocks lie side by side.
template <typename T, typename B, int ROWS>
__global__ void __launch_bounds__(512)
    forward(T* __restrict__ gOut, const T* __restrict__ gX, const B* __restrict__ gBias, const unsigned char* __restrict__ gMask,
            const T* __restrict__ gResidual, long long M, int N, int strips, float scale, long long stride_x, long long stride_mask,
            long long stride_residual) {
  constexpr int WIDTH = 16 / sizeof(T);
  const long long first = blockIdx.x / strips * (long long)ROWS;
  const int i_n = int(blockIdx.x % strips * blockDim.x + threadIdx.x) * WIDTH, left = int(M - first < ROWS ? M - first : ROWS);
  if (i_n >= N) return;
  uint4 rX[ROWS], rR[ROWS];
  Kept<WIDTH> rMask[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r >= left) break;
    rX[r] = __ldca(reinterpret_cast<const uint4*>(gX + (first + r) * stride_x + i_n));
    rR[r] = __ldca(reinterpret_cast<const uint4*>(gResidual + (first + r) * stride_residual + i_n));
    load_global(rMask[r], gMask + (first + r) * stride_mask + i_n);
  }
  float rB[WIDTH];
  parameters(rB, gBias + i_n);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r >= left) break;
    float rF[WIDTH], rA[WIDTH];
    unpack<T>(rF, rX[r]), unpack<T>(rA, rR[r]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = (rMask[r][k] ? (rF[k] + rB[k]) * scale : 0.0f) + rA[k];
    pack<T>(rX[r], rF);
    __stwb(reinterpret_cast<uint4*>(gOut + (first + r) * N + i_n), rX[r]);
  }
}

// Sums of dx over the block's rows go to gPartial [blocks of a strip, N].
template <typename T, int ROWS>
__global__ void __launch_bounds__(512)
    backward(T* __restrict__ gDx, float* __restrict__ gPartial, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask,
             long long M, int N, int strips, float scale, long long stride_dout, long long stride_mask) {
  constexpr int WIDTH = 16 / sizeof(T);
  const int i_n = int(blockIdx.x % strips * blockDim.x + threadIdx.x) * WIDTH, i_p = blockIdx.x / strips, blocks = gridDim.x / strips;
  if (i_n >= N) return;
  float rSum[WIDTH] = {};
  let_next_stand_by();  // who adds up the partial sums
  for (long long first = i_p * (long long)ROWS; first < M; first += blocks * (long long)ROWS) {
    const int left = int(M - first < ROWS ? M - first : ROWS);
    uint4 rDout[ROWS];
    Kept<WIDTH> rMask[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r >= left) break;
      rDout[r] = __ldca(reinterpret_cast<const uint4*>(gDout + (first + r) * stride_dout + i_n));
      load_global(rMask[r], gMask + (first + r) * stride_mask + i_n);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (r >= left) break;
      float rF[WIDTH];
      unpack<T>(rF, rDout[r]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rMask[r][k] ? rF[k] * scale : 0.0f, rSum[k] += rF[k];
      pack<T>(rDout[r], rF);
      __stwb(reinterpret_cast<uint4*>(gDx + (first + r) * N + i_n), rDout[r]);
    }
  }
  float* gTo = gPartial + i_p * (long long)N + i_n;
#pragma unroll
  for (int k = 0; k < WIDTH; k += 4) *reinterpret_cast<float4*>(gTo + k) = {rSum[k], rSum[k + 1], rSum[k + 2], rSum[k + 3]};
}

// A few rows in one launch: a block has 128 bytes of a row across and FEW rows at a time down, whose sums meet in shared memory.
constexpr int ACROSS = 8, FEW = 64;
template <typename T, typename B>
__global__ void __launch_bounds__(ACROSS * FEW)
    few(T* __restrict__ gDx, B* __restrict__ gDbias, const T* __restrict__ gDout, const unsigned char* __restrict__ gMask, int M, int N, float scale,
        long long stride_dout, long long stride_mask) {
  constexpr int WIDTH = 16 / sizeof(T), COLUMNS = ACROSS * WIDTH, PARTS = ACROSS * FEW / COLUMNS;
  __shared__ float sSum[FEW][COLUMNS], sPart[PARTS][COLUMNS];
  const int first = blockIdx.x * COLUMNS, i_n = first + threadIdx.x * WIDTH;
  float rF[WIDTH], rSum[WIDTH] = {};
  for (int i_m = threadIdx.y; i_m < M && i_n < N; i_m += FEW) {
    uint4 rDout = __ldca(reinterpret_cast<const uint4*>(gDout + i_m * stride_dout + i_n));
    Kept<WIDTH> rMask;
    load_global(rMask, gMask + i_m * stride_mask + i_n);
    unpack<T>(rF, rDout);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = rMask[k] ? rF[k] * scale : 0.0f, rSum[k] += rF[k];
    pack<T>(rDout, rF);
    __stwb(reinterpret_cast<uint4*>(gDx + i_m * (long long)N + i_n), rDout);
  }
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) sSum[threadIdx.y][threadIdx.x * WIDTH + k] = rSum[k];
  __syncthreads();
  const int i = threadIdx.y * ACROSS + threadIdx.x, column = i % COLUMNS, part = i / COLUMNS;
  float sum = 0.0f;
#pragma unroll
  for (int y = 0; y < FEW / PARTS; ++y) sum += sSum[part * (FEW / PARTS) + y][column];
  sPart[part][column] = sum;
  __syncthreads();
  if (part || first + column >= N) return;
#pragma unroll
  for (int p = 1; p < PARTS; ++p) sum += sPart[p][column];
  gDbias[first + column] = B(sum);
}
