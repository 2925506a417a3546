import re,sys
from pathlib import Path
root=Path("src/rooftile")
prod=(root/"cuda/include/rooftile/product.cuh").read_text().replace("#pragma once","")
main=(root/"ops/mlp/cuda/v1_hopper.cu").read_text()
def sub(s,a,b,n=1):
    assert s.count(a)>=1,(a,s.count(a)); return s.replace(a,b)
def make(name,pe=lambda s:s,me=lambda s:s):
    p,m=pe(prod),me(main)
    out=m.replace('#include "rooftile/product.cuh"\n','')
    # product's includes then its text after the other includes
    out=out.replace('#include "rooftile/vec.cuh"','#include "rooftile/vec.cuh"\n'); i=out.index("using namespace rooftile;")
    d=Path(".gpu/mlp43")/name; d.mkdir(exist_ok=True)
    (d/"v1_hopper.cu").write_text(out[:i]+p+"\n"+out[i:])
def clk(p):
    p=sub(p,"namespace rooftile {\n","namespace rooftile {\n__shared__ long long sT[4][12];\n#define CLK(i, ...) { const long long t0_ = clock64(); __VA_ARGS__; if (threadIdx.x % 128 == 0) sT[threadIdx.x / 128][i] += clock64() - t0_; }\n")
    p=sub(p,"end.begin(d, sBegin[whole.parity], asked, 2 + SECOND);\n    pin(d);","CLK(0, (end.begin(d, sBegin[whole.parity], asked, 2 + SECOND)); pin(d))")
    p=sub(p,"consumer_wait(sR.turn, whole);","CLK(1, consumer_wait(sR.turn, whole))")
    p=sub(p,"consumer_wait(sR.factors, at);\n      multiply","CLK(2, consumer_wait(sR.factors, at))\n      multiply")
    p=sub(p,"wgmma_wait<1>();","CLK(3, wgmma_wait<1>())")
    p=sub(p,"wgmma_wait<0>(d);","CLK(4, wgmma_wait<0>(d))")
    p=sub(p,"  producer_acquire(sRing, at);\n  unsigned out","  CLK(5, producer_acquire(sRing, at))\n  unsigned out")
    p=sub(p,"hand_over<X, End::COPIED>(sHalf, sR.out[SECOND], whole, d);","CLK(6, (hand_over<X, End::COPIED>(sHalf, sR.out[SECOND], whole, d)))")
    p=sub(p,"  X::CLUSTER == 1 ? __syncthreads() : cluster_sync();\n  // Three","  if (threadIdx.x < 48) sT[threadIdx.x / 12][threadIdx.x % 12] = 0;\n  X::CLUSTER == 1 ? __syncthreads() : cluster_sync();\n  const long long t0 = clock64();\n  // Three")
    i=p.rindex("    walk<X, false>(end, tA, tB, sX, sR, sBegin[0], tiles, steps);\n  }\n"); j=i+len("    walk<X, false>(end, tA, tB, sX, sR, sBegin[0], tiles, steps);\n  }\n")
    p=p[:j]+"  if (threadIdx.x % 128 == 0) { sT[threadIdx.x / 128][11] = clock64() - t0; long long* g = reinterpret_cast<long long*>(end.counters(tiles)) + (blockIdx.x * 4 + threadIdx.x / 128) * 12; for (int i = 0; i < 12; ++i) g[i] = sT[threadIdx.x / 128][i]; }\n"+p[j:]
    return p
def clkm(m):
    for n,what in (("Activate","gH"),("Deactivate","gDpre"),("Gate","gH"),("GateSlope","gH")):
        m=re.sub(r"(struct %s : From\w+<X> \{\n  using T = typename X::T;\n)"%n, r"\1  ROOFTILE_DEVICE char* counters(const Tiles<X>& t) const { return reinterpret_cast<char*>(%s + (long long)t.M * t.F); }\n"%what, m)
    m=m.replace("consumer_wait(sR.out[half], at);","CLK(0, consumer_wait(sR.out[half], at))")
    return m
