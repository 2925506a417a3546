import torch
from rooftile.ops.attention import banded_kernels as bk
from rooftile.core import timing
from rooftile.workbench.explain import operator
import rooftile
dev = torch.device("cuda"); walked = bk.walked
op = operator("attention_varlen_backward"); k = next(k for k in op.kernels if k.name == "cuda.v5_hopper")
def of(n, run):
    def call():
        bk.walked = walked if n is None else (lambda d, causal, ordered, group, tiles: min(n, group)); r = run(); bk.walked = walked; return r
    return call
for lens, H, G, D, left, right in (([16384,8192,6144,4096,3072,1536,1024,512],32,8,128,-1,0),([16384,8192,6144,4096,3072,1536,1024,512],32,8,64,-1,0),([8192]*4,64,8,128,-1,0),([2048]*8,32,8,128,-1,0),([4096]*4,32,8,64,-1,0),([4096],32,8,128,-1,0),([16384,8192,6144,4096,3072,1536,1024,512],8,2,128,-1,-1),([8192]*2,64,8,64,127,0),([16384],64,8,128,4095,0)):
    torch.manual_seed(0); n = sum(lens)
    q, do = (torch.randn(n,H,D,device=dev).bfloat16() for _ in range(2)); kk, v = (torch.randn(n,G,D,device=dev).bfloat16() for _ in range(2))
    cu = torch.tensor([0,*torch.tensor(lens).cumsum(0).tolist()],dtype=torch.int32,device=dev)
    f = operator("attention_varlen"); args = (q,kk,v,cu,cu,None,None,max(lens),max(lens),D**-.5,left,right,0.0,0.0)
    fk = next(x for x in f.kernels if x.name == ("gluon.wide" if D == 128 else "gluon")); out, lse = fk.bound(fk.heuristic(dict(zip(f.names, args))))(*args)
    run = lambda: k.run(do, torch.zeros_like(lse), *args[:7], out, lse, *args[7:], False)
    vs = {f"p{n}": of(n, run) for n in (H // G, 4, 2, 1) if H // G % n == 0}
    outs = {m: g() for m, g in vs.items()}; ref = next(iter(outs.values()))
    bad = max(((a.float()-b.float()).norm()/b.float().norm()).item() for o in outs.values() for a, b in zip(o, ref) if a.numel())
    del outs, ref
    c = timing.compare(vs, dev, budget_ms=60)
    print((len(lens), n, H, G, D, left, right), "rule", walked(D, left < 0 <= right, False, H // G, (n // 128 + len(lens)) * H), "noise %.3f" % c.noise, {m: f"{t.us:.0f}" for m, t in c.timings.items()}, "%.1e" % bad, flush=True)
