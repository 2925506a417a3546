import torch, pathlib, functools
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda.source import Source
from rooftile.cuda.launch import launch
import rooftile.ops.segment_sum.api
src = Source(pathlib.Path(".gpu/segread.cu").resolve()); dev = torch.device("cuda")
x = torch.randn(1 << 20, 128, device=dev); out = torch.zeros(4, device=dev); vs = {}
for mode in (0, 1):
    for rows in (4, 8):
        for chunk in (336, 168, 84, 32, 16):
            vs[f"m{mode} r{rows} c{chunk}"] = lambda mode=mode, rows=rows, chunk=chunk: launch(src, f"reads<{rows}, {mode}>", -(-(1 << 20) // (8 * chunk)), 256, out, x, 1 << 20, chunk)
half = x.view(-1)[: x.numel() // 2]; to = torch.empty_like(half); vs["copy of half"] = lambda: to.copy_(half); vs["torch sum"] = lambda: x.view(-1).sum()
for f in vs.values(): f()
r = timing.compare(vs, dev, budget_ms=60)
print("noise %.3f" % r.noise, sorted((round(t.us, 1), n) for n, t in r.timings.items()), flush=True)
op = OPS["segment_sum"]
for case in op.spec.cases:
    if "bench" not in case.use or "N128" not in case.id: continue
    call = op.spec.draw(case, 0, dev); k = op.kernel("cuda.v3_balanced"); vs = {}
    for rows in (2, 4, 8):
        for lanes in (512, 768, 1536, 2304, 3072, 6144): vs[f"r{rows} l{lanes}"] = functools.partial(k.run, *call.values(), config={"rows": rows, "lanes": lanes})
    x = call["x"]; half = x.view(-1)[: x.numel() // 2]; to = torch.empty_like(half); vs["copy"] = lambda: to.copy_(half)
    for f in vs.values(): f()
    r = timing.compare(vs, dev, budget_ms=60)
    print(case.id[:50], "noise %.3f" % r.noise, sorted((round(t.us, 1), n) for n, t in r.timings.items())[:12], flush=True)
