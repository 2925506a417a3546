import sys, torch
sys.path.insert(0, ".gpu/old")
import oldtiming
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
plain = lambda x, w, t: torch.nn.functional.cross_entropy((x @ w.t()).float(), t)
vs = {"ours": whole(linear_cross_entropy, x, w, t), "torch": whole(plain, x, w, t), "compile": whole(torch.compile(plain), x, w, t)}
a = torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16); b = torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16)
c = torch.empty(2**30, device=dev, dtype=torch.bfloat16); d = torch.empty_like(c)
same = {"a": lambda: a @ b, "copy": lambda: d.copy_(c), "b": lambda: a @ b, "copy2": lambda: d.copy_(c)}
for name, V, ms in (("lce", vs, 500), ("one product twice between copies", same, 60)):
  for r in range(2):
    for n, T in (("old", oldtiming), ("new", timing)):
        q = T.compare(V, dev, budget_ms=ms)
        print(name, n, "noise %.3f" % q.noise, {k: "%.0f (%d)" % (z.us, z.samples) for k, z in q.timings.items()}, flush=True)
