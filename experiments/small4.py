"""Small shapes and rows behind, with configs beyond those declared; `python small4.py`."""
import functools, sys, torch
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
EW = [{"block": b, "warps": w} for b in (64, 128, 256, 512, 1024) for w in (1, 2, 4, 8) if b // w >= 32]
NB = [{"rows": 1, "warps": w, "per_sm": 1, "stages": 1} for w in (1, 2, 4, 8)]
BM = [{"rows": r, "block": b, "warps": w} for r, b in ((1, 256), (1, 512), (1, 1024), (2, 512), (1, 2048)) for w in (1, 2, 4, 8)]
CT = [{"block": b, "warps": w} for b in (512, 1024, 2048, 4096) for w in (1, 2, 4, 8)]
CE = [{"vecs": v, "threads": t} for v in (1, 2, 4, 8) for t in (64, 128, 256, 512)]
GV = [{"per_sm": p, "apart": a} for p in (1, 2, 3, 4, 5, 6, 8, 12, 16) for a in (0, 1)]
EM = None
JOBS = [("residual_add", "1x8192-", "triton", EW), ("layernorm_backward", "M1_N1024-", "triton", NB), ("rmsnorm_backward", "M1_N1024-", "triton", NB),
 ("geglu_backward", "M1_N8192", "triton", EW), ("geglu", "M1_N8192", "triton", EW), ("reglu_backward", "M1_N8192", "triton", EW), ("swiglu_backward", "M1_N8192", "triton", EW),
 ("swiglu", "M1_N8192", "triton", EW), ("reglu_backward", "M64_N14336", "triton", EW), ("geglu_backward", "M64_N14336", "triton", EW), ("swiglu_backward", "M64_N14336", "triton", EW), ("bias_mask_scale_add", "M64_N4096", "triton", BM),
 ("cross_entropy_backward", "M32768_V256", "triton", CT), ("cross_entropy_backward", "M32768_V256", "cuda.v4_vector", CE),
 ("gemv_backward", "M14336_K4096-float32", "cuda.v4_split", GV), ("embedding", "M32768_V1_", None, EM), ("linear_add_backward", "M32768_N768_K768", None, None)]
def parts(vs, call):
    from rooftile.ops.linear_add.vendor_kernels import product, flat, column_sum
    dout, x, weight, bias = (call[n] for n in ("dout", "x", "weight", "bias"))
    g = flat(dout)
    vs["part dx"] = lambda: product(g, weight); vs["part dw"] = lambda: product(g.t(), flat(x)); vs["part db"] = lambda: column_sum(g)
    vs["part dx torch"] = lambda: g @ weight; vs["part dw torch"] = lambda: g.t() @ flat(x)
    vs["all torch products"] = lambda: (g @ weight, g.t() @ flat(x), column_sum(g))
    vs["db first"] = lambda: (column_sum(g), product(g, weight), product(g.t(), flat(x)))
    vs["dw first"] = lambda: (product(g.t(), flat(x)), column_sum(g), product(g, weight))
for name, sub, kname, configs in JOBS:
    op = operator(name)
    spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev)
            chosen = op.choose(call)
            vs = {"chosen " + chosen.kernel.name + str(dict(chosen.config or {})): functools.partial(chosen.kernel.bound(chosen.config) if chosen.config else chosen.kernel.run, *call.values())}
            for k in ([op.kernel(kname)] if kname else op.kernels):
                if k.refuse(call): continue
                if not kname and k.name.startswith(("cuda.v1", "reference")): continue
                for c in (configs or k.configs or [None]):
                    f = functools.partial(k.bound(c) if c else k.run, *call.values())
                    try: f()
                    except Exception as e: continue
                    vs[k.name + str(c)] = f
            if name == "linear_add_backward": parts(vs, call)
            for p in ("torch", "compile"):
                vs["peer." + p] = peers.peer_run(p, spec, case, call, dev)
            vs = {n: f for n, f in vs.items() if f}
            c = timing.compare(vs, dev, budget_ms=3)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t if n.startswith(("chosen", "peer"))], "|", [f"{u:.2f} {n}" for u, n in t if not n.startswith(("chosen", "peer"))][:9], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
