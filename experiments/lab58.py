"""Capped cross entropy's forward and gradient: v3 as it was, v3 by bounds and three coefficients, v8 by bulk copies; v4 as it was and walking. usage: lab58.py SECONDS
Predicted of a copy: v3 now 0.87, v8 0.95 with 8 vectors; v4 walking 8 tiles 0.92."""
import sys, torch
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, resident, rows, power_of_2
R = Path("src/rooftile/ops/cross_entropy/cuda")
S = {"before": Source(Path(".gpu/ce/v3_online_before.cu").resolve()), "v3": Source((R / "v3_online.cu").resolve()), "v8_lab": Source(Path(".gpu/ce/v8_lab.cu").resolve()), "v8": Source((R / "v8_bulk.cu").resolve()),
     "b_before": Source(Path(".gpu/ce/v4_vector_before.cu").resolve()), "v4": Source((R / "v4_vector.cu").resolve())}
BUDGET = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
def forward(source, x, target, cfg, cap):
    threads, vecs, stages, per = cfg
    m, v = x.shape
    row, peak, logsum, miss = (x.new_empty(m, dtype=torch.float32) for _ in range(4))
    count = x.new_empty((), dtype=torch.float32)
    blocks = cdiv(m, cdiv(m, resident(x, per)))
    launch(S[source], f"cross_entropy<{CTYPE[x.dtype]}, {vecs}, {stages}, {threads}, false, {'true' if cap else 'false'}>", blocks, threads, row, count, peak, logsum, miss, x, target, m, v, x.stride(0), -100, 0.0, 1e-4 if cap else 0.0, cap, True, shared=16 * vecs * stages * threads)
    return row, peak, logsum, miss
def backward(source, dx, x, target, saved, dloss, count, cfg, cap, walk=None):
    threads, vecs = cfg
    m, v = x.shape
    _, peak, logsum, miss = saved
    lanes = min(threads, power_of_2(cdiv(v * x.itemsize, 16 * vecs)))
    tiles = cdiv(v * x.itemsize, 16 * vecs * lanes * (walk or 1))
    extra = () if walk is None else (walk,)
    launch(S[source], f"cross_entropy_backward<{CTYPE[x.dtype]}, {vecs}, {lanes}, {threads}, {'true' if cap else 'false'}>", cdiv(m, threads // lanes) * tiles, threads, dx, dloss, x, target, count, peak, logsum, miss, m, v, dx.stride(0), 0, x.stride(0), -100, 0.0, 1e-4 if cap else 0.0, cap, *extra)
    return dx
for m, v, cap in ((8192, 128256, 30.0), (8192, 128256, 0.0), (8192, 50304, 0.0)):
    torch.manual_seed(0)
    x = torch.randn(m, v, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(0, v, (m,), device="cuda")
    dx = torch.empty_like(x); copy = torch.empty_like(x)
    runs, right = {}, None
    cfgs = [("before", (256, 4, 2, 4)), ("v3", (256, 4, 2, 4)), ("v8", (256, 4, 3, 4)), ("v8", (256, 4, 2, 4)), ("v8", (256, 8, 2, 3)), ("v8_lab", (256, 8, 2, 3)), ("v8", (128, 8, 2, 6)), ("v8", (128, 4, 3, 8)), ("v8", (512, 4, 3, 2)), ("v8", (256, 4, 4, 3))]
    for s, c in cfgs:
        try:
            made = forward(s, x, target, c, cap); torch.cuda.synchronize()
        except Exception as e: print(s, c, type(e).__name__, str(e)[:200]); continue
        right = made if right is None else right
        a, b = ((t[1].double() + t[2].double()) for t in (made, right))
        off = float(((a - b).abs() / b.abs()).max()), float((made[0] - right[0]).abs().max()), float(((made[3] - right[3]).abs()).max())
        if max(off) > 1e-5: print(s, c, "off", off)
        runs[f"{s}{c}"] = lambda s=s, c=c: forward(s, x, target, c, cap)
    runs["copy"] = lambda: copy.copy_(x)
    made = timing.compare(runs, torch.device("cuda", 0), budget_ms=1e3 * BUDGET / len(runs))
    cp = made.timings["copy"].us / 2
    print("forward", m, v, cap, "half a copy", f"{cp:.0f}", {n: f"{t.us:.0f} ({cp / t.us:.3f})" for n, t in sorted(made.timings.items(), key=lambda i: i[1].us)}, flush=True)
    if v < 100000: continue
    dloss = torch.ones((), device="cuda"); count = torch.tensor(float(m), device="cuda")
    runs, ref = {}, None
    cfgs = [("b_before", (128, 4), None)] + [("v4", (128, 4), w) for w in (1, 2, 4, 8, 16, 64)] + [("v4", (256, 2), w) for w in (4, 16)] + [("v4", (256, 4), w) for w in (4, 16)] + [("v4", (128, 2), 8)]
    for s, c, w in cfgs:
        try:
            backward(s, dx, x, target, right, dloss, count, c, cap, w); torch.cuda.synchronize()
        except Exception as e: print(s, c, type(e).__name__, str(e)[:200]); continue
        if ref is None: ref = dx.clone()
        else:
            off = float((dx.float() - ref.float()).abs().max() / ref.float().abs().max())
            if off > 1e-2: print(s, c, w, "off", off)
        runs[f"{s}{c}{w or ''}"] = lambda s=s, c=c, w=w: backward(s, dx, x, target, right, dloss, count, c, cap, w)
    runs["copy"] = lambda: copy.copy_(x)
    made = timing.compare(runs, torch.device("cuda", 0), budget_ms=1e3 * BUDGET / len(runs))
    cp = made.timings["copy"].us
    print("backward", m, v, cap, "copy", f"{cp:.0f}", {n: f"{t.us:.0f} ({cp / t.us:.3f})" for n, t in sorted(made.timings.items(), key=lambda i: i[1].us)}, flush=True)
    del ref, dx, copy, x
