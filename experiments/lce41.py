import torch, collections
from torch.profiler import profile, ProfilerActivity
from rooftile.core import timing
from rooftile import linear_cross_entropy
dev = torch.device("cuda"); torch.manual_seed(0)
def whole(f, x, w, t):
    def run():
        x.grad = w.grad = None
        f(x, w, t).backward()
    return run
m, k, v = 8192, 4096, 128256
x = torch.randn(m, k, device=dev, dtype=torch.bfloat16, requires_grad=True)
w = (torch.randn(v, k, device=dev, dtype=torch.bfloat16) / k**0.5).requires_grad_()
t = torch.randint(0, v, (m,), device=dev)
vs = {"ours": whole(linear_cross_entropy, x, w, t), "compile": whole(torch.compile(lambda x, w, t: torch.nn.functional.cross_entropy((x @ w.t()).float(), t)), x, w, t)}
for f in vs.values():
    for _ in range(3): f()
torch.cuda.synchronize()
for r in range(2):
  for n, f in vs.items():
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(6): f()
        torch.cuda.synchronize()
    s = collections.OrderedDict()
    for e in sorted((e for e in p.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start):
        s.setdefault(e.name[:110], []).append(e.time_range.end - e.time_range.start)
    print(n, sum(sum(v) for v in s.values()) / 6)
    for a, b in s.items(): print("   ", len(b), ["%.0f" % c for c in b][:6], a)
# a product alone, at rest before each
g = torch.randn(m, v, device=dev, dtype=torch.bfloat16) * 1e-4
dw = torch.empty(v, k, device=dev, dtype=torch.bfloat16); dx = torch.empty(m, k, device=dev, dtype=torch.bfloat16)
wt = w.detach(); xx = x.detach()
from rooftile.cuda import cublaslt
P = {"dW mm out": lambda: torch.mm(g.t(), xx, out=dw), "dW mm": lambda: torch.mm(g.t(), xx), "dX": lambda: torch.mm(g, wt, out=dx), "logits": lambda: torch.mm(xx, wt.t(), out=g[:, :]),
  "dWt": lambda: torch.mm(xx.t(), g)}
try:
    P["dW lt"] = lambda: cublaslt.product(dw, g.t(), xx)
    P["dX lt"] = lambda: cublaslt.product(dx, g, wt)
except Exception as e: print(e)
del P["logits"]
c = timing.compare(P, dev, budget_ms=600)
for n in P: print(n, "%.0f" % c.timings[n].us, "%.0f TFLOP/s" % (2*m*k*v/c.timings[n].us/1e6))
