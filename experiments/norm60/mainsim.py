import sys; sys.path.insert(0, ".gpu/norm60")
import torch, lab, multiprocessing, types as T
sys.argv = ["x", "1"]
lab.CASES = {"A": (37, 1024, [("v3", (32, 4, 128, 2, 1)), ("bulk", (32, 4, 128, 2, 1)), ("spread", (32, 4, 128, 2, 1)), ("v3", (1, 1, 1, 1, 1))]), "B": (9, 1024, [("v3", (64, 2, 64, 3, 1)), ("bulk", (64, 2, 64, 3, 1))]),
  "C": (5, 2048, [("v8", (2, 1, 3, 1)), ("v8stwb", (2, 1, 2, 1))]), "D": (5, 2048, [("v6", (2, 3, 1)), ("v6", (1, 4, 1)), ("v8", (1, 2, 4, 1)), ("v8", (4, 1, 16, 1))])}
old = lab.made; lab.made = lambda c, m=0, n=0, device="cpu": old(c, m, n, "cpu")
rn = torch.randn; torch.randn = lambda *s, **k: rn(*s, **{**k, "device": "cpu"})
torch.cuda.synchronize = lambda: None
class G:
    def get(self, timeout): return None
class P:
    def __enter__(self): return self
    def __exit__(self, *a): pass
    def apply_async(self, f, a): return G()
    def terminate(self): pass
lab.multiprocessing = T.SimpleNamespace(get_context=lambda k: T.SimpleNamespace(Pool=lambda n: P()), TimeoutError=multiprocessing.TimeoutError)
lab.tools(); torch.device = lambda *a: None
def cmp(runs, dev, budget_ms, rounds):
    for f in runs.values(): f()
    return T.SimpleNamespace(timings={k: T.SimpleNamespace(us=1.0) for k in runs}, noise=0.0)
lab.timing = T.SimpleNamespace(compare=cmp)
t = lab.tools; lab.tools = lambda: None
from rooftile.cuda import simulator
with simulator.active("checks"): lab.main()
