import functools, torch, sys
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import cuda_kernels as ck
dev = torch.device("cuda"); orig = ck.launch
def run(policy, config, *args):
    def launch(source, instance, grid, block, *a, **k):
        if instance.startswith("split") and policy is not None:
            a = list(a); a[23] = 1 if policy == "first" else 2**62
        orig(source, instance, grid, block, *a, **k)
    ck.launch = launch
    try: return ck._rows(*args, config=config)
    finally: ck.launch = orig
op = operator("attention_decode"); spec = op.spec
for case in (c for c in spec.cases if "bench" in c.use and not c.id.startswith("host")):
    call = spec.draw(case, 0, dev); args = tuple(call.values())
    want = op.kernel("triton").bound(op.kernel("triton").heuristic(call))
    vs = {"triton": functools.partial(want, *args)}; a = want(*args)
    why = ck._refuse_rows(call)
    if why: print(case.id[:44], why); continue
    for c in ck.STAGES:
        for policy in ("first", "normal"):
            f = functools.partial(run, policy, c, *args)
            try:
                b = f(); torch.cuda.synchronize()
                err = (a[0].float() - b[0].float()).abs().max().item(), (a[1] - b[1]).abs().max().item()
                if not (err[0] < 2e-2 and err[1] < 1e-3): print("WRONG", case.id[:40], c, err)
                vs[f"{list(c.values())} {policy}"] = f
            except Exception as e: print("no", c, str(e)[:200])
    vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
    c = timing.compare(vs, dev, budget_ms=8)
    t = sorted((x.us, n) for n, x in c.timings.items())
    print(case.id[:44], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t], flush=True)
from torch.profiler import profile, ProfilerActivity
case = next(c for c in spec.cases if "bench" in c.use and c.dims["S"] == 65536); args = tuple(spec.draw(case, 0, dev).values())
flush = torch.empty(2**28, dtype=torch.uint8, device=dev)
for name, f in (("v2", functools.partial(run, None, ck.STAGES[0], *args)), ("triton", functools.partial(want, *args))):
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(8): flush.zero_(); f()
        torch.cuda.synchronize()
    t = {}
    for e in p.events():
        if e.device_time: t.setdefault(e.name[:30], []).append(e.device_time)
    print(name, {n: f"{sorted(x)[len(x)//2]:.1f}" for n, x in t.items()})
