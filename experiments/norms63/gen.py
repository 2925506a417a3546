"""writes the variants' sources from the worktree's"""
from pathlib import Path
H=Path(__file__).resolve().parent
O=Path("/work/wt-norms63/src/rooftile/ops")
def sub(t,*pairs):
    for a,b in pairs:
        assert t.count(a)>=1,(a,t.count(a)); t=t.replace(a,b)
    return t
# --- dropout: products as mul.wide, keys uniform, a compare of 32 bits
PH='''
namespace rooftile {
ROOFTILE_DEVICE void wide_product(unsigned& high, unsigned& low, unsigned a, unsigned factor) {
#ifdef ROOFTILE_SIMULATOR
  const unsigned long long product = (unsigned long long)a * factor;
  high = unsigned(product >> 32), low = unsigned(product);
#else
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(factor));
  high = unsigned(product >> 32), low = unsigned(product);
#endif
}
ROOFTILE_DEVICE Words drawn_words(unsigned long long counter, unsigned k0, unsigned k1) {
  unsigned a = unsigned(counter), b = unsigned(counter >> 32), c = 0, d = 0;
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    unsigned lh, ll, rh, rl;
    wide_product(lh, ll, a, 0xD2511F53u), wide_product(rh, rl, c, 0xCD9E8D57u);
    a = rh ^ b ^ k0, b = rl, c = lh ^ d ^ k1, d = ll;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {a, b, c, d};
}
struct Drawn {
  static constexpr bool DROPS = true;
  unsigned k0, k1, least;
  unsigned some;
  float scale;
  ROOFTILE_DEVICE Drawn(const void* gSeed, unsigned long long threshold, float scale) : least(unsigned(threshold)), some(!(threshold >> 32)), scale(scale) {
    const uint2 seed = *static_cast<const uint2*>(gSeed);
    k0 = UNIFORM(seed.x), k1 = UNIFORM(seed.y);
  }
  ROOFTILE_DEVICE float keep(float x, unsigned word) const {
#ifdef ROOFTILE_SIMULATOR
    return word >= least && some ? x * scale : 0.0f;
#else
    float kept;
    asm("{\\n.reg .pred all, p;\\nsetp.ne.u32 all, %3, 0;\\nsetp.ge.and.u32 p, %1, %2, all;\\nselp.f32 %0, %4, 0f00000000, p;\\n}" : "=f"(kept) : "r"(word), "r"(least), "r"(some), "f"(x * scale));
    return kept;
#endif
  }
  template <int N> ROOFTILE_DEVICE void operator()(float (&rX)[N], long long i) const {
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const Words w = drawn_words(((unsigned long long)i >> 2) + k / 4, k0, k1);
      rX[k] = keep(rX[k], w.a), rX[k + 1] = keep(rX[k + 1], w.b), rX[k + 2] = keep(rX[k + 2], w.c), rX[k + 3] = keep(rX[k + 3], w.d);
    }
  }
};
}
'''
src=(O/"_shared/cuda/sum_norm_v3_pipeline.cu").read_text()
import re
def v3(uniform,keep):
    return sub(src,('using namespace rooftile;\n',PH.replace("UNIFORM(seed.x)",uniform%"seed.x").replace("UNIFORM(seed.y)",uniform%"seed.y").replace("KEEP",keep)+'using namespace rooftile;\n'))
