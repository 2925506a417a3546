import os, sys; os.environ["ROOFTILE_DRY_GPU"] = "1"; sys.path.insert(0, ".gpu/norm60")
import torch
from triton.runtime import driver
from rooftile.workbench.dry import StandIn
s = StandIn(90); driver.set_active(s)
import lab; lab.tools()
which = sys.argv[1]
from rooftile.cuda import compile as compiler
if which == "cuda":
    x = torch.empty(1, device="meta")
    for case in "CD":
        m, n, names = lab.CASES[case]
        a = torch.empty(m, n, device="meta", dtype=torch.bfloat16); w = torch.empty(n, device="meta", dtype=torch.bfloat16)
        for kind, c in names:
            if kind == "triton": continue
            if kind == "v6": sh = lab.LN.two_rows(a, m, n, dict(zip(("vecs", "stages", "per"), c), threads=256), w)
            else: sh = lab.LN._shared_sums(a, m, n, dict(zip(("cluster", "vecs", "stages", "per"), c)), w)
            i = f"layernorm_backward<__nv_bfloat16, __nv_bfloat16, true, true{sh.instance}>"
            r = compiler.compiled(lab.V[kind], i, "sm_90a")
            print(case, kind, c, sh.instance, "smem", sh.shared, r.registers, r.spill_bytes, flush=True)
else:
    for case in "ABD":
        m, n, names = lab.CASES[case]
        a = None
        for kind, c in names:
            if kind not in ("triton", "early"): continue
            if a is None:
                f = torch.randn; torch.randn = lambda *z, **k: torch.empty(*z, **k)
                a = lab.made(case, device="meta") if case != "AB" else 0
            s.log.clear()
            try: lab.run(case, (kind, c), a); print(case, kind, c, [(l["function"], l["registers"], l["spill_bytes"], l["shared_bytes"]) for l in s.log], flush=True)
            except Exception as e: print(case, kind, c, type(e).__name__, str(e)[:300], flush=True)
