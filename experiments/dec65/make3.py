from pathlib import Path
H = Path(__file__).resolve().parent
def sub(s, *pairs):
    for a, b in pairs:
        assert s.count(a) == 1, (s.count(a), a)
        s = s.replace(a, b)
    return s
SWAP = (("i_s = blockIdx.x, splits = gridDim.x, i_g = blockIdx.y", "i_s = blockIdx.y, splits = gridDim.y, i_g = blockIdx.x"), ("int(gridDim.y) * group", "int(gridDim.x) * group"))
LB = "__global__ void __launch_bounds__(WARPS* WARP, PER)"
for p in H.glob("*.cu"): p.unlink()
OLD = Path("/work/main/src/rooftile/ops/attention_decode/cuda/v2_fragments.cu").read_text()
NEW = Path('/work/wt-dec65/src/rooftile/ops/attention_decode/cuda/v2_fragments.cu').read_text()
def swap(s, n=0): return sub(s, *SWAP, *(((LB, LB.replace("void", f"void __cluster_dims__({n}, 1, 1)")),) if n else ()))
def pre(s, how):
    one = {"p": 'asm volatile("prefetch.global.L2 [%0];" ::"l"(g));', "l": 'unsigned x; asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(g));'}[how]
    return sub(s, ("  const int i_row = l / PIECES, i_piece", """#ifndef ROOFTILE_SIMULATOR
  if (!PAGED && l < 2 && n < room) {
    const C* g = l ? gV + i_g * v_g + i_b * v_m + n * v_s : gK + i_g * k_g + i_b * k_m + n * k_s;
    { %s }
  }
#endif
  const int i_row = l / PIECES, i_piece""" % one))
def near(s): return sub(s, ("  let_next_stand_by();\n", ""), ("    copy_wait<STAGES - 2>();\n    __syncwarp();\n", "    if (n + 4 * step >= length && n + 3 * step < length) let_next_stand_by();\n    copy_wait<STAGES - 2>();\n    __syncwarp();\n"))
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
ALL3 = {"cl": comb(OLD), "cln": near(comb(OLD)), "c": NEW, "swap": swap(OLD), "c2": swap(OLD, 2), "cc2": swap(NEW, 2), "pre_l": pre(OLD, "l"), "pre_p": pre(OLD, "p"), "cn": near(NEW), "ccc": pre(swap(NEW, 2), "l")}
for name, text in ALL3.items(): (H / f"{name}.cu").write_text(text)
