"""sums64: segment_sum N = 128 and N = 1. usage: PYTHONPATH=src python3 .gpu/sums64/lab.py [seconds, 45 | dry]
Two numbers: bf16 N = 128 moves 273 MB, 65 us at 4.2 TB/s; a warp's row of 512 bytes takes 62 instructions today, of which 35 make `first`, `count`, `end` anew (a chain of 200
cycles a batch of four rows with nothing asked for), 36 of 78 us; 27 without, 14 us.
v6: keep: first and count stay (predicted 78 -> 76); roll: and each row is asked for behind the one that was there (75); spec: join asks for two partial rows before it knows (-0.6);
first: the first turn of the search is asked for before x (-0.8), fast: a batch without a border is 22 instructions a row in one piece: 74 for bf16 (.95 is 74.5), f32 140 -> 137. N = 1: 480 instructions a tile, 360 with sums in their place (else) and first,
count, until kept by a shuffle (stay), the other tile's bits by a number (b): 79.5 -> 77.5; first: 76.5.
grad_norm bf16: the next chunk's number is looked up behind the wait for this one's first vector, and its place behind that: two trips a chunk with nothing asked for. two: places in shared
memory, the next number asked for behind the data's loads, whole chunks without ends: 69.3 -> 67.5."""
import multiprocessing, subprocess, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
DRY = sys.argv[1:2] == ["dry"]
F32, BF, F16 = torch.float32, torch.bfloat16, torch.float16
C = {F32: "float", BF: "__nv_bfloat16", F16: "__half"}
V6 = ["v6_old", "v6_keep", "v6_spec", "v6_batch", "v6_roll_now", "v6_roll", "v6_first", "v6_fast"]
V7 = ["v7_old", "v7_stay", "v7_else", "v7_b", "v7_first"]
MORE6 = [(4, 1024, 0), (4, 2048, 0), (4, 2048, 2), (4, 4096, 2), (8, 1024, 0), (8, 1024, 2), (8, 2048, 0), (8, 2048, 2), (4, 4096, 0), (4, 512, 0)]
SIX = [(6, 1024, 0), (6, 2048, 2)]
NORM = ["n_old", "n_sm_now", "n_ask_now", "n_whole_now", "n_two"]
MOREN = [(4, 256, 6), (4, 256, 4), (4, 256, 5), (2, 256, 8), (4, 512, 3), (8, 256, 3), (4, 128, 12), (8, 128, 6)]
MORE7 = [(256, 24), (256, 48), (256, 72), (256, 96), (128, 72), (128, 24)]
def jobs():
    out = []
    for t in (F32, BF, F16):
        w, l = (4, 32) if t == F32 else (8, 16)
        for s in V6:
            out += [(s, f"runs<{C[t]}, long long, {w}, {l}, {r}>") for r in (4, 8)] + [(s, f"join<{C[t]}, long long, 4>")]
        out += [("v6_roll", f"runs<{C[t]}, long long, {w}, {l}, 6>")]
        out += [("v6_fast", f"runs<{C[t]}, int, {w}, {l}, {r}>") for r in (4, 8)] + [("v6_fast", f"join<{C[t]}, int, 4>")]
        for s in V7:
            out += [(s, f"chunks<{C[t]}, long long, {b}>") for b in ((256, 128) if s == "v7_first" else (256,))] + [(s, f"join<{C[t]}, long long>")]
        out += [("v7_first", f"chunks<{C[t]}, int, 256>"), ("v7_first", f"join<{C[t]}, int>")]
    for s in NORM: out += [(s, f"squares<{C[t]}, {v}, {b}>") for t in (F32, BF) for v, b in (sorted({c[:2] for c in MOREN}) if s == "n_two" else [(4, 256)])]
    return out + [("read", "read<2>")]
def warm(job):
    from rooftile.cuda.compile import compiled
    from rooftile.cuda.source import Source
    try:
        c = compiled(Source(H / f"{job[0]}.cu"), job[1], "sm_90a")
        return f"{job} spills {c.spill_bytes}" if c.spill_bytes else None
    except Exception as e: return f"{job} {type(e).__name__} {str(e)[:300]}"
