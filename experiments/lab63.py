"""Capped cross entropy: v8 with the target by its neighbour (twin: in shared memory; r: in registers) and two coefficients where all lie within a quarter (tiers, both, r); v7 with 128 threads a block."""
import sys, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, resident
R, L = Path("src/rooftile/ops/cross_entropy/cuda"), Path(".gpu/ce61")
S = {"v8": R / "v8_bulk.cu", "v7": R / "v7_cluster.cu", "v4": R / "v4_vector.cu", "v3": R / "v3_online.cu"} | {p.stem: p for p in L.glob("v*.cu")}
S = {n: Source(p.resolve()) for n, p in S.items()}
BUDGET = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
def forward(source, x, target, cfg, cap):
    threads, vecs, stages, per = cfg
    m, v = x.shape
    row, peak, logsum, miss = (x.new_empty(m, dtype=torch.float32) for _ in range(4))
    count = x.new_empty((), dtype=torch.float32)
    launch(S[source], f"cross_entropy<{CTYPE[x.dtype]}, {vecs}, {stages}, {threads}, false, {'true' if cap else 'false'}>", cdiv(m, cdiv(m, resident(x, per))), threads, row, count, peak, logsum, miss, x, target, m, v, x.stride(0), -100, 0.0, 1e-4 if cap else 0.0, cap, True, shared=16 * vecs * stages * threads)
    return row, peak, logsum, miss
