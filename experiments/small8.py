import functools, sys, torch, triton
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
NF = [{"rows": 1, "warps": w, "ahead": a} for w in (1, 2, 4, 8) for a in (0, 1)]
for name, sub in (("layernorm", "M64_N1024-"), ("layernorm", "M1_N1024-"), ("rmsnorm", "M64_N1024-"), ("rmsnorm", "M1_N1024-"), ("layernorm", "M64_N8192-"), ("add_layernorm", "M64"), ("add_rmsnorm", "M64"), ("softmax", "M1_N"), ("softmax", "M64_N1024")):
    op = operator(name); spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev); vs = {"chosen " + op.choose(call).kernel.name: functools.partial(op.choose(call).kernel.bound(op.choose(call).config), *call.values())}
            for k in op.kernels[:-1]:
                if k.name not in ("triton", "cuda.v10_least", "cuda.v11_least", "cuda.v8_exchange") or k.refuse(call): continue
                for c in (NF if k.name == "triton" and "softmax" not in name else k.configs):
                    f = functools.partial(k.bound(c), *call.values())
                    try: f()
                    except Exception as ex: continue
                    vs[k.name + str(list(c.values()))] = f
                    if "softmax" not in name:
                        vs[k.name + str(list(c.values())) + "nosave"] = functools.partial(k.bound(c, save=False), *call.values())
            for p in ("torch", "compile", "liger"):
                try: vs["peer." + p] = peers.peer_run(p, spec, case, call, dev)
                except Exception as e: pass
            vs = {n: f for n, f in vs.items() if f}
            c = timing.compare(vs, dev, budget_ms=3)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t if n.startswith(("chosen", "peer"))], "|", [f"{u:.2f} {n}" for u, n in t if not n.startswith(("chosen", "peer"))][:10], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