if __name__ == "__main__" and (len(sys.argv) == 1 or DRY or sys.argv[1].replace(".", "").isdigit()):
    t0 = time.time()
    limit = 3000.0 if DRY else float(sys.argv[1]) if len(sys.argv) > 1 else 45.0
    stages = [["rows", "BF"], ["one", "F32"], ["norm", "BF"], ["rows", "F32"], ["rows", "HALF"], ["rows", "F16"], ["one", "BF"], ["norm", "F32"]]
    def begin(w): return subprocess.Popen([sys.executable, __file__, *w, *(["dry"] if DRY else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun = [] if DRY else [begin(w) for w in stages]  # each waits for a line
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for bad in pool.imap(warm, sorted(jobs(), key=lambda j: "join" in j[1]), 1):
            if bad: print(bad, flush=True)
    print(f"compiled {time.time() - t0:.0f} s", flush=True)
    for i, w in enumerate(stages):
        left = limit - (time.time() - t0)
        p = begun[i] if begun else begin(w)
        if left < 4: print("late", w); p.kill(); continue
        try:
            out, err = p.communicate("go\n", timeout=left)
            print(out, end="", flush=True)
            if p.returncode: print(w, "rc", p.returncode, err[-500:], flush=True)
        except subprocess.TimeoutExpired:
            p.kill()
            print("cut off", w, p.communicate()[0][-3000:], flush=True)
        print(f"{time.time() - t0:.0f} s", flush=True)
elif __name__ == "__main__":
    from contextlib import nullcontext
    from rooftile.core import timing
    from rooftile.cuda import simulator
    from rooftile.cuda.source import Source
    import rooftile.ops
    from rooftile.ops.segment_sum import runs_kernels as R, warps_kernels as W
    S = {n: Source(H / f"{n}.cu") for n in V6 + V7 + ["read"]}
    from rooftile.cuda.launch import launch as LAUNCH
    skip = False
    def launched(source, instance, *a, **k):
        if not (skip and instance.startswith("join")): LAUNCH(source, instance, *a, **k)
    R.launch = W.launch = launched
    def alone(run):  # without the second launch, for what it takes
        global skip
        skip = True
        try: return run()
        finally: skip = False
    def read(x, out):
        m = x.numel() * x.itemsize // 4
        LAUNCH(S["read"], "read<2>", -(-m // 8192), 256, out, x, m, 1)
    DRY = sys.argv[-1] == "dry"
    D = torch.device("cpu") if DRY else torch.device("cuda", 0)
    if not DRY: torch.zeros(1, device=D)
    sys.stdin.readline()
    where = simulator.active if DRY else nullcontext
    def runs(s, x, o, config=None):
        R.RUNS = S[s]
        return R.in_runs(x, o, config=config or R.pick({"x": x}))
    def numbers(s, x, o, config=None):
        W.WARPS = S[s]
        return W.by_warps(x, o, config=config or W.pick({"x": x}))
    def copy(n):
        a, b = (torch.empty(n // 2, device=D, dtype=torch.uint8).random_() for _ in range(2))
        return lambda: b.copy_(a)
    def cuts(m, e, half=False, part=False):
        o = torch.cat([torch.zeros(1, device=D, dtype=torch.int64), torch.randint(0, m + 1, (e - 1,), device=D).sort().values, torch.full((1,), m, device=D)])
        if part: o = o.clamp(3, m - 2)
        return torch.cat([o[:1], o[1:].clamp_min(m // 2)]) if half else o
    def truth(x, o): return torch.zeros(o.numel() - 1, x.shape[1], device=D, dtype=torch.float64).index_add_(0, torch.repeat_interleave(torch.arange(o.numel() - 1, device=D), o.diff()), x[int(o[0]):int(o[-1])].double()).to(x.dtype)
    def show(name, calls):
        if DRY: return [c() for c in calls.values()]
        r = timing.compare(calls, D, budget_ms=50, rounds=80); t = {k: u.us for k, u in r.timings.items()}
        print(f"{name} noise {r.noise:.3f}", "; ".join(f"{k} {u:.1f} ({t['copy']/u:.3f})" for k, u in sorted(t.items(), key=lambda i: i[1])), flush=True)
    def norms():
        from rooftile.core.kernel import OPS
        from rooftile.ops.adamw import cuda_kernels as A
        def norm(s, grads, config=(4, 256, 6)):
            A.N2 = Source_of[s]
            return A.norm_vector(grads, config=dict(zip(("vecs", "threads", "per"), config)))
        Source_of = {n: Source(H / f"{n}.cu") for n in NORM}
        spec, bad = OPS["grad_norm"].spec, set()
        lists = [[torch.randn(n, device=D).to(dt) for n in sizes] for sizes in ((3000, 1, 8192, 8193, 0, 77, 40000), tuple(range(1, 700, 7)), (1000,) * 600, (100000,) * (2 if DRY else 300), (8192 * 3,))]
        for i, grads in enumerate(lists):
            want = norm("n_old", grads)
            true = torch.sqrt(sum(g.double().square().sum() for g in grads))
            for s in NORM:
                for c in [(4, 256, 6)] + (MOREN if s == "n_two" else []):
                    got = norm(s, grads, c)
                    if (c == (4, 256, 6) and not torch.equal(got, want)) or abs(float(got) / float(true) - 1) > 1e-5: bad.add((s, i, c))
        print("norm", dt, "WRONG" if bad else "right", sorted(map(str, bad))[:12], flush=True)
        if DRY: return
        case = next(c for c in spec.cases if "bench" in c.use and c.dtype == dt)
        grads = list(spec.draw(case, 0, D)["grads"])
        size = sum(g.numel() * g.itemsize for g in grads)
        calls = {"copy": copy(size), **{s: (lambda s=s: norm(s, grads)) for s in NORM}}
        show(f"grad_norm {dt}", calls | {f"two {c}": (lambda c=c: norm("n_two", grads, c)) for c in MOREN[1:]})
    torch.manual_seed(0)
    what, dt = sys.argv[1], {"BF": BF, "F32": F32, "HALF": F32, "F16": F16}[sys.argv[2]]
    half = sys.argv[2] == "HALF"
    if what == "norm":
        with where(), torch.no_grad(): norms()
        sys.exit()
    with where(), torch.no_grad():
        n, call, names = (128, runs, V6) if what == "rows" else (1, numbers, V7)
        old = names[0]
        shapes = ((3001, 40, 0), (2000, 1, 0), (700, 900, 1)) if DRY else ((100003, 1700, 0), (1 << 18, 1, 0), (1 << 18, 4, 1), (30000, 50000, 0), (1 << 20, 1 << 14, 0)) if n > 1 else ((1000003, 70000, 0), (1 << 22, 3, 0), (1 << 22, 300000, 1), (5000, 9000, 0), (1 << 25, 1 << 19, 1))
        bad = set()
        for m, e, h in shapes:
            x, o = torch.randn(m, n, device=D).to(dt), cuts(m, e, bool(h), part=not h)
            want = call(old, x, o)
            for s in names:
                for _ in range(1 if DRY else 6):
                    if not torch.equal(call(s, x, o), want): bad.add((s, m, e))
            xi = torch.randint(-9, 10, (m, n), device=D).to(dt)
            want = truth(xi, o)
            for s in names[-1:] + ["v6_roll"] * (n > 1):
                for c in (({"rows": r, "runs": k, "cut": u} for r, k, u in (SIX if s == "v6_roll" else MORE6)) if n > 1 else ({"block": b, "per_sm": p} for b, p in MORE7)):
                    if not torch.equal(call(s, xi, o, c), want): bad.add((s, m, e, str(c)))
            if not torch.equal(call(names[-1], xi, o.int()), want): bad.add((names[-1], m, e, "int"))
        print(what, dt, half, "WRONG" if bad else "right", sorted(map(str, bad))[:12], flush=True)
        m, e = ((3000, 50) if DRY else (1 << 20, 1 << 14)) if n > 1 else ((5000, 90) if DRY else (1 << 26, 1 << 20))
        x, o, one = torch.randn(m, n, device=D).to(dt), cuts(m, e, half), torch.tensor([0, m], device=D)
        calls = {"copy": copy((m + e) * n * dt.itemsize + e * 8), **{s: (lambda s=s: call(s, x, o)) for s in names}}
        calls |= {f"{s} E=1": (lambda s=s: call(s, x, one)) for s in (old, names[-1])}
        calls |= {f"{s} no join": (lambda s=s: alone(lambda: call(s, x, o))) for s in (old, names[-1])}
        out = torch.empty(m * n * dt.itemsize // 4096 + 64, device=D)
        if not DRY: calls["read"] = lambda: read(x, out)
        show(f"N{n} {dt} half={half}", calls)
        calls = {"copy": calls["copy"], old: calls[old]}
        if n > 1:
            calls |= {str(c): (lambda c=c: runs("v6_fast", x, o, dict(zip(("rows", "runs", "cut"), c)))) for c in MORE6}
            calls |= {str(c): (lambda c=c: runs("v6_roll", x, o, dict(zip(("rows", "runs", "cut"), c)))) for c in SIX}
        else: calls |= {str(c): (lambda c=c: numbers("v7_first", x, o, dict(zip(("block", "per_sm"), c)))) for c in MORE7}
        show("  by config", calls)
