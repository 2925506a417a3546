"""The big products of Llama's step in CUDA graphs at the board's power, cuBLASLt's algorithms and ours in turn, many short turns: what differs by 1 % shows. PYTHONPATH=src python3 experiments/products.py [SECONDS each]
A line each: microseconds of what is preferred now, then ratios to it, median of turns and its standard error."""
import math, statistics, sys, time
import torch
from rooftile.cuda import cublaslt as L
from rooftile.ops._shared import hopper_products as own

W, SECONDS = torch.device("cuda", 0), float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
# name, M, N, K, whose B is a weight as it lies [N, K] (f) or [K, N] (d), or whose sum is over rows (w); is there something added; float32 out
SHAPES = [("gate_up dx", 16384, 2048, 16384, "d", 0, 0), ("gate_up dw", 16384, 2048, 16384, "w", 0, 0), ("down", 16384, 2048, 8192, "f", 1, 0), ("down dw", 2048, 8192, 16384, "w", 0, 0),
          ("head", 8192, 128256, 2048, "f", 0, 0), ("head dx", 8192, 2048, 128256, "d", 0, 0), ("head dw", 128256, 2048, 8192, "w", 1, 1), ("o", 16384, 2048, 2048, "f", 1, 0),
          ("o dx", 16384, 2048, 2048, "d", 0, 0), ("qkv", 16384, 3072, 2048, "f", 0, 0), ("qkv dx", 16384, 2048, 3072, "d", 0, 0), ("qkv dw", 3072, 2048, 16384, "w", 0, 0)]


def graph(run, times):
    run(), torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(times):
            run()
    return g


def turns(graphs, seconds, us):
    """Of each turn the ratio to the first, which comes before and behind."""
    marks, began, n = [], time.time(), 0
    rounds = max(6, int(seconds * 1e6 / us / (len(graphs) + 1)))
    for _ in range(rounds):
        row = []
        for g in (*graphs, graphs[0]):
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record(), g.replay(), b.record()
            row.append((a, b))
        marks.append(row)
    torch.cuda.synchronize()
    took = [[a.elapsed_time(b) for a, b in row] for row in marks]
    return [[2 * row[i] / (row[0] + row[-1]) for row in took] for i in range(len(graphs))], statistics.median(row[0] for row in took)


for name, m, n, k, way, added, wide in SHAPES:
    make = lambda *s, std=1.0: torch.empty(s, device=W, dtype=torch.bfloat16).normal_(std=std)  # noqa: E731
    left, right = (make(m, k), make(n, k, std=0.02).t()) if way == "f" else (make(m, k, std=1e-3), make(k, n, std=0.02)) if way == "d" else (make(k, m, std=1e-3).t(), make(k, n))
    out = torch.zeros(m, n, device=W, dtype=torch.float32 if wide else torch.bfloat16)
    add = (out if wide else make(m, n)) if added else None
    plan = L.Plan(out, left, right, None, None, L.EPILOGUES["none"][0], add, 256)
    times = max(1, int(3e9 * 650 / (2 * m * n * k) * 1e3))
    tell, runs = [], []
    for i in [plan.best, *(j for j in range(len(plan.answers)) if j != plan.best)]:
        label = f"t{plan.tile(plan.answers[i])} ws{plan.answers[i].workspace}"
        if label not in tell and plan.answers[i].workspace < 1 << 20:
            tell.append(label), runs.append(lambda i=i: plan.launch(out, left, right, None, None, add, i))
    if not added and not wide:
        for c in own.CONFIGS[:2]:
            tell.append(f"own lag {c['LAG']}"), runs.append(lambda c=c: own.product(left, right, None, out, c))
    graphs = [graph(r, times) for r in runs]
    for _ in range(30):
        graphs[0].replay()
    look, ms = turns(graphs, 0.5, 3000)
    keep = [0, *sorted(range(1, len(graphs)), key=lambda i: statistics.median(look[i]))[:4]]
    ratios, ms = turns([graphs[i] for i in keep], SECONDS, 3000)
    print(f"{name:10s} [{m} {n} {k}] {1e3 * ms / times:8.1f} us now {tell[0]} | " + "  ".join(
        f"{tell[i]} {statistics.median(r):.4f} +-{1.25 * statistics.stdev(r) / math.sqrt(len(r)):.4f}" for i, r in list(zip(keep, ratios))[1:]), flush=True)
    del graphs, plan
    L._plans.clear(), torch.cuda.empty_cache()
