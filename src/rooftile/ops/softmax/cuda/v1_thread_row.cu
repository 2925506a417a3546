// adds: nothing, this is where the ladder begins: a thread a row, three walks over it: maximum, sum, quotients
// costs: neighbouring threads are a row apart, so a warp's request touches 32 sectors of 32 bytes and uses 2 or 4 bytes of each
// loses when: always; least where N is a few elements, and most where M is too few threads to fill the device (135168 on 132 multiprocessors)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void softmax(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N, long long stride_x) {
  const long long i_m = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i_m >= M) return;
  const T* gRow = gX + i_m * stride_x;
  T* gTo = gOut + i_m * N;
  float max = -__int_as_float(0x7f800000), sum = 0.0f;
  for (int i_n = 0; i_n < N; ++i_n) max = fmaxf(max, float(gRow[i_n]));  // a NaN is passed over here, and poisons the sum
  for (int i_n = 0; i_n < N; ++i_n) sum += __expf(float(gRow[i_n]) - max);
  for (int i_n = 0; i_n < N; ++i_n) gTo[i_n] = T(__expf(float(gRow[i_n]) - max) / sum);
}
