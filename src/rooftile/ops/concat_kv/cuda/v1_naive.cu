// adds: a thread a pair of dimensions of a key, or an element of a value
// costs: 2 bytes an access in 16 bits; a length and a row of the table loaded again for every pair
// loses when: always: the load units move 12 bytes for 4 of data
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// i runs over tokens, then k's and v's heads, then N pairs and D - 2 N copies of a key or D copies of a value.
template <typename T, typename W, typename L, bool PAIRS>
__global__ void concat_kv(T* gKc, T* gVc, const T* gK, const T* gV, const L* gLengths, const W* gCos, const W* gSin, long long tokens,
                          int length, int S, int G, int D, int N, int rows, long long k_b, long long k_t, long long k_h, long long v_b,
                          long long v_t, long long v_h, long long kc_b, long long kc_t, long long kc_h, long long vc_b, long long vc_t,
                          long long vc_h, long long stride_length, long long stride_cos, long long stride_sin) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x, i_m = i / (G * (long long)(2 * D - N));
  if (i_m >= tokens) return;
  const int item = int(i % (G * (long long)(2 * D - N))), i_b = int(i_m / length), i_t = int(i_m % length);
  const long long before = gLengths[i_b * stride_length], place = before + i_t;
  if (before < 0 || place >= S) return;
  const bool key = item < G * (D - N);
  const int i_h = key ? item / (D - N) : (item - G * (D - N)) / D, i_n = key ? item % (D - N) : (item - G * (D - N)) % D;
  if (!key) {
    gVc[i_b * vc_b + place * vc_t + i_h * vc_h + i_n] = gV[i_b * v_b + i_t * v_t + i_h * v_h + i_n];
    return;
  }
  const T* gX = gK + i_b * k_b + i_t * k_t + i_h * k_h;
  T* gOut = gKc + i_b * kc_b + place * kc_t + i_h * kc_h;
  if (i_n >= N) {
    gOut[N + i_n] = gX[N + i_n];
    return;
  }
  const float c = place < rows ? float(gCos[place * stride_cos + i_n]) : __int_as_float(0x7fffffff);
  const float s = place < rows ? float(gSin[place * stride_sin + i_n]) : __int_as_float(0x7fffffff);
  const int first = PAIRS ? 2 * i_n : i_n, second = PAIRS ? first + 1 : N + i_n;
  const float a = float(gX[first]), b = float(gX[second]);
  gOut[first] = T(a * c - b * s);
  gOut[second] = T(a * s + b * c);
}
