import functools, torch, sys
from rooftile.core import timing
from rooftile.core.kernel import OPS
import rooftile.ops.attention_decode.api
op = OPS["attention_decode"]; dev = torch.device("cuda")
cases = [c for c in op.spec.cases if "bench" in c.use and not c.id.startswith("host")]
for case in cases:
    if "S16_N512" not in case.id and "S8192_N1" not in case.id: continue
    call = op.spec.draw(case, 0, dev)
    ch = op.choose(call); k = op.kernel("triton")
    vs = {"chosen " + str(list(ch.config.values())): functools.partial(ch.kernel.bound(ch.config), *call.values())}
    if "S16_" in case.id:
        for c in k.configs: vs[str(list(c.values()))] = functools.partial(k.bound(c), *call.values())
    r = timing.compare(vs, dev, budget_ms=60)
    print(sys.argv[1], case.id[:70], "noise %.3f" % r.noise, sorted((round(t.us, 1), n) for n, t in r.timings.items()), flush=True)