K32="(word >= least) & some"; R="__reduce_or_sync(ALL_LANES, %s)"; S="__shfl_sync(ALL_LANES, %s, 0)"
(H/"v3_w.cu").write_text(v3("%s",K32))
(H/"v3_u.cu").write_text(v3(R,K32))
# --- layernorm's gradients: FULL, mean_of
MEAN='''
template <typename T> ROOFTILE_DEVICE float mean_of(float sum, float inverse, T N) {
  const float q = sum * inverse;
  return fmaf(fmaf(-q, float(N), sum), inverse, q);
}
using namespace rooftile;
'''
v6=(O/"layernorm/cuda/v6_pipeline.cu").read_text()
def cut(t): return t[t.index("// n = (x - mean)") if "// n = (x - mean)" in t else t.index("template <typename T, typename W, bool WEIGHT, bool BIAS, int LANES"):]
def six(mean,full=True):
    head,tail=v6[:v6.index("template <typename T, typename W, bool WEIGHT, bool BIAS, int LANES")],v6[v6.index("template <typename T, typename W, bool WEIGHT, bool BIAS, int LANES"):]
    if full:
        tail=sub(tail,("int VECS, int THREADS, int STAGES>","int VECS, int THREADS, int STAGES, bool FULL>"),
        ("  const auto fetch = [&](int stage, int v) {\n    const int left = i_next < M ? N - i_l : 0;\n","  const auto inside = [&](int v, bool there) { return there && (FULL || v * NEXT < N - i_l); };\n  const auto fetch = [&](int stage, int v) {\n    const bool there = inside(v, i_next < M);\n"),
        ("v * NEXT < left, policy);","there, policy);"),
        ("if (WEIGHT && v * NEXT < N - i_l) rWeight","if (WEIGHT && inside(v, true)) rWeight"),
        ("    const int left = i_m < M ? N - i_l : 0;\n","    const bool there = ROWS == 1 || i_m < M;\n"),
        ("#pragma unroll\n    for (int v = 0; v < VECS; ++v) {\n      copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not\n      if (v * NEXT >= left) break;","    copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not\n#pragma unroll\n    for (int v = 0; v < VECS; ++v) {\n      if (!inside(v, there)) break;"),
        ("      if (v * NEXT < left) {","      if (inside(v, there)) {"))
    if mean:
        head=head.replace("using namespace rooftile;\n",MEAN)
        tail=sub(tail,("  int stage = 0, parity = 0;\n","  const float inverse = 1.0f / N;\n  int stage = 0, parity = 0;\n"),("level = sum.a / N, along = sum.b * rstd / N","level = mean_of(sum.a, inverse, N), along = mean_of(sum.b * rstd, inverse, N)"))
    return head+tail
(H/"ln6_f.cu").write_text(six(False)); (H/"ln6_fm.cu").write_text(six(True)); (H/"ln6_m.cu").write_text(six(True,False))
v8=(O/"layernorm/cuda/v8_exchange.cu").read_text()
def eight(mean,full=True,wb=False):
    i=v8.index("template <typename T, typename W, bool WEIGHT, bool BIAS, int CLUSTER"); head,tail=v8[:i],v8[i:]
    if full:
        tail=sub(tail,("int STAGES, int BLOCKS>","int STAGES, int BLOCKS, bool FULL>"),
        ("const bool none = part * VECS * NEXT >= N;","const bool none = !FULL && part * VECS * NEXT >= N;"),
        ("min(VECS * NEXT, left) * int(sizeof(T))","(FULL ? VECS * NEXT : min(VECS * NEXT, left)) * int(sizeof(T))"),
        ("if (HELD && left > 0)","if (HELD && (FULL || left > 0))"),
        ("WEIGHT && (part * VECS + HELD) * NEXT < N","WEIGHT && (FULL ? STAY > 0 : (part * VECS + HELD) * NEXT < N)"),
        ("if (v * NEXT >= left) break;","if (!FULL && v * NEXT >= left) break;"),
        ("      if (v * NEXT < left)\n","      if (FULL || v * NEXT < left)\n"))
    if mean:
        head=head.replace("using namespace rooftile;\n",MEAN)
        tail=sub(tail,("  int stage = 0, parity = 0, before = 0;\n","  const float inverse = 1.0f / N;\n  int stage = 0, parity = 0, before = 0;\n"),("level = sum.a / N, along = sum.b * rstd_before / N","level = mean_of(sum.a, inverse, N), along = mean_of(sum.b * rstd_before, inverse, N)"))
    if wb: tail=sub(tail,("__stcs(","__stwb("))
    return head+tail
