// adds: what comes before: RMSNorm (and the residual's addition) or SwiGLU, computed again wherever an element of it is wanted; 256 threads a row
// costs: x is read three times, gate and up twice, an element at a time, from L1 or L2 but for the first; 9 barriers a scale, and 9 for the norm
// loses when: always; most for 1x128, whose barriers are 9 for every 128 columns
#include "rooftile/activation.cuh"
#include "rooftile/quantize.cuh"

using namespace rooftile;

template <typename T, typename Op> __device__ T tree(T value, Op op) {
  __shared__ T sValue[256];
  sValue[threadIdx.x] = value;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) sValue[threadIdx.x] = op(sValue[threadIdx.x], sValue[threadIdx.x + half]);
    __syncthreads();
  }
  value = sValue[0];
  __syncthreads();
  return value;
}

// at(i) for i < N to the bytes of a row, with a scale for each `side` of them.
template <typename Q, typename At>
__device__ void put_row(Q* gOut, float* gScale, const At& at, int N, int side, int across, bool power) {
  for (int s = 0; s < across; ++s) {
    const int end = N < (s + 1) * side ? N : (s + 1) * side;
    float amax = 0.0f;
    for (int i = s * side + threadIdx.x; i < end; i += 256) amax = fmaxf(amax, fabsf(at(i)));
    const float scale = scale_of<Q>(tree(amax, Larger()), power);
    const Symmetric<Q> how = {inverse_of(scale)};
    for (int i = s * side + threadIdx.x; i < end; i += 256) put_one(gOut + blockIdx.x * (long long)N + i, at(i), how);
    if (threadIdx.x == 0) gScale[blockIdx.x * (long long)across + s] = scale;
  }
}

template <typename T, typename R, typename W, typename Q, bool ADD, bool WEIGHT>
__global__ void normed(Q* __restrict__ gOut, float* __restrict__ gScale, R* __restrict__ gSum, const T* __restrict__ gX, const R* __restrict__ gR,
                       const W* __restrict__ gW, int N, int side, int across, long long stride_x, long long stride_r, float inverse_n, float eps,
                       bool power) {
  const auto x = [&](int i) {
    const float value = float(gX[blockIdx.x * stride_x + i]);
    return ADD ? float(R(value + float(gR[blockIdx.x * stride_r + i]))) : value;
  };
  const auto or_zero = [&](int i) { return i < N ? x(i) : 0.0f; };
  double sum = 0.0;
  for (int i = 4 * threadIdx.x; i < N; i += 4 * 256) sum += four_squares<false>(x(i), or_zero(i + 1), or_zero(i + 2), or_zero(i + 3));
  const float rstd = inverse_root(tree(sum, Sum()), inverse_n, eps);
  for (int i = threadIdx.x; ADD && i < N; i += 256) gSum[blockIdx.x * (long long)N + i] = R(x(i));
  put_row(gOut, gScale, [&](int i) { return __fmul_rn(__fmul_rn(x(i), rstd), WEIGHT ? float(gW[i]) : 1.0f); }, N, side, across, power);
}

template <typename T, typename Q>
__global__ void gated(Q* __restrict__ gOut, float* __restrict__ gScale, const T* __restrict__ gGate, const T* __restrict__ gUp, int N, int side,
                      int across, long long stride_gate, long long stride_up, bool power) {
  const T *gG = gGate + blockIdx.x * stride_gate, *gU = gUp + blockIdx.x * stride_up;
  put_row(gOut, gScale, [&](int i) { return __fmul_rn(Silu::value(float(gG[i])), float(gU[i])); }, N, side, across, power);
}
