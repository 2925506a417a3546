// adds: how many a clock: conversions, LOP3, PRMT, both mixed, HMMA alone and in a chain, MOVM
// costs: a lab's
// loses when: ever
#include <cuda_fp16.h>
#include "rooftile/mma.cuh"
using namespace rooftile;
// Two conversions, whose results become one word by LOP3: of words with a half that nobody reads ptxas makes others.
ROOFTILE_DEVICE void pair(unsigned& x, int n) {
#ifndef ROOFTILE_SIMULATOR
  asm volatile("{.reg .b16 l, h; .reg .b32 a, b; mov.b32 {l, h}, %0; cvt.rn.f16x2.e4m3x2 a, l; cvt.rn.f16x2.e4m3x2 b, h; lop3.b32 %0, a, b, %1, 0x96;}" : "+r"(x) : "r"(n));
#endif
}
template <int KIND>
__global__ void __launch_bounds__(512) micro(long long* __restrict__ gOut, unsigned* __restrict__ gSink, int n) {
#ifndef ROOFTILE_SIMULATOR
  unsigned x[8], y[8], z[8];
  float d[8][4] = {};
  for (int i = 0; i < 8; ++i) x[i] = y[i] = z[i] = threadIdx.x * 2654435761u + i * 40503u;
  __syncthreads();
  const long long t = clock64();
#pragma unroll 1
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (KIND == 0 || KIND == 1 || KIND == 3 || KIND == 5) pair(x[i], n);
        if (KIND == 1 || KIND == 2 || KIND == 3) asm volatile("lop3.b32 %0, %0, 0x5a5a5a5a, %1, 0x96;" : "+r"(y[i]) : "r"(n));
        if (KIND == 1) asm volatile("lop3.b32 %0, %0, 0x5a5a5a5a, %1, 0x96;" : "+r"(z[i]) : "r"(n));
        if (KIND == 4 || KIND == 5) asm volatile("prmt.b32 %0, %0, %1, 0x5140;" : "+r"(y[i]) : "r"(n));
        if (KIND == 6) mma_m16n8k16<__half>(d[i], {x[0], x[1], x[2], x[3]}, {x[4], x[5]});
        if (KIND == 7) mma_m16n8k16<__half>(d[0], {x[0], x[1], x[2], x[3]}, {x[4], x[5]});
        if (KIND == 8) asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x[i]));
        if (KIND == 9) {  // as the loop has them: four conversions a product
          mma_m16n8k16<__half>(d[i], {x[0], x[1], x[2], x[3]}, {x[4], x[5]});
          pair(y[i], n), pair(z[i], n);
        }
        if (KIND == 10) asm volatile("fma.rn.f16x2 %0, %0, %1, %0;" : "+r"(x[i]) : "r"(n));
      }
  }
  __syncthreads();
  if (threadIdx.x == 0) gOut[KIND] = clock64() - t;
  unsigned all = 0;
  for (int i = 0; i < 8; ++i) all ^= x[i] ^ y[i] ^ z[i] ^ __float_as_uint(d[i][0] + d[i][1] + d[i][2] + d[i][3]);
  gSink[threadIdx.x] = all;
#endif
}
