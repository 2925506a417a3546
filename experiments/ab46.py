"""Walk before and after it was taken apart (multiply_steps, ask_step): the same launches from old sources and new, in turn."""
import pathlib, random, statistics, sys, torch
from rooftile.cuda.source import Source
from rooftile.ops._shared import hopper_products as hp
from rooftile.ops.gemm import sums_kernels as s
from rooftile.ops.mlp import cuda_kernels as m
OLD = pathlib.Path(__file__).parent / "old46"
NEW_OLD = {"p": (hp.V1, Source(OLD / "_shared_cuda_product_v1_hopper.cu")), "s": (s.V2, Source(OLD / "gemm_cuda_v2_sums.cu")), "m": (m.V1, Source(OLD / "mlp_cuda_v1_hopper.cu"))}
def use(i): hp.V1, s.V2, m.V1 = (NEW_OLD[k][i] for k in "psm")
def t(cl, n=10):
    for _ in range(2): cl()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab"); a.record()
    for _ in range(n): cl()
    b.record(); b.synchronize(); return a.elapsed_time(b) / n * 1e3
torch.manual_seed(0); r = lambda *x: torch.randn(*x, device="cuda").bfloat16()
x, w, g, b = r(32768, 768), r(2304, 768), r(32768, 2304), r(2304)
w1, b1, h = r(3072, 768), r(3072), r(32768, 3072); w2 = r(768, 3072); gx, gw, gd, gwd = r(16384, 2048), r(16384, 2048), r(16384, 2048), r(2048, 8192); pre = r(16384, 16384)
C = {"product qkv": lambda: hp.product(x, w.t(), b), "product 8192^3": None, "v2_sums qkv": lambda: s.weight_gradient(g, x, s.CONFIGS[0]), "v2_sums 192": lambda: s.weight_gradient(g, x, s.CONFIGS[1]), "v2_sums 32": lambda: s.weight_gradient(g, x, s.CONFIGS[2]),
     "mlp forward": lambda: m.activated(x, w1, b1, "Sloped<GeluTanh>", m.CONFIGS[0]), "mlp backward": lambda: m.sloped(x, w2, h, b1, "Slope", m.CONFIGS[0]),
     "gated forward": lambda: m.gated(gx, gw, "silu", True, m.GATED[0]), "gated backward": lambda: m.gate_sloped(gd, gwd, pre, "silu", m.GATED[0])}
A, B = r(8192, 8192), r(8192, 8192); C["product 8192^3"] = lambda: hp.product(A, B)
R = {(n, i): [] for n in C for i in (0, 1)}
flat = lambda o: [t for t in o if t is not None] if isinstance(o, tuple) else [o]
for n, c in C.items():
    use(0); new = flat(c()); use(1); old = flat(c()); assert all(torch.equal(p, q) for p, q in zip(new, old)), n
for k in range(12):
    todo = list(R); random.seed(k); random.shuffle(todo)
    for n, i in todo: use(i); R[n, i].append(t(C[n]))
for n in C: a, o = (statistics.median(R[n, i]) for i in (0, 1)); print(f"{n:16} new {a:8.1f} old {o:8.1f}  {a/o:.4f}")