def noact(m):
    m=sub(m,"{ return Act::point(x); }","{ return {x, x}; }")
    m=sub(m,"x[i] *= Act::point(kept[i]).d;","x[i] += kept[i];")
    m=sub(m,"x[i] = Act::value(x[i]) * y[i];","x[i] = x[i] + y[i];")
    return sub(m,"const Point of = Act::point(gate[i]);\n        const","const Point of = {gate[i], gate[i]};\n        const")
def onestore(m):
    return sub(m,"          __stwb(reinterpret_cast<uint4*>(gKept + to.place(r, tiles.F)), kept);\n","")
def nofin(m):
    m=sub(m,"if (r >= to.rows) break;","if (r >= to.rows - 100000) break;")
    m=sub(m,"          row(r < to.rows, mine","          if (to.rows > 1000000) row(r < to.rows, mine")
    return m
def nobias(m): return sub(sub(m,"struct Activate : FromBias<X>","struct Activate : FromZero<X>"),"{{gBias, biased}, gKept","{{}, gKept")
def two(p):
    p=sub(p,"registers_lower<136>();","registers_lower<88>();")
    return p.replace("registers_raise<184>();","registers_raise<168>();")
def twom(m):
    m=m.replace("__launch_bounds__(384, 1)","__launch_bounds__(512, 1)")
    # forward forms: a half each
    m=m.replace("      for (int half = 0; half < 2; ++half) {\n        const Strip to","      for (int half = threadIdx.x / 128 - 2, once = 0; once < 1; ++once) {\n        const Strip to")
    m=m.replace("#pragma unroll 4\n        for (int r = 0; r < ROWS; ++r) {","#pragma unroll 2\n        for (int r = 0; r < ROWS; ++r) {").replace("#pragma unroll 4\n        for (int r = 0; r < ROWS; r += 2)","#pragma unroll 2\n        for (int r = 0; r < ROWS; r += 2)")
    # backward: a warpgroup a half
    a=m.index("template <int PARTS, typename X, typename Start"); b=m.index("// ---- gelu ---")
    f=m[a:b]
    f=f.replace("warp() % 4 * (AHEAD * WARP)","(warp() - 8) * (AHEAD * WARP)")
    f=f.replace("  open(blockIdx.x, 0);","  const int half = threadIdx.x / 128 - 2;\n  open(blockIdx.x, half);")
    f=f.replace("++at)\n    for (int half = 0; half < 2; ++half) {","++at) {")
    f=f.replace("open(half ? i_tile + gridDim.x : i_tile, half ^ 1)","open(i_tile + gridDim.x, half)")
    m=m[:a]+f+m[b:]
    # sums: both halves join
    m=m.replace("      if (half == 0) return;\n      add_up(","      add_up(")
    m=m.replace("reinterpret_cast<float*>(sX + X::OUTS + X::OUT), sum, tiles, i_tile)","reinterpret_cast<float*>(sX + X::OUTS + half * X::OUT), sum, tiles, i_tile, half)")
    m=m.replace("const Tiles<X>& tiles, int i_tile) const {\n    constexpr int APART","const Tiles<X>& tiles, int i_tile, int half) const {\n    constexpr int APART")
    m=m.replace("barrier_sync(1, 128);","barrier_sync(1 + half, 128);").replace("gPartial + (long long)tile.x * tiles.F + column","gPartial + (2LL * tile.x + half) * tiles.F + column")
    return m
def warpgroup(p):  # one remote arrival a multiplier and peer, local ones by warp
    p=sub(p,"    if (lane() < X::CLUSTER) mbarrier_arrive_at(&sR.factors.empty[at.index], lane());","    if (lane() == 0) mbarrier_arrive(&sR.factors.empty[at.index]);\n    if (warp() % 4 == 0 && lane() > 0 && lane() < X::CLUSTER) mbarrier_arrive_at(&sR.factors.empty[at.index], (blockIdx.x + lane()) % X::CLUSTER);")
    return sub(p,"pipeline_init(sR.factors, 1, 8 * X::CLUSTER);","pipeline_init(sR.factors, 1, 8 + 2 * (X::CLUSTER - 1));")
