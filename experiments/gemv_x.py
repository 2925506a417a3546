"""python gemv_x.py compile | run: gemv of 14336 and 4096 by 4096 in float16: blocks of whole rows, Triton's configurations, torch.compile."""
import sys, itertools
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda import compile as C
S = Source(Path(__file__).with_name("gemv_x.cu"))
V = [(r, t, 512 // t, b, turns) for r in (2, 4, 8, 16) for t in (512, 256, 128) for turns in (1, 2) for b in {2048 // t, 1024 // t, 1536 // t} if r * 512 // t * 4 <= 65536 // (t * b) - 20]
V += [(4, 512, 1, 4, 1), (8, 512, 1, 3, 1), (8, 128, 4, 4, 1), (4, 128, 4, 4, 1), (4, 128, 4, 6, 1), (16, 512, 1, 1, 1), (1, 512, 1, 4, 1), (1, 512, 1, 4, 4)]
def name(v): return f"gemv<__half, {', '.join(map(str, v))}>"
if sys.argv[1] == "compile":
    for v in list(V):
        made = C.compiled(S, name(v), "sm_90a"); print(v, made.registers, made.spill_bytes)
else:
    import torch, rooftile, triton
    from rooftile.core import timing
    from rooftile.cuda.launch import launch
    from rooftile.ops.gemv import triton_kernels as tk
    W = torch.device("cuda", 0)
    for m in (14336, 4096):
        a = torch.randn(m, 4096, device=W, dtype=torch.float16); x = torch.randn(4096, device=W, dtype=torch.float16); out = torch.empty(m, device=W, dtype=torch.float16)
        want = (a.double() @ x.double())
        good = {"house": lambda: rooftile.gemv(a, x)}
        def add(n, run):
            try:
                out.zero_(); got = run(); torch.cuda.synchronize()
                e = (got.double() - want).abs().max().item(); assert e < 0.3, e; good[n] = run
            except Exception as e: print(n, repr(e)[:200])
        for v in V:
            def run(v=v):
                launch(S, name(v), m // (v[0] * v[4]), v[1], out, a, x, m, 4096); return out
            add(str(v), run)
        for r, b, w, whole in itertools.product((1, 2, 4, 8), (1024, 2048, 4096), (4, 8, 16), (True, False)):
            if not 8 <= r * b // (w * 32) <= 64: continue
            def run(r=r, b=b, w=w, whole=whole):
                tk._by_rows[(m // r, 1)](a, x, out, m, 4096, 4096, 4096 // b, ROWS=r, BLOCK_K=b, WHOLE=whole, num_warps=w); return out
            add(f"triton {r} {b} {w} {whole}", run)
        made = torch.compile(torch.mv, dynamic=False)
        if m == 14336:
            from torch._inductor.utils import run_and_get_code
            _, code = run_and_get_code(made, a, x); open(sys.argv[2], "w").write("\n".join(code)); print("\n".join(code)[:100])
        good["compile"] = lambda: made(a, x)
        t = timing.compare(good, W, budget_ms=50.0)
        for n, r in sorted(t.timings.items(), key=lambda i: i[1].us)[:24]: print(f"{m} {r.us:8.2f} {n}")
        print([f"{n} {t.timings[n].us:.2f}" for n in ("house", "compile")])
