import functools, torch
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.workbench import peers
import rooftile.ops.segment_sum.api
op = OPS["segment_sum"]; dev = torch.device("cuda")
for case in op.spec.cases:
    if "bench" not in case.use or case.id.startswith("host") or "N128" not in case.id: continue
    call = op.spec.draw(case, 0, dev)
    vs = {}
    for name in ("cuda.v3_balanced", "cuda.v6_ahead"):
        k = op.kernel(name)
        if k.refuse(call): print(name, k.refuse(call)); continue
        for c in k.configs: vs[name[5:7] + str(list(c.values()))] = functools.partial(k.run, *call.values(), config=c)
    x = call["x"]; half = x.view(-1)[: x.numel() // 2]; to = torch.empty_like(half)
    vs["copy"] = lambda: to.copy_(half)
    r = timing.compare(vs, dev, budget_ms=120)
    print(case.id, "noise %.3f" % r.noise, sorted((round(t.us, 1), n) for n, t in r.timings.items()), flush=True)
