import torch
from rooftile.ops.attention import banded_kernels as bk
from rooftile.core import timing
from rooftile.workbench.explain import operator
dev = torch.device("cuda"); LONG = bk.LONG
op = operator("attention_varlen_backward"); k = next(k for k in op.kernels if k.name == "cuda.v5_hopper")
def of(n, run):
    def call():
        bk.LONG = n; r = run(); bk.LONG = LONG; return r
    return call
R = [16384,8192,6144,4096,3072,1536,1024,512]
for lens, H, G, D, left, right in ((R,8,8,128,-1,0),(R,8,2,128,-1,-1),(R,32,8,128,-1,0),([4096]*4,32,8,128,-1,0),([2048]*8,16,16,128,-1,0),([2048]*8,16,16,128,-1,-1),([1024]*16,16,16,128,-1,0),([1000]*16,16,16,128,-1,-1),([512]*32,16,16,128,-1,0),([16384],16,16,128,4095,0),([16384],16,16,128,2047,0),([16384],16,16,128,1023,0),([16384],16,16,128,511,0)):
    torch.manual_seed(0); n = sum(lens)
    q, do = (torch.randn(n,H,D,device=dev).bfloat16() for _ in range(2)); kk, v = (torch.randn(n,G,D,device=dev).bfloat16() for _ in range(2))
    cu = torch.tensor([0,*torch.tensor(lens).cumsum(0).tolist()],dtype=torch.int32,device=dev)
    f = operator("attention_varlen"); args = (q,kk,v,cu,cu,None,None,max(lens),max(lens),D**-.5,left,right,0.0,0.0)
    fk = next(x for x in f.kernels if x.name == ("gluon.wide" if D == 128 else "gluon")); out, lse = fk.bound(fk.heuristic(dict(zip(f.names, args))))(*args)
    run = lambda: k.run(do, torch.zeros_like(lse), *args[:7], out, lse, *args[7:], False)
    vs = {"64": of(1 << 30, run), "80": of(0, run)}
    outs = {m: g() for m, g in vs.items()}; ref = outs["64"]
    bad = max(((a.float()-b.float()).norm()/b.float().norm()).item() for o in outs.values() for a, b in zip(o, ref) if a.numel())
    del outs, ref
    c = timing.compare(vs, dev, budget_ms=80)
    print((len(lens), n, H, G, D, left, right), "noise %.3f" % c.noise, {m: f"{t.us:.0f}" for m, t in c.timings.items()}, "%.3f" % (c.timings["80"].us / c.timings["64"].us), "%.1e" % bad, flush=True)
