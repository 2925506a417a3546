"""Small shapes: every config of every kernel of ours that takes the call, beside the peers; `python small.py OP...` prints who is chosen, the five fastest and the peers."""
import functools, sys, torch
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
for name in sys.argv[1:]:
    op = operator(name)
    for case in (c for c in op.spec.cases if "bench" in c.use):
        call = op.spec.draw(case, 0, dev)
        if sum(t.numel() for t in call.values() if isinstance(t, torch.Tensor)) > 3_000_000: continue
        try:
            chosen = op.choose(call)
            vs = {"chosen " + chosen.kernel.name + str(dict(chosen.config)): functools.partial(chosen.kernel.bound(chosen.config), *call.values())}
            for k in op.kernels:
                if k.name == "reference" or k.refuse(call): continue
                for c in k.configs or ({},):
                    f = functools.partial(k.bound(c), *call.values())
                    try: f()
                    except Exception: continue
                    vs[k.name + str(c)] = f
            for p in ("torch", "compile"):
                vs["peer." + p] = peers.peer_run(p, op.spec, case, call, dev)
            vs = {n: f for n, f in vs.items() if f}
            c = timing.compare(vs, dev, budget_ms=4)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:50], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t if n.startswith(("chosen", "peer"))], "|", [f"{u:.2f} {n}" for u, n in t if not n.startswith(("chosen", "peer"))][:5], flush=True)
        except Exception as e: print(name, case.id[:50], type(e).__name__, str(e)[:200], flush=True)
