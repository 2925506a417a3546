s=open('/work/wt-sums63/src/rooftile/ops/embedding/cuda/v2_balanced.cu').read()
open('e_now.cu','w').write(s)
old="__global__ void ROOFTILE_EARLY __launch_bounds__(256, TOKENS * VECTORS > 12 ? 1 : 2)\n    sums("
assert s.count(old)==1
def capped(s, n): return s.replace(old, f"__global__ void ROOFTILE_EARLY __maxnreg__({n})\n    sums(")
open('e_112.cu','w').write(capped(s,112))
# speculative: the first tokens' gradients are asked for beside the borders
a=s.index("    const Place place = look(gKeys, gOrder, gBorders, turn + lane(), count, base, first, span);")
b=s.index("      if (TOGETHER && last >> l & 1) {")
new='''    const int i = turn + lane();
    Place place = {};
    if (i < count) place.i_v = int(gKeys[i]) - base, place.i_m = (long long)gOrder[i];
    Vec<T, WIDTH> rX[TOKENS][VECTORS], rOld[VECTORS];
    auto ask = [&](int l, int stop) {
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        const T* gRow = gDout + __shfl_sync(ALL_LANES, place.i_m, (l + t) % WARP) * stride + i_n;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
          if (l + t < stop && i_n + k * WARP * WIDTH < N) load_global(rX[t][k], gRow + k * WARP * WIDTH);
      }
    };
    ask(0, count - turn);  // whoever's they are: nearly always this warp's, and on their way while borders are
    if (i < count) bordered(place, gBorders, i, first, span);
    const unsigned mine = __ballot_sync(ALL_LANES, place.mine), last = __ballot_sync(ALL_LANES, place.last);
    const int stop = mine ? WARP - __clz(int(mine)) : 0, start = mine ? __ffs(int(mine)) - 1 : 0;  // mine are neighbours
    for (int l = 0; l < stop; l += TOKENS) {
      if (l > 0) ask(l, stop);
'''
s2=s[:a]+new+s[b:]
old2="        if (l + t >= stop) break;  // the same for the warp\n"
assert s2.count(old2)==1
s2=s2.replace(old2, old2+"        if (l + t < start) continue;\n")
old3="// A row's sums, or as much"
bord='''__device__ __forceinline__ void bordered(Place& p, const int* gBorders, int i, int first, int span) {
  p.begin = gBorders[p.i_v], p.end = gBorders[p.i_v + 1];
  const bool cut = p.end - p.begin > SHORT;
  p.mine = cut ? i < first + span : first <= p.begin && p.begin < first + span;
  p.last = p.mine && (i + 1 == p.end || (cut && i + 1 == first + span));
}

'''
assert s2.count(old3)==1
s2=s2.replace(old3,bord+old3)
open('e_ahead.cu','w').write(s2)
open('e_both.cu','w').write(capped(s2,112))