(H/"ln8_f.cu").write_text(eight(False)); (H/"ln8_fm.cu").write_text(eight(True)); (H/"ln8_fmw.cu").write_text(eight(True,True,True)); (H/"ln8_w.cu").write_text(eight(False,False,True))
# --- grad_norm: chunks looked up a lane each
sq=(O/"adamw/cuda/v5_norm_vector.cu").read_text()
def squares(double,per=0):
    i=sq.index("  float sum = 0.0f;"); j=sq.index("  sum = block_reduce")
    body='''  float sum = 0.0f;
  let_next_stand_by();  // who takes the root
  for (long long at = blockIdx.x; at < chunks; at += WARP * (long long)gridDim.x) {
    const long long mine = at + lane() * (long long)gridDim.x;  // of this block's next 32 chunks each lane looks one up
    unsigned long long address = 0;
    int size = 0;
    if (mine < chunks) {
      const Chunk c = chunk_of(gLayout, count, mine, chunk);
      address = reinterpret_cast<unsigned long long>(tensor_of<const T>(gTable, c.t) + c.first), size = int(min(c.size - c.first, (long long)chunk));
    }
    const int turns = int(min((long long)WARP, (chunks - 1 - at) / gridDim.x + 1));
    const auto whole = [&](int i) { return __shfl_sync(ALL_LANES, size, i) == VECS * NEXT; };
    const auto ask = [&](uint4(&rX)[VECS], int i) {
      const T* gFrom = reinterpret_cast<const T*>(__shfl_sync(ALL_LANES, address, i)) + threadIdx.x * WIDTH;
      const int left = __shfl_sync(ALL_LANES, size, i) - int(threadIdx.x) * WIDTH;
      if (whole(i)) {
#pragma unroll
        for (int v = 0; v < VECS; ++v) load_ordered(rX[v], reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy);
      } else {
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
          rX[v] = {0, 0, 0, 0};
          if (v * NEXT + WIDTH <= left) load_ordered(rX[v], reinterpret_cast<const uint4*>(gFrom + v * NEXT), policy);
        }
      }
    };
    const auto add = [&](const uint4(&rX)[VECS], int i) {
      float part = 0.0f;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float rF[WIDTH];
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) part += rF[k] * rF[k];
      }
      const int all = __shfl_sync(ALL_LANES, size, i), rest = all % WIDTH;  // elements behind the last whole vector, a thread each
      if (rest) {
        const T* gRest = reinterpret_cast<const T*>(__shfl_sync(ALL_LANES, address, i)) + all - rest;
        if (threadIdx.x < rest) part += float(gRest[threadIdx.x]) * float(gRest[threadIdx.x]);
      }
      sum += part;
    };
LOOP
  }
'''
    one="""    for (int i = 0; i < turns; ++i) {
      uint4 rX[VECS];
      ask(rX, i), add(rX, i);
    }"""
    two="""    uint4 rX[VECS], rY[VECS];
    ask(rX, 0);
    for (int i = 0; i < turns; i += 2) {
      if (i + 1 < turns) ask(rY, i + 1);
      add(rX, i);
      if (i + 2 < turns) ask(rX, i + 2);
      if (i + 1 < turns) add(rY, i + 1);
    }"""
    head=sq[:i].replace("__launch_bounds__(THREADS)",f"__launch_bounds__(THREADS, {per} / THREADS)" if per else "__launch_bounds__(THREADS)").replace("using namespace rooftile;\n","""using namespace rooftile;
// Where it is written: left to itself the compiler asks for the next when the last has been added.
ROOFTILE_DEVICE void load_ordered(uint4& rX, const uint4* gX, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  rX = *gX;
#else
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w) : "l"(__cvta_generic_to_global(gX)), "l"(policy));
#endif
}
""")
    return head+body.replace("LOOP",two if double else one)+sq[j:]
(H/"sq_l.cu").write_text(squares(False)); (H/"sq_l6.cu").write_text(squares(False,1536)); (H/"sq_d.cu").write_text(squares(True,1024))
# --- rmsnorm_quantize: the weight asked for before the row's sum
q4=(O/"quantize/cuda/v4_fused_rows.cu").read_text()
def quant(ask,noalloc):
    t=q4
    if ask:
        t=sub(t,("  const float rstd = inverse_root(","  Parameters<W, WIDTH> rAsked[VECS];\n#pragma unroll\n  for (int v = 0; v < VECS; ++v)\n    if (WEIGHT && v * NEXT < left) rAsked[v].ask(gW + i_l + v * NEXT);\n  const float rstd = inverse_root("),
              ("if (WEIGHT && v * NEXT < left) parameters(rW, gW + i_l + v * NEXT);","if (WEIGHT && v * NEXT < left) rAsked[v].open(rW);"))
    if noalloc:
        t=sub(t,("using namespace rooftile;\n",'''using namespace rooftile;
ROOFTILE_DEVICE uint4 load_past(const uint4* gX, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  return *gX;
#else
  uint4 rX;
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w)
      : "l"(__cvta_generic_to_global(gX)), "l"(policy));
  return rX;
#endif
}
'''),("rX[v] = load_global(reinterpret_cast<const uint4*>(gFrom","rX[v] = load_past(reinterpret_cast<const uint4*>(gFrom"))
    return t
