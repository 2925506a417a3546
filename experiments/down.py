import torch, functools, shutil, tempfile
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.ops.attention import cuda_kernels as ck, banded_kernels as bk
from rooftile.core import timing
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
def src(n):
    p = Path(tempfile.mkdtemp()) / "v5_hopper_backward.cu"; shutil.copy(f".gpu/{n}.cu", p); return Source(p)
S = {"old": ck.V5, "cut": src("new1"), "down": src("newD"), "rot": src("newR")}
K = {k.name: k for k in ck.BACKWARD}
dealt = ck.dealt
cdiv = lambda a, b: -(-a // b)
def of(name, tg, run):
    def call():
        ck.V5 = bk.V5 = S[name]
        ck.dealt = dealt if tg is None else lambda causal, ordered, group, tiles: (tg, tg * cdiv(ck.LEAD, tg * tiles) + (tg == 1))
        r = run(); ck.V5 = bk.V5 = S["old"]; ck.dealt = dealt; return r
    return call
def compare(label, vs):
    outs = {n: f() for n, f in vs.items()}; ref = next(iter(outs.values()))
    bad = {n: [f"{(a.float()-b.float()).norm()/b.float().norm():.1e}" for a, b in zip(o, ref) if a is not None and b is not None and a.numel()] for n, o in outs.items()}
    del outs, ref
    c = timing.compare(vs, dev, budget_ms=60)
    print(label, "noise %.3f" % c.noise, {n: f"{t.us:.0f}" for n, t in c.timings.items()}, max((e for b in bad.values() for e in b), key=float), flush=True)
for B, T, H, G, D in ((1,8192,64,8,128),(1,16384,16,16,128),(4,4096,16,16,128),(16,1024,16,16,128),(1,16384,32,32,64),(4,4096,32,32,64),(16,1024,32,32,64),(32,1024,12,12,64),(2,8192,32,8,64),(1,8192,32,8,128)):
    torch.manual_seed(0)
    q, do = (torch.randn(B,T,H,D,device=dev).bfloat16() for _ in range(2)); k, v = (torch.randn(B,T,G,D,device=dev).bfloat16() for _ in range(2))
    from rooftile.ops.attention import gluon_kernels
    import rooftile
    out, lse = rooftile.attention(q, k, v, causal=True, return_lse=True)
    call = (do, q, k, v, out, lse, True, D**-.5)
    run = lambda: K["cuda.v5_hopper"].run(*call)
    vs = {n: of(n, None, run) for n in S}
    if H != G: vs |= {f"{n}.{t}": of(n, t, run) for n in ("down", "rot") for t in (1, 4, 8)}
    elif T >= 4096: vs |= {f"down.{t}": of("down", t, run) for t in (4, 8)}
    compare((B,T,H,G,D), vs)
for op, wanted in (("attention_varlen_backward", ""), ("attention_options_backward", "left=4095")):
    o = operator(op)
    for case in (c for c in o.spec.cases if "bench" in c.use and wanted in c.id):
        call = o.spec.draw(case, 0, dev); k = next(k for k in o.kernels if k.name.startswith("cuda.v5_hopper") and "ordered" not in k.name)
        if k.refuse(call): print(case.id, k.refuse(call)); continue
        run = functools.partial(k.bound(k.heuristic(call)) if k.heuristic else k.bound({}), *call.values())
        compare((op, case.id[:50]), {n: of(n, None, run) for n in S if n != "cut"})
