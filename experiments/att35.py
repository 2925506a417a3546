"""Attention's gradient: the sums cleared ahead beside the one before."""
import sys, torch, functools
sys.path.insert(0, ".gpu/oldv5")
import old_kernels, old_banded
from rooftile.core import timing
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
def both(op, old, pick):
    spec = operator(op).spec
    for case in spec.cases:
        if "bench" not in case.use or not pick(case): continue
        call = spec.draw(case, 0, dev); new = operator(op).kernel("cuda.v5_hopper")
        if new.refuse(call): continue
        f = {"new": functools.partial(new.run, *call.values()), "old": functools.partial(old.run, *call.values())}
        a, b = f["new"](), f["old"]()
        torch.cuda.synchronize()
        err = [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(a, b) if x.numel()]
        for _ in range(5):
            c = f["new"](); err += [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(c, b) if x.numel()]
        del a, b, c
        r = timing.compare(f, dev, budget_ms=150)
        t = {n: r.timings[n].us for n in f}
        print(op[9:], case.id[:60], "new %.1f old %.1f  %.3f  err %.1e noise %.3f" % (t["new"], t["old"], t["old"] / t["new"], max(err), r.noise), flush=True)
        del call; torch.cuda.empty_cache()
name = lambda m: next(k for k in m.BACKWARD if k.name == "cuda.v5_hopper")
both("attention_backward", name(old_kernels), lambda c: "D256" not in c.id)
both("attention_options_backward", name(old_banded), lambda c: True)