(H/"q_a.cu").write_text(quant(True,False)); (H/"q_n.cu").write_text(quant(False,True)); (H/"q_an.cu").write_text(quant(True,True))
# --- lab2: statistics asked for where it is written
ORDERED='''// A row's statistics, asked for where it is written: left to itself the compiler asks at the end of the row before, and waits.
ROOFTILE_DEVICE float asked(const float* gX, bool there) {
#ifdef ROOFTILE_SIMULATOR
  return there ? *gX : 0.0f;
#else
  float x;
  asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, %2, 0;\\nmov.f32 %0, 0f00000000;\\n@p ld.global.f32 %0, [%1];\\n}" : "=f"(x) : "l"(gX), "r"(unsigned(there)) : "memory");
  return x;
#endif
}
'''
def ordered(t,*pairs):
    i=t.index("using namespace rooftile;\n")+len("using namespace rooftile;\n")
    return t[:i]+"\n"+ORDERED+sub(t[i:],*pairs)
V3O=(("rstd_next = rest > 1 ? *gRstd_next : 0.0f;","rstd_next = asked(gRstd_next, rest > 1);"),("mean_next = LAYER && rest > 1 ? *gMean_next : 0.0f;","if (LAYER) mean_next = asked(gMean_next, rest > 1);"))
(H/"v3_o.cu").write_text(ordered(src,*V3O)); (H/"v3_wo.cu").write_text(ordered((H/"v3_w.cu").read_text(),*V3O))
L6O=(("rstd_next = i_m + step < M ? gRstd[i_m + step] : 0.0f;","rstd_next = asked(gRstd + i_m + step, i_m + step < M);"),("mean_next = i_m + step < M ? gMean[i_m + step] : 0.0f;","mean_next = asked(gMean + i_m + step, i_m + step < M);"))
(H/"ln6_fo.cu").write_text(ordered((H/"ln6_f.cu").read_text(),*L6O)); (H/"ln6_fmo.cu").write_text(ordered((H/"ln6_fm.cu").read_text(),*L6O))
rm=(O/"rmsnorm/cuda/v6_pipeline.cu").read_text()
def rms(full,mean,order):
    k=rm.index("template <typename T, typename W, bool WEIGHT, int LANES, int VECS, int THREADS, int STAGES>\n__global__ void __launch_bounds__(THREADS, ",rm.index("rmsnorm(T* __restrict__ gOut")); head,tail=rm[:k],rm[k:]
    if full:
        tail=sub(tail,("int VECS, int THREADS, int STAGES>","int VECS, int THREADS, int STAGES, bool FULL>"),
        ("  const auto fetch = [&](int stage, int v) {\n    const int left = i_next < M ? N - i_l : 0;\n","  const auto inside = [&](int v, bool there) { return there && (FULL || v * NEXT < N - i_l); };\n  const auto fetch = [&](int stage, int v) {\n    const bool there = inside(v, i_next < M);\n"),
        ("v * NEXT < left, policy);","there, policy);"),
        ("if (WEIGHT && v * NEXT < N - i_l) rWeight","if (WEIGHT && inside(v, true)) rWeight"),
        ("    const int left = i_m < M ? N - i_l : 0;\n","    const bool there = ROWS == 1 || i_m < M;\n"),
        ("#pragma unroll\n    for (int v = 0; v < VECS; ++v) {\n      copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not\n      if (v * NEXT >= left) break;","    copy_wait<(STAGES - 1) * VECS>();  // this row's have all come, the later rows' need not\n#pragma unroll\n    for (int v = 0; v < VECS; ++v) {\n      if (!inside(v, there)) break;"),
        ("      if (v * NEXT < left) {","      if (inside(v, there)) {"))
    if mean:
        head=head.replace("using namespace rooftile;\n",MEAN)
        tail=sub(tail,("  int stage = 0, parity = 0;\n","  const float inverse = 1.0f / N;\n  int stage = 0, parity = 0;\n"),("row_reduce<LANES>(sum * rstd, Sum(), sPartial, parity) / N","mean_of(row_reduce<LANES>(sum * rstd, Sum(), sPartial, parity), inverse, N)"))
    t=head+tail
    return ordered(t,L6O[0]) if order else t
