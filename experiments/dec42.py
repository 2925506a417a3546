import functools, torch, sys
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import cuda_kernels as ck
dev = torch.device("cuda"); orig = ck.launch
def nojoin(f):
    def run():
        ck.launch = lambda s, i, *a, **k: None if i.startswith("join") else orig(s, i, *a, **k)
        try: return f()
        finally: ck.launch = orig
    return run
for name in ("attention_decode_e4m3", "attention_decode"):
    op = operator(name); spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and not c.id.startswith("host")):
        call = spec.draw(case, 0, dev); args = tuple(call.values())
        want = op.kernel("triton").bound(op.kernel("triton").heuristic(call))
        vs = {"triton": functools.partial(want, *args)}; a = want(*args)
        if ck._refuse_rows(call): print(case.id[:44], ck._refuse_rows(call)); continue
        k = op.kernel("cuda.v2_rows")
        for c in ck.HEADS[:2]:
            f = functools.partial(k.bound(c), *args)
            try:
                b = f(); torch.cuda.synchronize()
                err = (a[0].float() - b[0].float()).abs().max().item(), (a[1] - b[1]).abs().max().item()
                if not (err[0] < 2e-2 and err[1] < 1e-3): print("WRONG", case.id[:40], c, err)
                vs[f"{c['heads']},{c['stages']}"] = f
                if c["heads"] == 8: vs[f"{c['heads']},{c['stages']} nojoin"] = nojoin(f)
            except Exception as e: print("no", c, str(e)[:200])
        vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
        c = timing.compare(vs, dev, budget_ms=5)
        t = sorted((x.us, n) for n, x in c.timings.items())
        print(name[-4:], case.id[:34], [f"{u:.1f} {n}" for u, n in t], flush=True)
