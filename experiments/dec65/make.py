"""Writes the variants beside itself, from the worktree's kernel. All take `int magic` (2^30 / (page / 16) + 1) behind the other parameters."""
from pathlib import Path
H = Path(__file__).resolve().parent
BASE = Path("/work/main/src/rooftile/ops/attention_decode/cuda/v2_fragments.cu").read_text()
def sub(s, *pairs):
    for a, b in pairs:
        assert s.count(a) == 1, (s.count(a), a)
        s = s.replace(a, b)
    return s
ARG = ("long long stride_row, long long stride_page, long long stride_sink, long long stride_ks, long long stride_vs) {",
       "long long stride_row, long long stride_page, long long stride_sink, long long stride_ks, long long stride_vs, int magic) {")
base = sub(BASE, ARG)
MAGIC = ("const int at = from + l * step, entry = at / page;", "const int at = from + l * step, entry = int((unsigned long long)(unsigned(at) / KEYS) * unsigned(magic) >> 30);")
magic = sub(base, MAGIC)
FIRST = (
    ("  auto look_up = [&](int from) {  // beside the length: it decides nothing where that ends before\n    const int at = from + l * step, entry",
     "  auto look_up = [&](int at) {  // beside the length: it decides nothing where that ends before\n    const int entry"),
    ("  if constexpr (PAGED) here = look_up(n), later = look_up(n + WARP * step);\n",
     "  int2 first[STAGES - 1];\n  if constexpr (PAGED) {\n#pragma unroll\n    for (int i = 0; i < STAGES - 1; ++i) first[i] = look_up(n + i * step);\n  }\n"),
    ("  auto ask = [&](int ahead, int stage) {", "  auto ask = [&](int ahead, int stage, int2 place) {"),
    ("      const int i_page = __shfl_sync(ALL_LANES, here.x, looked_up);\n      row = __shfl_sync(ALL_LANES, here.y, looked_up) + i_row;\n      if (++looked_up == WARP) looked_up = 0, here = later, later = look_up(from + (WARP + 1) * step);\n",
     "      const int i_page = place.x;\n      row = place.y + i_row;\n"),
    ("  for (int i = 0; i < STAGES - 1; ++i) ask(i, i);\n",
     "  for (int i = 0; i < STAGES - 1; ++i) ask(i, i, first[i]);\n  if constexpr (PAGED) here = look_up(n + (STAGES - 1 + l) * step), later = look_up(n + (STAGES - 1 + WARP + l) * step);\n"),
    ("    ask(STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);  // where the tile before this one was\n",
     """    int2 place = make_int2(0, 0);
    if constexpr (PAGED) {
      place = make_int2(__shfl_sync(ALL_LANES, here.x, looked_up), __shfl_sync(ALL_LANES, here.y, looked_up));
      if (++looked_up == WARP) looked_up = 0, here = later, later = look_up(n + (STAGES - 1 + WARP + 1 + l) * step);
    }
    ask(STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1, place);  // where the tile before this one was
"""),
)
first = sub(magic, *FIRST)
NEXT = "  let_next_stand_by();\n"
def early0(s): return sub(s, (NEXT, ""), ("\n  unsigned rQ[KEPT ? TILES : 1][STEPS][2];", "  let_next_stand_by();\n\n  unsigned rQ[KEPT ? TILES : 1][STEPS][2];"))
def warm(s): return sub(s, ("  const int length = checked(*gLength);\n", """  const int length = checked(*gLength);
#ifndef ROOFTILE_SIMULATOR
  if constexpr (PAGED) {
    const long long each = 2097152 / sizeof(C), total = pages * k_m, unit = (w * WARP + l) / 2;
    if (unit * each < total) asm volatile("prefetch.global.L2 [%0];" ::"l"((l % 2 ? gV : gK) + unit * each));
  }
#endif
"""))
def ahead(s): return sub(s, ("  const int length = checked(*gLength);\n", """#ifndef ROOFTILE_SIMULATOR
  if constexpr (!PAGED) {
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
      const int at = n + i * step + l % KEYS;
      const C* gRowOf = l < KEYS ? gK + i_g * k_g + i_b * k_m + at * k_s : gV + i_g * v_g + i_b * v_m + at * v_s;
      if (at < room) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(gRowOf), "r"(D * int(sizeof(C))));
    }
  }
#endif
  const int length = checked(*gLength);
"""))
# one length load in all lanes, queries asked for before the keys
def queries(s): return s
N = 16  # numbers a warp
def stamped(s):
    s = s.replace("int magic) {", "int magic, long long* __restrict__ gStamp) {")
    s = sub(s, ("// What a cache of C is multiplied as.", """#ifdef ROOFTILE_SIMULATOR
ROOFTILE_DEVICE long long tick() { return 0; }
ROOFTILE_DEVICE long long world() { return 0; }
#else
ROOFTILE_DEVICE long long tick() { return clock64(); }
ROOFTILE_DEVICE long long world() { long long x; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(x)); return x; }
#endif
#define STAMP(i, x) do { const long long now = x; if (lane() == 0) gMine[i] = now; } while (0)
// What a cache of C is multiplied as."""))
    s = sub(s, ("  using F = typename Factor<C>::type;\n", "  long long* gMine = gStamp + (((long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * WARPS * %d + warp() * %d;\n  STAMP(0, world());\n  STAMP(1, tick());\n  using F = typename Factor<C>::type;\n" % (N, N)),
        ("    uint4* sTile = sWarp + stage * (2 * TILE);\n", "    if (asked == 0) STAMP(2, tick());\n    uint4* sTile = sWarp + stage * (2 * TILE);\n"),
        ("    copy_commit();\n  };\n", "    copy_commit();\n    if (asked == 0) STAMP(3, tick());\n    ++asked;\n  };\n"),
        ("  int looked_up = 0;  // of these 32\n", "  int looked_up = 0, asked = 0, seen = 0;\n"),
        ("\n  unsigned rQ[KEPT ? TILES : 1][STEPS][2];", "  STAMP(4, tick());\n\n  unsigned rQ[KEPT ? TILES : 1][STEPS][2];"),
        ("    copy_wait<STAGES - 2>();\n    __syncwarp();\n", "    copy_wait<STAGES - 2>();\n    __syncwarp();\n    if (seen < 4) STAMP(5 + seen, tick());\n    ++seen;\n"),
        ("  copy_wait<0>();\n  __syncthreads();\n", "  copy_wait<0>();\n  STAMP(9, tick());\n  __syncthreads();\n  STAMP(10, tick());\n"),
        ("  const int H = int(gridDim.y) * group;\n", "  STAMP(11, tick());\n  const int H = int(gridDim.y) * group;\n"),
        ("      if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;\n    }\n  }\n}\n", "      if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;\n    }\n  }\n  STAMP(12, tick());\n  STAMP(13, world());\n}\n"))
    s = sub(s, ("                                                            long long stride_sink) {\n", "                                                            long long stride_sink, int from, long long* __restrict__ gStamp) {\n  long long* gMine = gStamp + from + blockIdx.x * 4 * 8 + warp() * 8;\n  STAMP(0, world());\n"),
        ("  earlier_done();\n", "  STAMP(1, world());\n  earlier_done();\n  STAMP(2, world());\n"),
        ("  most = warp_reduce(most, Max());\n  const float base = most == -INF ? 0.0f : most;\n  auto add", "  most = warp_reduce(most, Max());\n  STAMP(3, world());\n  const float base = most == -INF ? 0.0f : most;\n  auto add"),
        ("  if (part != 0) return;\n", "  STAMP(4, world());\n  if (part != 0) return;\n"),
        ("  store(gOut + row * D + 4 * d, rE);\n", "  store(gOut + row * D + 4 * d, rE);\n  STAMP(5, world());\n"))
    return s