(H/"rms6_fo.cu").write_text(rms(True,False,True)); (H/"rms6_fmo.cu").write_text(rms(True,True,True)); (H/"rms6_f.cu").write_text(rms(True,False,False))
add=(O/"_shared/cuda/add_rows.cu").read_text()
(H/"add_e.cu").write_text(sub(add,("  earlier_done();\n  add_partials<COLUMNS>(gPartial + i_h","  earlier_done();\n  if (P > 0) return;\n  add_partials<COLUMNS>(gPartial + i_h")))
(H/"add_n.cu").write_text(sub(add,(" ROOFTILE_EARLY",""),("  earlier_done();\n","")))
# --- lab3: who adds partial rows
HEADX='''#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rooftile/early.cuh"
#include "rooftile/reduce.cuh"
#include "rooftile/vec.cuh"

using namespace rooftile;

template <typename Give> ROOFTILE_DEVICE void add_partials(const float* gPartial, int P, int N, Give give) {
  constexpr int AT_ONCE = @AT, ACROSS = @ACROSS, DOWN = WARP / ACROSS, WARPS = @WARPS;
  __shared__ Vec<float, 4> sSum[WARPS][ACROSS];
  const int first = blockIdx.x * ACROSS * 4, i_n = first + lane() % ACROSS * 4, i_r = warp() * DOWN + lane() / ACROSS;
#pragma unroll 1
  for (int turn = @FROM; turn < 2; ++turn) {
    if (turn) earlier_done();
    if (turn && @FROM == 0) __syncthreads();
    const float* gRow = gPartial + i_r * (long long)N + i_n;
    Vec<float, 4> rSum, rRow[AT_ONCE];
    fill(rSum, 0.0f);
    int left = turn && i_n < N ? P - i_r : 0;
#pragma unroll 1
    do {
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        fill(rRow[j], 0.0f);
        if (j * WARPS * DOWN < left) load_global(rRow[j], gRow + j * WARPS * DOWN * (long long)N);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) rSum[k] += rRow[j][k];
      gRow += AT_ONCE * WARPS * DOWN * (long long)N, left -= AT_ONCE * WARPS * DOWN;
    } while (left > 0);
#pragma unroll
    for (int distance = ACROSS; distance < WARP; distance *= 2)
#pragma unroll
      for (int k = 0; k < 4; ++k) rSum[k] += shuffle_xor(rSum[k], distance);
    if (lane() < ACROSS) sSum[warp()][lane()] = rSum;
    __syncthreads();
    if (threadIdx.x < 4 * ACROSS) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) sum += sSum[w][threadIdx.x / 4][threadIdx.x % 4];
      if (turn && first + threadIdx.x < N) give(first + threadIdx.x, sum);
    }
  }
}

template <typename W, typename V, int COLUMNS>
__global__ void ROOFTILE_EARLY __launch_bounds__(32 * @WARPS, 1)
    add_rows(W* __restrict__ gFirst, V* __restrict__ gSecond, const float* __restrict__ gPartial, int P, int N, int half) {
  const int i_h = blockIdx.y + half;
  add_partials(gPartial + i_h * (long long)P * N, P, N, [&](int i_n, float sum) {
    if (i_h == 0) gFirst[i_n] = W(sum);
    else gSecond[i_n] = V(sum);
  });
}
'''
for name,across,warps,at,frm in (("add_x4",4,8,8,1),("add_x8",8,8,8,1),("add_x8w",8,8,8,0),("add_x8s",8,16,4,1),("add_x2",2,8,4,1),("add_x8t",8,8,4,1)):
    (H/f"{name}.cu").write_text(HEADX.replace("@ACROSS",str(across)).replace("@WARPS",str(warps)).replace("@AT",str(at)).replace("@FROM",str(frm)))
# what of it is what: no loads; no sums over warps
(H/"add_0.cu").write_text(sub(add,("if (left > 0) load_global(rRow[j], gRow);","if (left > 0 && P < 0) load_global(rRow[j], gRow);")))
i=add.index("#pragma unroll\n  for (int k = 0; k < COLUMNS; ++k) sSum[warp()]"); j=add.index("}\n\n// blockIdx.y + half")
(H/"add_1.cu").write_text(add[:i]+"  if (warp() == 0)\n#pragma unroll\n    for (int k = 0; k < COLUMNS; ++k) give(i_n + k, rSum[k]);\n"+add[j:])
V3OL=(("rstd_next = rest > 1 ? *gRstd_next : 0.0f;","rstd_next = LAYER ? asked(gRstd_next, rest > 1) : rest > 1 ? *gRstd_next : 0.0f;"),V3O[1])
(H/"v3_ol.cu").write_text(ordered(src,*V3OL)); (H/"v3_om.cu").write_text(ordered(src,V3O[1]))
