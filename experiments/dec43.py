import functools, torch, sys
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.source import Source
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import cuda_kernels as ck, triton_kernels as tk
from rooftile.ops._shared.launch import launch as tlaunch, launch_described
dev = torch.device("cuda"); orig, text = ck.launch, ck.V2.path.read_text()
J = text.index("template <typename X, typename W, int D, int ACROSS")
V = {"full": text, "empty": text.replace("  earlier_done();\n", "  earlier_done();\n  if (splits > 0) return;\n"),
     "not early": text.replace("__global__ void ROOFTILE_EARLY", "__global__ void"),
     "wait late": text.replace("  let_next_stand_by();\n", "").replace("  const float scaled = down", "  let_next_stand_by();\n  const float scaled = down"),
     "unroll 2": text[:J] + text[J:].replace("#pragma unroll\n  for (int k = 0; k < FIRST; ++k) part", "#pragma unroll\n  for (int k = 0; k < FIRST; ++k) part").replace("#pragma unroll\n  for (int k = 0; k < FIRST; ++k)\n    if", "#pragma unroll\n  for (int k = 0; k < FIRST; ++k)\n    if")}
S = {}
for n, t in V.items():
    p = Path(f"/tmp/w_{len(S)}.cu"); p.write_text(t); S[n] = Source(p)
def run(source, join, f):
    def launch(s, instance, grid, block, *a, **k):
        if not instance.startswith("join"): return orig(source, instance, grid, block, *a, **k)
        if join == "ours": return orig(source, instance, grid, block, *a, **k)
        if join == "small":
            i = instance[:instance.index(", 128")] + ", 128, 4, 8>"; return orig(source, i, grid if ", 4, " in instance else grid, 128, *a, **k)
        if join == "triton":
            out, lse, part, pm, ps, sink, M, T, H, splits, sinks, st = a
            w = 2 if splits <= 64 else 8
            launch_described(tk._combine, (M,), part, pm, ps, sink, out, lse, M, T, H, splits, st, SINKS=sinks, EARLY=True, UNIT=tk.LN2, D=128, BLOCK_D=128,
                             CHUNK=min(256, tk.power_of_2(splits)), num_warps=w, launch_pdl=True)
    ck.launch = launch
    try: return f()
    finally: ck.launch = orig
for name, sub in (("attention_decode_e4m3", "B1_T1_H32_G8_D128_S65536"), ("attention_decode_e4m3", "B64_T1_H32_G8_D128_S2048"), ("attention_decode", "B16_T1_H32_G8_D128_S8192")):
    op = operator(name); spec = op.spec
    case = next(c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host"))
    call = spec.draw(case, 0, dev); args = tuple(call.values())
    want = op.kernel("triton").bound(op.kernel("triton").heuristic(call)); a = want(*args)
    vs = {"triton": functools.partial(want, *args)}
    k = op.kernel("cuda.v2_rows").bound({"heads": 8, "stages": 2}); f = functools.partial(k, *args)
    for n, s in S.items(): vs[n] = functools.partial(run, s, "ours", f)
    vs["nojoin"] = functools.partial(run, S["full"], "none", f)
    vs["small"] = functools.partial(run, S["full"], "small", f)
    vs["combine"] = functools.partial(run, S["full"], "triton", f)
    for n, g in list(vs.items()):
        try:
            b = g(); torch.cuda.synchronize(); print(n, "%.1e" % (a[0].float() - b[0].float()).abs().max().item(), end="; ")
        except Exception as e: print("no", n, str(e)[:200]); del vs[n]
    c = timing.compare(vs, dev, budget_ms=5)
    print("\n", name[-4:], sub, [f"{x.us:.1f} {n}" for n, x in c.timings.items()], flush=True)
