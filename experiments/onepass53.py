"""triton.one_pass by every config, beside the two kernels without atomics, at B = 4, T = 4096. On branch `next`. Predicted for D = 128, full: 3.3 to 3.5 ms (triton.wide 4.28, FlashAttention-2 4.61)."""
import torch
import rooftile
from rooftile.core import timing
from rooftile.core.kernel import OPS
op = OPS["attention"]; back = op.backward
names = ("dout", "q", "k", "v", "out", "lse", "causal", "scale")
for d, h in ((128, 16), (64, 32)):
    q, k, v, g = (torch.randn(4, 4096, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    for causal in (False, True):
        scale = d ** -.5
        out, lse = op(q, k, v, causal, scale)
        call = dict(zip(names, (g, q, k, v, out, lse, causal, scale)))
        two = back.kernel("triton.wide" if d == 128 else "triton"); one = back.kernel("triton.one_pass")
        runs = {"two": two.bound(two.heuristic(call))} | {str(tuple(c.values())): one.bound(c) for c in one.configs}
        want = back.kernel("cuda.v5_hopper").bound({})(*call.values()) if not back.kernel("cuda.v5_hopper").configs else runs["two"](*call.values())
        good = {}
        for n, f in list(runs.items()):
            try: made = f(*call.values())
            except Exception as e: print(n, type(e).__name__, str(e)[:80]); del runs[n]; continue
            good[n] = round(max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in zip(made, want)), 5)
        t = {n: x.us for n, x in timing.compare({n: (lambda f=f: f(*call.values())) for n, f in runs.items()}, torch.device("cuda", 0), budget_ms=40.0, rounds=10).timings.items()}
        fl = 10 * 4 * h * 4096 * 4096 * d / (2 if causal else 1)
        print(d, causal, {n: (round(u, 1), round(fl / u / 1e6)) for n, u in sorted(t.items(), key=lambda i: i[1])}, "apart", good, flush=True)