def collect(p):  # the asking thread tells its peers
    p=sub(p,"  if constexpr (X::CLUSTER == 1) {\n    consumer_release(sR.factors, at);","  if constexpr (true) {\n    consumer_release(sR.factors, at);")
    p=sub(p,"pipeline_init(sR.factors, 1, 8 * X::CLUSTER);","pipeline_init(sR.factors, 1, 8); for (int i = 0; i < X::STAGES; ++i) mbarrier_init(&sR.free[i], X::CLUSTER > 1 ? X::CLUSTER - 1 : 1); mbarrier_fence();")
    p=sub(p,"  Pipeline<1> turn;","  MBarrier free[STAGES];\n  Pipeline<1> turn;")
    return sub(p,"#pragma unroll\n    for (int box = 0;","    if constexpr (X::CLUSTER > 1) { for (int r = 1; r < X::CLUSTER; ++r) mbarrier_arrive_at(&sR.free[at.index], (blockIdx.x + r) % X::CLUSTER); CLK(7, mbarrier_wait(&sR.free[at.index], at.parity)) }\n#pragma unroll\n    for (int box = 0;")
def askclk(p):
    return sub(p,"    producer_acquire(sR.factors, at, X::A + X::B);","    CLK(8, producer_acquire(sR.factors, at, X::A + X::B))")
def noclk(p): return p.replace("namespace rooftile {\n","namespace rooftile {\n#define CLK(i, ...) __VA_ARGS__;\n",1) if "sT[4][12]" not in p else p
def local(p):  # no multicast: every block loads all of its B, but with the cluster's barriers as they are
    p=sub(p,"    else tensor_multicast<X::CLUSTER>(sBox, tB, sFull, x, y);","    else tensor_load(sBox, tB, sFull, x, y);")
    return sub(p,"for (int box = 0; box < X::N / X::BOX; box += X::CLUSTER) {\n      const int first = (box + tiles.rank()) * X::BOX;","for (int box = 0; box < X::N / X::BOX; box += 1) {\n      const int first = box * X::BOX;")
def nosync(p):  # wrong: nobody waits for the other's stage
    p=sub(p,"  if constexpr (X::CLUSTER == 1) {\n    consumer_release(sR.factors, at);","  if constexpr (true) {\n    consumer_release(sR.factors, at);")
    return sub(p,"pipeline_init(sR.factors, 1, 8 * X::CLUSTER);","pipeline_init(sR.factors, 1, 8);")
PF="""  ROOFTILE_DEVICE void prefetch() {
    const int next = i_tile + tiles.apart();
    if (next >= tiles.count()) return;
    const int2 to = tiles.at(next);
    const int columns = ceil_div(tiles.F, X::WIDE);
    for (int s = to.y; s < steps; s += columns) {
      ROOFTILE_SM90("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&tA), "r"(s * X::K), "r"(to.x * BLOCK_M) : "memory");
    }
  }
"""
def pf(p):
    p=sub(p,"  ROOFTILE_DEVICE void share(",PF+"  ROOFTILE_DEVICE void share(")
    return sub(p,"    ++at;\n    if (++k < steps) return;","    if (k == 0) prefetch();\n    ++at;\n    if (++k < steps) return;")
def pfall(p):
    return pf(p).replace("for (int s = to.y; s < steps; s += columns)","for (int s = 0; s < steps; ++s)")
def stcs(m): return m.replace("__stwb(","__stcs(")
I=lambda s:s
def c(*f):
    def g(s):
        for x in f: s=x(s)
        return s
    return g
V={"base":(I,I),"clk":(c(clk,askclk),clkm),"pf":(pf,I),"pfclk":(c(clk,askclk,pf),clkm),"pfall":(pfall,I),"pfwg":(c(warpgroup,pf),I),"stcs":(I,stcs),"pfstcs":(pf,stcs),"nofin":(I,nofin),"pfnofin":(pf,nofin)}
for n,(p,m) in V.items(): make(n,p,m)
print(list(V))
