"""linear_cross_entropy forward and backward: rows of a chunk beside torch.compile; the most memory of each, Liger's with sums in 16 bits and in float32."""
import functools, torch
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile import linear_cross_entropy
dev = torch.device("cuda")
torch.manual_seed(0)
def whole(f, x, w, t):
    def run():
        x.grad = w.grad = None
        f(x, w, t).backward()
    return run
for m, k, v in ((8192, 4096, 128256), (16384, 768, 50304)):
    x = torch.randn(m, k, device=dev, dtype=torch.bfloat16, requires_grad=True)
    w = (torch.randn(v, k, device=dev, dtype=torch.bfloat16) / k**0.5).requires_grad_()
    t = torch.randint(0, v, (m,), device=dev)
    vs = {}
    for chunk in (1024, 2048, 2816, 4096, 8192, 16384):
        if chunk <= m: vs[f"ours {chunk}"] = whole(lambda x, w, t, c=chunk: linear_cross_entropy(x, w, t, chunk=c), x, w, t)
    vs["compile"] = whole(torch.compile(lambda x, w, t: torch.nn.functional.cross_entropy((x @ w.t()).float(), t)), x, w, t)
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as L
        vs["liger"] = whole(lambda x, w, t: L.apply(x, w, t)[0], x, w, t)
        vs["liger float32"] = whole(lambda x, w, t: L.apply(x, w, t, None, None, -100, 0.0, 0.0, "mean", None, False, torch.float32)[0], x, w, t)
    except Exception as e: print("liger", e)
    peak = {}
    for n, f in vs.items():
        f(); x.grad = w.grad = None; torch.cuda.synchronize(); b = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
        f(); torch.cuda.synchronize(); peak[n] = (torch.cuda.max_memory_allocated() - b) / 1e9
    x.grad = w.grad = None
    c = timing.compare(vs, dev, budget_ms=400)
    print(m, k, v, "noise %.3f" % c.noise, *(f"\n    {n}: {c.timings[n].us:.0f} us, {6 * m * k * v / c.timings[n].us / 1e6:.0f} TFLOP/s, {peak[n]:.2f} GB" for n in sorted(vs, key=lambda n: c.timings[n].us)), flush=True)
