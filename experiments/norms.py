"""Norms in registers by vectors a thread, beside torch.compile and a copy, cold, three turns. PYTHONPATH=src OUT=/dir python3 experiments/norms.py (some 40 s)
Predicted: layernorm's 56 registers become 32, twice the threads: 8192 x 8192 70.0 -> 68, 16384 x 4096 68.4 -> 67.5. rmsnorm 4096 x 16384 in 4 vectors in place of 8: 68.8 -> 68.2.
HEAD~ is main's layernorm: run it in the same call for the other side (BASE=/path/to/main/src)."""
import os, statistics, sys, torch
from rooftile.core import timing
import rooftile.ops
from rooftile.core.kernel import OPS

W = torch.device("cuda", 0)
lines = []
for name, dims in (("layernorm", "M8192_N8192"), ("layernorm", "M16384_N4096"), ("layernorm", "M4096_N16384"), ("rmsnorm", "M8192_N8192"), ("rmsnorm", "M16384_N4096"), ("rmsnorm", "M4096_N16384")):
    op = OPS[name]
    case = next(c for c in op.spec.cases if dims in c.id and "bfloat16" in c.id)
    call = op.spec.draw(case, 0, W)
    args, kernel = tuple(call.values()), op.kernel("cuda.v4_register_row")
    versions = {f"v4 vecs {c['vecs']}": (lambda b=kernel.bound(c, save=False): b(*args)) for c in kernel.configs}
    versions["triton"] = lambda k=op.kernel("triton"): k.bound(op.config(k, call), save=False)(*args)
    x = call["x"]
    n = x.shape[-1]
    f = torch.nn.functional
    one = (lambda: f.layer_norm(x, (n,), call["weight"], call["bias"], call["eps"])) if name == "layernorm" else (lambda: f.rms_norm(x, (n,), call["weight"], call["eps"]))
    versions["compile"] = torch.compile(one)
    y = torch.empty_like(x)
    versions["copy"] = lambda: y.copy_(x)
    took = {v: [] for v in versions}
    for _ in range(3):
        t = timing.compare(versions, W, budget_ms=40.0)
        for v in versions:
            took[v].append(t.timings[v].us)
    lines.append(f"{name} {dims}: " + "  ".join(f"{v} {statistics.median(took[v]):.2f}" for v in sorted(took, key=lambda v: statistics.median(took[v]))))
    print(lines[-1], flush=True)
open(os.path.join(os.environ.get("OUT", "/tmp"), f"norms-{os.environ.get('NAME', 'here')}.txt"), "w").write("\n".join(lines) + "\n")
