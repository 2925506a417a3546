"""segment_sum v6's configs under bench's clock, at the three shapes of N = 128; prints alone. On branch `next`."""
import torch
import rooftile.ops.segment_sum.api  # noqa
from rooftile.core import timing
from rooftile.core.kernel import OPS
gen = torch.Generator("cuda").manual_seed(0)
v6 = OPS["segment_sum"].kernel("cuda.v6_runs")
M = 1 << 20
def cuts(m, e, last):
    inner = torch.randint(0, last + 1, (e - 1,), generator=gen, device="cuda").sort().values
    return torch.cat([inner.new_tensor([0]), inner, inner.new_tensor([last])])
for dt in (torch.float32, torch.bfloat16):
    x = torch.randn(M, 128, device="cuda", generator=gen).to(dt)
    for last in (M, M // 2):
        o = cuts(M, 16384, last)
        want = torch.segment_reduce(x[:last].float(), "sum", offsets=o, axis=0)
        n = x.numel() * x.itemsize
        a, b = (torch.empty(n // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
        calls = {str(tuple(c.values())): (lambda c=c: v6.run(x, o, config=c)) for c in v6.configs} | {"copy": lambda: b.copy_(a)}
        bad = [k for k, f in calls.items() if k != "copy" and not torch.allclose(f().float(), want, rtol=2e-2, atol=.5)]
        t = {k: v.us for k, v in timing.compare(calls, torch.device("cuda", 0), budget_ms=10.0, rounds=40).timings.items()}
        print(dt, last, "bad", bad, {k: (round(u, 1), round(t["copy"] / u, 3)) for k, u in sorted(t.items(), key=lambda i: i[1])}, flush=True)