ALL = {"base": base, "magic": magic, "first": first, "first_e": early0(first), "base_e": early0(base), "first_w": warm(first), "base_w": warm(base), "first_a": ahead(early0(first)),
       "st_base": stamped(base), "st_first": stamped(first)}
for name, text in ALL.items(): (H / f"{name}.cu").write_text(text)
def queries(s):  # asked for before the keys
    old = """    unsigned(&rMine)[STEPS][2] = rQ[KEPT ? j : 0];
    float power = 1.0f;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      Vec<unsigned, 2> rWords;
      fill(rWords, 0u);
      if (m < rows) load(rWords, reinterpret_cast<const unsigned*>(gQuery + k / (EACH / 4) * 4 * EACH + k % (EACH / 4) * 4));
      rMine[k][0] = rWords[0], rMine[k][1] = rWords[1];
    }
"""
    pre = """  unsigned rQ[KEPT ? TILES : 1][STEPS][2];
  auto query = [&](int j) {
    const int m = 8 * j + g, i_t = m / group;
    const E* gQuery = gQ + i_b * q_b + i_t * q_t + (i_g * group + m - i_t * group) * q_h + t * EACH;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      Vec<unsigned, 2> rWords;
      fill(rWords, 0u);
      if (m < rows) load_early(rWords, reinterpret_cast<const unsigned*>(gQuery + k / (EACH / 4) * 4 * EACH + k % (EACH / 4) * 4));
      rQ[KEPT ? j : 0][k][0] = rWords[0], rQ[KEPT ? j : 0][k][1] = rWords[1];
    }
  };
  if (KEPT) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) query(j);
    here_stays();
  }
"""
    return sub(s, ("// What a cache of C is multiplied as.", EARLY + "// What a cache of C is multiplied as."), ("\n  unsigned rQ[KEPT ? TILES : 1][STEPS][2];\n", "\n"), (old, "    unsigned(&rMine)[STEPS][2] = rQ[KEPT ? j : 0];\n    float power = 1.0f;\n    if (!KEPT) query(j);\n"),
        ("    const E* gQuery = gQ + i_b * q_b + i_t * q_t + (i_g * group + m - i_t * group) * q_h + t * EACH;\n", ""),
        ("  const Policy policy = evict_first(bytes);", pre + "  const Policy policy = evict_first(bytes);"))
