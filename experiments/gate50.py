"""The gated perceptron's walks at Llama's shape, at the board's power: GROUPs in turn, beside cuBLAS's plain products."""
import time, torch, statistics, collections
from rooftile.ops.mlp import cuda_kernels as m
torch.manual_seed(0)
M, K, F = 16384, 2048, 8192
bf = dict(device="cuda", dtype=torch.bfloat16)
x, g = torch.randn(M, K, **bf), torch.randn(M, K, **bf) * .01
w1, w2 = torch.randn(2 * F, K, **bf) * .02, torch.randn(K, F, **bf) * .02
pre, h = m.gated(x, w1, "silu", True, m.GATED[0])
runs = {}
for n, base in (("a", m.CONFIGS[1]), ("b", m.CONFIGS[0])):
    for group in (8, 16, 32, 64):
        cfg = {**base, "GROUP": group}
        runs["bwd", n, group] = lambda cfg=cfg: m.gate_sloped(g, w2, pre, "silu", cfg)
        if n == "a": runs["fwd", n, group] = lambda cfg=cfg: m.gated(x, w1, "silu", True, cfg)
runs["cublas dh", "", 0] = lambda: torch.mm(g, w2)
runs["cublas pre", "", 0] = lambda: torch.mm(x, w1.t())
def burst(f, s=0.25):
    for _ in range(3): f()
    torch.cuda.synchronize(); t = time.perf_counter(); n = 0
    while True:
        for _ in range(20): f()
        torch.cuda.synchronize(); n += 20
        if time.perf_counter() - t > s: return (time.perf_counter() - t) / n * 1e6
T = collections.defaultdict(list)
for r in range(3):
    for k, f in runs.items(): T[k].append(burst(f))
for k in runs:
    us = statistics.median(T[k]); fl = 2 * M * K * F * (2 if k[0] in ("fwd", "cublas pre") else 1)
    print(k, [round(x, 1) for x in T[k]], f"{fl/us/1e6:.0f} TFLOP/s")
