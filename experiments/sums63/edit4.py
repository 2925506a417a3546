# v7: two vectors a lane of both widths
s=open('v7_w8.cu').read()
o=s[s.index("constexpr int PART = 16 / sizeof(T), EACH = "):s.index(", WIDTH = PART * EACH")]
s=s.replace(o,"constexpr int PART = 16 / sizeof(T), EACH = 2")
open('v7_two.cu','w').write(s)
a='''#ifndef ROOFTILE_SIMULATOR
  asm volatile("" : "+l"(first));
#endif
'''
assert s.count(a)==1
open('v7_two_plain.cu','w').write(s.replace(a,""))
# v6: what the launch before wrote is not read as what never changes
s=open('v6_both.cu').read()
for o,n in (("const longlong2 open = run < runs ? gOpen[run] : longlong2{-1, run};","Vec<long long, 2> rOpen;\n  rOpen[0] = -1, rOpen[1] = run;\n  if (run < runs) load_global(rOpen, reinterpret_cast<const long long*>(gOpen + run));\n  const longlong2 open = {rOpen[0], rOpen[1]};"),
            ("if (i <= to) load(rX[k], gPartial","if (i <= to) load_global(rX[k], gPartial")):
    assert s.count(o)==1,o
    s=s.replace(o,n)
open('v6_new.cu','w').write(s)
# gemv: x in shared memory, two rows on their way
s=open('kept.cu').read()
a=s.index("  uint4 rA[EACH] = {}, rX[EACH] = {};"); b=s.index("  __syncthreads();\n  const long long rest")
body='''  extern __shared__ __align__(128) uint4 sX[];
  constexpr int AHEAD = 2;
  uint4 rA[AHEAD][EACH] = {};
  const uint4* gNext = reinterpret_cast<const uint4*>(gRow);
#pragma unroll
  for (int p = 0; p < AHEAD; ++p)
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      if (p < M && j * THREADS + t < count) rA[p][j] = load_global(reinterpret_cast<const uint4*>(gRow + p * stride_m) + j * THREADS, policy);
#pragma unroll
  for (int j = 0; j < EACH; ++j) sX[j * THREADS + t] = j * THREADS + t < count ? reinterpret_cast<const uint4*>(gX)[first + t + j * THREADS] : uint4{};
  gRow += AHEAD * stride_m;
#pragma unroll 1
  for (int m = 0; m < M; m += AHEAD) {
#pragma unroll
    for (int p = 0; p < AHEAD; ++p) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < EACH; ++j) {
        float rP[WIDTH], rQ[WIDTH];
        const uint4 x = sX[j * THREADS + t];
        unpack<T>(rP, rA[p][j]), unpack<T>(rQ, x);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += rP[k] * rQ[k];
        if (m + p + AHEAD < M && j * THREADS + t < count) load_behind(rA[p][j], reinterpret_cast<const uint4*>(gRow) + j * THREADS, policy, sum);
      }
      sum = warp_reduce(sum, Sum());
      if (lane() == 0 && m + p < M) sSum[m + p][warp()] = sum;
      gRow += stride_m;
    }
  }
'''
open('kept2.cu','w').write(s[:a]+body+s[b:])
