import torch, time, sys, statistics
import torch.nn.functional as F
import rooftile.ops
from rooftile.core import kernel as K
from rooftile.core.kernel import OPS
W = torch.device("cuda", 0)
x = torch.randn(29, 67, device=W, dtype=torch.bfloat16); w = torch.ones(67, device=W, dtype=torch.bfloat16); b = torch.zeros_like(w)
ref = lambda: F.layer_norm(x, (67,), w, b)
def batch(f, n=200):
    torch.cuda.synchronize(); s = time.perf_counter()
    for _ in range(n): f()
    return (time.perf_counter() - s) / n * 1e6
def turns(fs, rounds=30):
    got = {k: [] for k in fs}
    for f in fs.values():
        for _ in range(20): f()
    for i in range(rounds):
        for k in (fs if i % 2 else reversed(list(fs))): got[k].append(batch(fs[k]))
    return {k: (statistics.median(v), min(v)) for k, v in got.items()}
E_ = torch._C._dynamo.guards._empty_strided_cuda
with torch.no_grad():
    for name in ["vector_add", "gelu", "softmax", "layernorm", "cross_entropy", "embedding", "dropout", "gemm", "linear", "attention", "adamw"]:
        op = OPS[name]
        case = next(c for c in op.spec.cases if "smoke" in c.use and c.dtype == torch.bfloat16)
        call = op.spec.draw(case, 0, W); args = tuple(call.values())
        for _ in range(5): op(*args)
        run = next(iter(op._memo.values()))
        got = turns({"layer_norm": ref, "call": lambda: op(*args), "launch": (lambda: op.launch(*args, save=False)) if op._saves else (lambda: op.launch(*args)), "run": lambda: run(*args), "key": lambda: K._key(args), "empty": lambda: E_((29, 67), (67, 1), torch.bfloat16), "ref2": ref})
        print(f"{name:14s} " + "  ".join(f"{k} {m:.1f} [{lo:.1f}]" for k, (m, lo) in got.items()) + f"  x{got['call'][0]/got['layer_norm'][0]:.2f} [x{got['call'][1]/got['layer_norm'][1]:.2f}]", flush=True)
