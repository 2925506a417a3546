// adds: a thread a pair of dimensions: two elements read, two written; a thread more for each dimension that is only copied
// costs: 2 bytes an access in 16 bits, and the cosine and sine of a pair loaded again for every head: twice the bytes of the pair
// loses when: always: a warp moves 64 bytes a request where it could move 512, and divides three times a pair
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Heads of q and k are numbered through: 0 to H - 1, H to H + G - 1. Tokens are B sequences of `length`; sign is -1 backward.
template <typename T, typename W, bool GIVEN, bool PAIRS>
__global__ void rope(T* gQo, T* gKo, const T* gQ, const T* gK, const W* gCos, const W* gSin, const void* gPositions, long long tokens,
                     int length, int S, int H, int G, int D, int N, long long q_b, long long q_t, long long q_h, long long k_b, long long k_t,
                     long long k_h, long long qo_b, long long qo_t, long long qo_h, long long ko_b, long long ko_t, long long ko_h,
                     long long stride_cos, long long stride_sin, long long p_b, long long p_t, float sign) {
  const int items = D - N;  // of a head: N pairs, D - 2 N copies
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= tokens * (H + G) * items) return;
  const int i_n = int(i % items);
  const int i_h = int(i / items % (H + G));
  const long long i_m = i / items / (H + G), i_b = i_m / length, i_t = i_m % length;
  const bool query = i_h < H;
  const T* gX = query ? gQ + i_b * q_b + i_t * q_t + i_h * q_h : gK + i_b * k_b + i_t * k_t + (i_h - H) * k_h;
  T* gOut = query ? gQo + i_b * qo_b + i_t * qo_t + i_h * qo_h : gKo + i_b * ko_b + i_t * ko_t + (i_h - H) * ko_h;
  if (i_n >= N) {
    gOut[N + i_n] = gX[N + i_n];
    return;
  }
  const long long place = GIVEN ? static_cast<const long long*>(gPositions)[i_b * p_b + i_t * p_t] : i_t;
  float c = __int_as_float(0x7fffffff), s = c;
  if (place >= 0 && place < S) {
    c = float(gCos[place * stride_cos + i_n]);
    s = float(gSin[place * stride_sin + i_n]) * sign;
  }
  const int first = PAIRS ? 2 * i_n : i_n, second = PAIRS ? first + 1 : N + i_n;
  const float a = float(gX[first]), b = float(gX[second]);
  gOut[first] = T(a * c - b * s);
  gOut[second] = T(a * s + b * c);
}
