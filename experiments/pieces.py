import torch, shutil, tempfile
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.ops.attention import cuda_kernels as ck
from rooftile.core import timing
import rooftile
dev = torch.device("cuda"); K = {k.name: k for k in ck.BACKWARD}; walked = ck.walked
def of(n, run):
    def call():
        ck.walked = walked if n is None else (lambda causal, ordered, group, tiles: min(n, group)); r = run(); ck.walked = walked; return r
    return call
for B,T,H,G,D in ((1,8192,64,8,128),(1,8192,64,16,128),(1,8192,32,8,128),(2,8192,32,8,64),(4,4096,32,8,64),(1,8192,64,8,64),(1,2048,32,8,128),(1,8192,16,2,128),(2,4096,32,4,128),(1,1024,32,8,128),(4,2048,64,8,128),(1,8192,28,4,128),(1,16384,16,1,128),(1,4096,32,32,128)):
    torch.manual_seed(0)
    q, do = (torch.randn(B,T,H,D,device=dev).bfloat16() for _ in range(2)); k, v = (torch.randn(B,T,G,D,device=dev).bfloat16() for _ in range(2))
    out, lse = rooftile.attention(q, k, v, causal=True, return_lse=True)
    run = lambda: K["cuda.v5_hopper"].run(do, q, k, v, out, lse, True, D**-.5)
    vs = {f"p{n}": of(n, run) for n in (H // G, 8, 4, 2, 1) if H // G % n == 0}
    outs = {n: f() for n, f in vs.items()}; ref = next(iter(outs.values()))
    bad = max(((a.float()-b.float()).norm()/b.float().norm()).item() for o in outs.values() for a, b in zip(o, ref))
    del outs, ref
    c = timing.compare(vs, dev, budget_ms=60)
    print((B,T,H,G,D), "rule", walked(True, False, H // G, -(-T // 128) * B * H), "noise %.3f" % c.noise, {n: f"{t.us:.0f}" for n, t in c.timings.items()}, "%.1e" % bad, flush=True)
