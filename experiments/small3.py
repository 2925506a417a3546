"""Small shapes with configs beyond those declared; `python small3.py`."""
import functools, sys, torch, itertools, dataclasses
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
EW = [{"block": b, "warps": w} for b in (128, 256, 512, 1024) for w in (1, 2, 4, 8) if b // w >= 32]
NB = [{"rows": 1, "warps": w, "per_sm": 1, "stages": s} for w in (1, 2, 4, 8) for s in (1,)]
NF = [{"rows": 1, "warps": w, "ahead": a} for w in (1, 2, 4, 8) for a in (0, 1)]
BM = [{"rows": r, "block": b, "warps": w} for r, b in ((1, 256), (1, 512), (1, 1024), (2, 512), (2, 256), (1, 2048)) for w in (1, 2, 4, 8)]
CE = [{"vecs": v, "threads": t} for v in (1, 2, 4, 8) for t in (128, 256, 512)]
CT = [{"block": b, "warps": w} for b in (256, 512, 1024, 2048, 4096) for w in (1, 2, 4, 8)]
JOBS = [("layernorm_backward", "M1_N1024-", "triton", NB), ("rmsnorm_backward", "M1_N1024-", "triton", NB),
 ("geglu_backward", "M1_N8192", "triton", EW), ("geglu", "M1_N8192", "triton", EW), ("reglu_backward", "M1_N8192", "triton", EW), ("reglu_backward", "M64_N14336", "triton", EW),
 ("swiglu_backward", "M1_N8192", "triton", EW), ("residual_add", "1x8192-", "triton", EW), ("bias_mask_scale_add", "M64_N4096", "triton", BM),
 ("layernorm", "M64_N1024-", "triton", NF), ("layernorm", "M1_N1024-", "triton", NF),
 ("cross_entropy_backward", "M32768_V256", "cuda.v4_vector", CE), ("cross_entropy_backward", "M32768_V256", "triton", CT),
 ("reglu", "M64_N14336", "triton", EW)]
for name, sub, kname, configs in JOBS:
    op = operator(name)
    spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev)
            chosen = op.choose(call)
            vs = {"chosen " + chosen.kernel.name + str(dict(chosen.config)): functools.partial(chosen.kernel.bound(chosen.config), *call.values())}
            k = op.kernel(kname)
            for c in configs:
                f = functools.partial(k.bound(c), *call.values())
                try: f()
                except Exception as e: continue
                vs[k.name + str(c)] = f
            for p in ("torch", "compile"):
                vs["peer." + p] = peers.peer_run(p, spec, case, call, dev)
            vs = {n: f for n, f in vs.items() if f}
            c = timing.compare(vs, dev, budget_ms=3)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t if n.startswith(("chosen", "peer"))], "|", [f"{u:.2f} {n}" for u, n in t if not n.startswith(("chosen", "peer"))][:6], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