def ahead(source, x, target, cfg, cap):
    cluster, threads = cfg
    m, v = x.shape
    loss = x.new_empty(m, dtype=torch.float32)
    share = cdiv(v * 2 // 16, cluster)
    launch(S[source], f"cross_entropy_ahead<{CTYPE[x.dtype]}, false, {'true' if cap else 'false'}, {cluster}, {threads}>", m * cluster, threads, loss, x, target, v, x.stride(0), -100, 0.0, 1e-4 if cap else 0.0, cap, share, shared=16 * share)
    return loss
def lost(f):
    try: f(); torch.cuda.synchronize()
    except Exception as e: return f"{type(e).__name__} {str(e)[:200]}"
FW = [("v8_0", (256, 8, 2, 3)), ("v8", (256, 8, 2, 3)), ("v8", (512, 4, 3, 2)), ("v8", (256, 4, 3, 4)), ("v3_0", (256, 4, 2, 4)), ("v3", (256, 4, 2, 4))]
AH = [("v7_0", (8, 256)), ("v7_0", (8, 128)), ("v7", (8, 256)), ("v7", (8, 128)), ("v7", (8, 192))]
BW = [("v4_0", (128, 4), 8), ("v4", (128, 4), 8)]
def backward(source, dx, x, target, saved, cfg, cap, walk):
    threads, vecs = cfg
    m, v = x.shape
    _, peak, logsum, miss = saved
    tiles = cdiv(v * 2, 16 * vecs * threads * walk)
    launch(S[source], f"cross_entropy_backward<{CTYPE[x.dtype]}, {vecs}, {threads}, {threads}, {'true' if cap else 'false'}>", m * tiles, threads, dx, ONE, x, target, COUNT, peak, logsum, miss, m, v, dx.stride(0), 0, x.stride(0), -100, 0.0, 1e-4 if cap else 0.0, cap, walk)
    return dx
ONE, COUNT = torch.ones((), device="cuda"), torch.tensor(8192.0, device="cuda")
y = torch.randn(8, 128256, device="cuda", dtype=torch.bfloat16); ty = torch.zeros(8, dtype=torch.long, device="cuda")
with ThreadPoolExecutor(12) as pool:
    bad = list(pool.map(lambda j: (j[0].__name__, j[1], j[2], lost(lambda: j[0](j[1], y.clone(), ty, j[2], j[3]))), [(forward, s, c, 30.0) for s, c in FW] + [(ahead, s, c, k) for s, c in AH for k in (30.0, 0.0)]))
for b in bad:
    if b[3]: print(b, flush=True)
for m, v, cap, spread in ((8192, 128256, 30.0, 1.0), (8192, 128256, 30.0, 4.0), (8192, 128256, 30.0, 12.0), (8192, 128256, 0.0, 1.0)):
    torch.manual_seed(0)
    x = torch.randn(m, v, device="cuda", dtype=torch.bfloat16) * spread
    target = torch.randint(0, v, (m,), device="cuda")
    copy = torch.empty_like(x)
    if cap:
        runs, right = {}, None
        for s, c in FW:
            e = lost(lambda: forward(s, x, target, c, cap))
            if e: print(s, c, e); continue
            made = forward(s, x, target, c, cap)
            right = made if right is None else right
            a, b = ((t[1].double() + t[2].double()) for t in (made, right))
            off = float(((a - b).abs() / b.abs()).max()), float((made[0] - right[0]).abs().max()), float(((made[3] - right[3]).abs()).max())
            if max(off) > 3e-6: print(s, c, "off", off)
            runs[f"{s}{c}"] = lambda s=s, c=c: forward(s, x, target, c, cap)
        runs["copy"] = lambda: copy.copy_(x)
        made = timing.compare(runs, torch.device("cuda", 0), budget_ms=1e3 * BUDGET / len(runs))
        cp = made.timings["copy"].us / 2
        print("forward", m, v, cap, spread, "half a copy", f"{cp:.0f}", {n: f"{t.us:.0f} ({cp / t.us:.3f})" for n, t in sorted(made.timings.items(), key=lambda i: i[1].us)}, flush=True)
    if cap:
        runs, ref = {}, None
        for s_, c, w in BW:
            e = lost(lambda: backward(s_, copy, x, target, right, c, cap, w))
            if e: print(s_, c, e); continue
            if ref is None: ref = copy.clone()
            else:
                off = float((copy.float() - ref.float()).abs().max() / ref.float().abs().max())
                if off > 1e-2: print(s_, "off", off)
            runs[f"{s_}"] = lambda s_=s_, c=c, w=w: backward(s_, copy, x, target, right, c, cap, w)
        del ref
        runs["copy"] = lambda: copy.copy_(x)
        made = timing.compare(runs, torch.device("cuda", 0), budget_ms=300.0)
        cp = made.timings["copy"].us
        print("backward", spread, f"{cp:.0f}", {n: f"{t.us:.0f} ({cp / t.us:.3f})" for n, t in sorted(made.timings.items(), key=lambda i: i[1].us)}, flush=True)
    if spread > 4: continue
    runs, right = {}, None
    for s, c in AH:
        if not cap and s != "v7" and s != "v7_0": continue
        z = x.clone()
        e = lost(lambda: ahead(s, z, target, c, cap))
        if e: print(s, c, e); continue
        z.copy_(x); loss = ahead(s, z, target, c, cap)
        if right is None: right = (z.clone(), loss)
        else:
            off = float((z.float() - right[0].float()).abs().max() / right[0].float().abs().max()), float((loss - right[1]).abs().max())
            if off[0] > 1e-2 or off[1] > 1e-5: print(s, c, cap, "off", off)
        del z
        runs[f"{s}{c}"] = lambda s=s, c=c: ahead(s, copy, target, c, cap)
    copy.copy_(x)  # spread as drawn for the first call, small after it: a call leaves gradients
    runs["copy"] = lambda: x.copy_(copy)
    made = timing.compare(runs, torch.device("cuda", 0), budget_ms=1e3 * BUDGET / len(runs))
    cp = made.timings["copy"].us
    print("ahead", m, v, cap, "copy", f"{cp:.0f}", {n: f"{t.us:.0f} ({cp / t.us:.3f})" for n, t in sorted(made.timings.items(), key=lambda i: i[1].us)}, flush=True)
    del x, copy, right