EARLY = """#ifdef ROOFTILE_SIMULATOR
ROOFTILE_DEVICE void load_early(Vec<unsigned, 2>& rX, const unsigned* gX) { load(rX, gX); }
#else
ROOFTILE_DEVICE void load_early(Vec<unsigned, 2>& rX, const unsigned* gX) { asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(rX[0]), "=r"(rX[1]) : "l"(gX)); }
#endif
#ifdef ROOFTILE_SIMULATOR
ROOFTILE_DEVICE void here_stays() {}
#else
ROOFTILE_DEVICE void here_stays() { __syncthreads(); }
#endif
"""
def comb(s):  # the second kernel goes through its own code once while it stands by
    i = s.index("  earlier_done();\n  float most")
    head, tail = s[:i], s[i:]
    tail = sub(tail, ("  earlier_done();\n", "#pragma unroll 1\n  for (int turn = 0; turn < 2; ++turn) {\n  if (turn) earlier_done();\n"),
        ("r = {*reinterpret_cast<const float4*>(gPart + at * D + 4 * d), gPartMax[at], gPartSum[at]};", "r = {LOAD(reinterpret_cast<const float4*>(gPart + at * D + 4 * d)), LOAD(gPartMax + at), LOAD(gPartSum + at)};"),
        ("fmaxf(most, gPartMax[i * M + row])", "fmaxf(most, LOAD(gPartMax + i * M + row))"),
        ("  if (part != 0) return;\n", "  if (part == 0) {\n"),
        ("  store(gOut + row * D + 4 * d, rE);\n  if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;\n}",
         "  if (turn) store(gOut + row * D + 4 * d, rE);\n  const float lse = (most + log2f(sum)) * LN2;\n  if (d == 0 && turn) gLse[(i_b * H + i_h) * T + i_t] = lse;\n  }\n  __syncthreads();\n  }\n}"))
    return head.replace("// A block a row (sequence, query, head): its splits", "#ifdef ROOFTILE_SIMULATOR\n#define LOAD(x) (*(x))\n#else\n#define LOAD(x) __ldcg(x)\n#endif\n// A block a row (sequence, query, head): its splits") + tail
def other(s): return sub(s, ("evict_first(bytes);", "evict_first(bytes > (256 << 20) ? bytes / 4 : bytes * 4);"))
q = queries(early0(first))
MORE = {"first_q": q, "first_ec": comb(early0(first)), "first_p": other(early0(first)), "first_qc": comb(q), "st_qc": stamped(q)}
for name, text in MORE.items(): (H / f"{name}.cu").write_text(text)
def wide(s):
    return sub(s, ("// What a cache of C is multiplied as.", """#ifdef ROOFTILE_SIMULATOR
ROOFTILE_DEVICE void copy_256(uint4* sX, const void* gX, bool there, Policy policy) { copy_async(sX, gX, there, policy); }
#else
ROOFTILE_DEVICE void copy_256(uint4* sX, const void* gX, bool there, Policy policy) {
  asm volatile("{\\n.reg .u32 to;\\nand.b32 to, %0, 0xfffffff0;\\ncp.async.cg.shared.global.L2::cache_hint.L2::256B [to], [%1], 16, %2, %3;\\n}" ::"r"(shared_address(sX)), "l"(gX), "r"(there ? 16 : 0), "l"(policy) : "memory");
}
#endif
// What a cache of C is multiplied as."""), ("copy_async(sTile + to,", "copy_256(sTile + to,"), ("copy_async(sTile + TILE + to,", "copy_256(sTile + TILE + to,"))
(H / "first_256.cu").write_text(wide(early0(first)))
def joined(s):  # the way out is gone once while the first tiles are on their way
    return sub(s, ("  int stage = 0;\n  for (; n < length; n += step) {", "  int stage = 0;\n#pragma unroll 1\n  for (int turn = 0; turn < 2; ++turn) {\n  const int end = turn ? length : 0;\n  for (; n < end; n += step) {"),
        ("      const float4 part = *reinterpret_cast<const float4*>(sAcc + (o * rows + m) * D + d);", "      float4 part = make_float4(0.0f, 0.0f, 0.0f, 0.0f);\n      if (turn) part = *reinterpret_cast<const float4*>(sAcc + (o * rows + m) * D + d);"), ("  copy_wait<0>();\n  __syncthreads();", "  if (turn) copy_wait<0>();\n  __syncthreads();"), ("      if (m < rows) {\n#pragma unroll\n        for (int k = 0; k < STEPS; ++k) {\n          const int d = k / (EACH / 2)", "      if (turn && m < rows) {\n#pragma unroll\n        for (int k = 0; k < STEPS; ++k) {\n          const int d = k / (EACH / 2)"),
        ("      if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;\n    }\n  }\n}\n", "      if (d == 0) gLse[(i_b * H + i_h) * T + i_t] = (most + log2f(sum)) * LN2;\n    }\n  }\n  }\n}\n"))
(H / "first_ecj.cu").write_text(joined(comb(early0(first))))
