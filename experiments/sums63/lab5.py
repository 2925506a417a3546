"""sums63, fifth: what has landed (landed/: copies of launchers, kernels, headers) beside what is in the tree. usage: PYTHONPATH=src python3 .gpu/sums63/lab5.py [dry]
Expected of the fourth: N1 f32 85.3 -> 80.0, bf16 53.1 -> 49.4; N128 f32 144.4 -> 142.4, bf16 80.6 -> 79.3, half 154.1 -> 142.8; gemv 16 x 4M 44.8 -> 43.5; the gradient by v8 as it was."""
import importlib.util, multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent / "landed"
DRY = sys.argv[1:2] == ["dry"]
F32, BF, F16 = torch.float32, torch.bfloat16, torch.float16
def load(name):
    spec = importlib.util.spec_from_file_location(f"landed_{name}", H / f"{name}.py"); m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return m
def warm(job):
    from rooftile.cuda.compile import compiled
    from rooftile.cuda.source import Source
    try: compiled(Source(H / "cuda" / job[0]), job[1], "sm_90a")
    except Exception as e: return f"{job} {type(e).__name__} {str(e)[:300]}"
JOBS = [("v7_warps.cu", f"{k}") for t in ("float", "__nv_bfloat16", "__half") for i in ("long long", "int") for k in (f"chunks<{t}, {i}, 256>", f"join<{t}, {i}>")]
JOBS += [("v6_runs.cu", f"runs<{t}, {i}, {w}, {l}, {r}>") for i in ("long long", "int") for t, w, l, r in (("float", 4, 32, 8), ("__nv_bfloat16", 8, 16, 4), ("float", 4, 8, 4), ("float", 1, 32, 8))]
JOBS += [("v6_runs.cu", f"join<{t}, {i}, {w}>") for i in ("long long", "int") for t in ("float", "__nv_bfloat16") for w in (4, 1)] + [("v5_kept.cu", f"{k}<{t}>") for k in ("slices", "join") for t in ("float", "__nv_bfloat16", "__half")] + [("v8_spread.cu", f"spread<{t}, long long, 256>") for t in ("float", "__nv_bfloat16")]
if __name__ == "__main__":
    t0 = time.time()
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for bad in pool.imap(warm, JOBS, 1):
            if bad: print(bad, flush=True)
    from rooftile.core import timing
    from rooftile.core.kernel import OPS
    import rooftile.ops
    R, W, K, B = (load(f"{n}_kernels") for n in ("runs", "warps", "kept", "spread"))
    print(f"compiled {time.time() - t0:.0f} s", flush=True)
    if DRY:
        from rooftile.cuda import simulator
        o = torch.tensor([0, 5, 5, 700, 3000]); x = torch.randint(-9, 10, (3001, 1)).float()
        with simulator.active(): print(W.by_warps(x, o, config=W.pick({"x": x})).T, R.in_runs(x.expand(-1, 128).contiguous(), o, config=R.pick({"x": x}))[:, 0], K.kept(x[:2000].view(2, 1000), x[:1000, 0]))
        sys.exit()
    D = torch.device("cuda", 0)
    old, oldb, gem = OPS["segment_sum"], OPS["segment_sum_backward"], OPS["gemv"]
    def main(op, name, *a, config=None): k = op.kernel(name); return k.run(*a, config=config or (k.pick or (lambda c: k.configs[0]))(dict(zip(("x", "offsets"), a))))
    def warps(x, o, config=None): return W.by_warps(x, o, config=config or W.pick({"x": x}))
    def runs(x, o): return R.in_runs(x, o, config=R.pick({"x": x}))
    def show(name, calls):
        r = timing.compare(calls, D, budget_ms=60); t = {k: u.us for k, u in r.timings.items()}
        print(name, f"noise {r.noise:.3f}", "; ".join(f"{k} {u:.1f} ({t['copy']/u:.3f})" for k, u in sorted(t.items(), key=lambda i: i[1])), flush=True)
    def copy(n):
        a, b = (torch.empty(n // 2, device=D, dtype=torch.uint8).random_() for _ in range(2))
        return lambda: b.copy_(a)
    def cuts(m, e, half=False):
        o = torch.cat([torch.zeros(1, device=D, dtype=torch.int64), torch.randint(0, m + 1, (e - 1,), device=D).sort().values, torch.full((1,), m, device=D)])
        return torch.cat([o[:1], o[1:].clamp_min(m // 2)]) if half else o
    def truth(x, o): return torch.zeros(o.numel() - 1, x.shape[1], device=D, dtype=torch.float64).index_add_(0, torch.repeat_interleave(torch.arange(o.numel() - 1, device=D), o.diff()), x[int(o[0]):int(o[-1])].double()).to(x.dtype)
    torch.manual_seed(0)
    bad = 0
    for m, e, n in ((100003, 70, 1), (1 << 22, 3, 1), (1 << 22, 300000, 1), (5000, 9000, 1), (1 << 26, 9, 1), (200000, 3000, 128), (200000, 2, 128), (1 << 20, 1, 128), (60000, 40, 20), (300000, 5, 67), (70000, 90000, 128), (40000, 300, 1000)):
        for dt in (F32, BF):
            for half in (False, True):
                x, o = torch.randint(-9, 10, (m, n), device=D).to(dt), cuts(m, e, half)
                want = truth(x, o)
                for i in range(12):
                    cut = o.int() if i % 2 else o
                    got = warps(x, cut) if n == 1 else runs(x, cut)
                    if not torch.equal(got, want): bad += 1; print("WRONG", m, e, n, dt, half, i, int((got != want).any(1).sum())) if bad < 9 else None
    for m, k, dt in ((16, 4194304, BF), (3, 3145728 + 5, F16), (64, 1 << 21, F32), (1, 9000, BF), (7, 30000003, BF)):
        a = torch.randint(-3, 4, (m, -(-k // 8) * 8), device=D).to(dt)[:, :k]; x = torch.randint(-3, 4, (k,), device=D).to(dt)
        want = torch.stack([(r.double() * x.double()).sum() for r in a]).to(dt)
        for i in range(12):
            if not torch.equal(K.kept(a, x), want): bad += 1; print("WRONG gemv", m, k, dt)
    print("checked", bad, f"{time.time() - t0:.0f} s", flush=True)
    for m, e, n, dt, half in ((1 << 26, 1 << 20, 1, F32, 0), (1 << 26, 1 << 20, 1, BF, 0), (1 << 26, 1 << 20, 1, F32, 1), (1 << 25, 1 << 19, 1, F32, 0), (1 << 24, 1 << 18, 1, F32, 0), (1 << 26, 1 << 23, 1, F32, 0), (1 << 26, 1 << 14, 1, F32, 0),
                              (1 << 20, 16384, 128, F32, 0), (1 << 20, 16384, 128, BF, 0), (1 << 20, 16384, 128, F32, 1), (1 << 20, 16384, 128, BF, 1), (1 << 20, 100000, 128, F32, 0), (1 << 18, 4096, 512, F32, 0), (1 << 23, 1 << 17, 16, F32, 0), (1 << 16, 1000, 128, F32, 0)):
        x, o = torch.randn(m, n, device=D, dtype=dt), cuts(m, e, half)
        name = "cuda.v7_warps" if n == 1 else "cuda.v6_runs"
        calls = {"copy": copy((m + e) * n * dt.itemsize + e * 8), "old": lambda: main(old, name, x, o), "new": lambda: (warps if n == 1 else runs)(x, o)}
        if n == 1 and dt == F32: calls["new, other waves"] = lambda: warps(x, o, W.CONFIGS[0 if m >= 1 << 25 else 1])
        show(f"{m} {e} {n} {dt} half={half}", calls)
        if n == 1 and e == 1 << 20 and not half:
            d = torch.randn(e, 1, device=D, dtype=dt); k = oldb.kernel("cuda.v8_spread"); new = B.BACKWARD[0]
            show("  gradient", {"copy": copy((m + e) * dt.itemsize + e * 8), "old": lambda: k.run(d, x, o, config=k.configs[0]), "new": lambda: new.run(d, x, o, config=new.configs[0])})
        del x
    for m, k, dt in ((16, 4194304, BF), (16, 4194304, F32), (64, 3145728, BF), (64, 4194304, BF), (32, 3145728, BF), (2, 3145728, BF), (1, 3145728, BF), (16, 6291456, BF), (16, 8388608, BF)):
        a, x = torch.randn(m, k, device=D, dtype=dt), torch.randn(k, device=D, dtype=dt)
        s = gem.kernel("cuda.v4_split")
        show(f"gemv {m} x {k} {dt}", {"copy": copy((m * k + k + m) * dt.itemsize), "old": lambda: s.run(a, x, config=s.pick({"a": a})), "new": lambda: K.kept(a, x)})
        del a, x
    print(f"all {time.time() - t0:.0f} s", flush=True)
