"""What a kernel's first touch costs under bench's clock (cold L2): itself; itself after a tiny call of the same instance; the tiny call, and twice."""
import torch
from rooftile.core import timing
from rooftile.core.kernel import OPS
import rooftile.ops.attention_decode.api, rooftile.ops.segment_sum.api  # noqa
from rooftile.ops.attention_decode.api import _decode
def probe(title, f, tiny):
    calls = {"f": f, "tiny+f": lambda: (tiny(), f()), "tiny": tiny, "tiny+tiny": lambda: (tiny(), tiny())}
    t = {n: x.us for n, x in timing.compare(calls, torch.device("cuda", 0), budget_ms=10.0, rounds=40).timings.items()}
    print(f"{title:28s} f {t['f']:.1f}  after tiny {t['tiny+f'] - t['tiny']:.1f}  tiny cold {t['tiny']:.1f} warm {t['tiny+tiny'] - t['tiny']:.1f}", flush=True)
op = _decode
for case in op.spec.cases:
    if "bench" not in case.use or case.dims["T"] > 1 or case.id.startswith("host") or case.dims["B"] > 1: continue
    call = op.spec.draw(case, device="cuda")
    k = op.kernel("cuda.v2_fragments"); c = k.pick(call)
    small = {**call, "lengths": torch.full_like(call["lengths"], 64)}
    probe(f"decode {case.id[:30]}", lambda: k.run(*call.values(), config=c), lambda: k.run(*small.values(), config=c))
    tr = op.kernel("triton"); ct = tr.pick(call)
    probe(f"triton {case.id[:30]}", lambda: tr.run(*call.values(), config=ct), lambda: tr.run(*small.values(), config=ct))
M, E = 67108864, 1048576
gen = torch.Generator("cuda").manual_seed(0)
def cuts(m, e):
    inner = torch.randint(0, m + 1, (e - 1,), generator=gen, device="cuda").sort().values
    return torch.cat([inner.new_tensor([0]), inner, inner.new_tensor([m])])
x, cut = torch.randn(M, 1, device="cuda"), cuts(M, E)
xs, cs = torch.randn(4096, 1, device="cuda"), cuts(4096, 64)
v7 = OPS["segment_sum"].kernel("cuda.v7_warps"); c = v7.configs[0]
probe("segment v7", lambda: v7.run(x, cut, config=c), lambda: v7.run(xs, cs, config=c))
v8 = OPS["segment_sum_backward"].kernel("cuda.v8_spread"); c8 = v8.configs[0]
d, ds = torch.randn(E, 1, device="cuda"), torch.randn(64, 1, device="cuda")
probe("segment v8", lambda: v8.run(d, x, cut, config=c8), lambda: v8.run(ds, xs, cs, config=c8))
v6 = OPS["segment_sum"].kernel("cuda.v6_runs")
for dt in (torch.float32, torch.bfloat16):
    y, o = torch.randn(1 << 20, 128, device="cuda").to(dt), cuts(1 << 20, 16384)
    ys, os_ = y[:4096].clone(), cuts(4096, 64)
    from rooftile.ops.segment_sum import runs_kernels
    pick = v6.pick({"x": y, "offsets": o}) if v6.pick else v6.configs[0]
    probe(f"segment v6 {dt}", lambda: v6.run(y, o, config=pick), lambda: v6.run(ys, os_, config=pick))
    del y
e = torch.empty(1 << 26, device="cuda"); es = torch.empty(4096, device="cuda")
probe("fill", lambda: e.fill_(1.0), lambda: es.fill_(1.0))
