"""scan in both directions, segment_sum of N=1 and N=128: present kernels against variants. Each variant is first tried in a process of its own.
usage: PYTHONPATH=src python3 .gpu/seg61/lab.py [ms a case, 2200]"""
import subprocess, sys, time, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, power_of_2, processors, rows
from rooftile.ops.scan import cuda_kernels as C
from rooftile.ops.segment_sum.cuda_kernels import wide
H, O = Path(".gpu/seg61").resolve(), Path("src/rooftile/ops").resolve()
TRIED = sys.argv[1:2] == ["try"]
BUDGET = float(sys.argv[1]) if len(sys.argv) > 1 and not TRIED else 2200.0
PRESENT = {"v5": O / "scan/cuda/v5_pipeline.cu", "v6": O / "segment_sum/cuda/v6_runs.cu", "v7": O / "segment_sum/cuda/v7_warps.cu"}
S = {n: Source(PRESENT.get(n, H / f"{n}.cu")) for n in ("v5", "scan_own", "scan_run", "v6", "v6_runs_any", "v6_runs_256", "v6_bulk", "v7", "v7_warps_any", "v7_warps_256", "v7_bulk", "v7_bulk2")}
def scan(s, x, cfg, reverse=True): return C._pipeline(S[s], x, False, reverse, config=dict(zip(("vectors", "warps", "stages", "lead", "per"), cfg)))
def numbers(s, x, offsets, cfg):
    block, per_sm = cfg
    m, e = x.shape[0], offsets.numel() - 1
    out, every, warps, most = x.new_empty((e, 1)), cdiv(m, 1024), block // 32, per_sm * processors(x)
    tiles = max(1, cdiv(every, most))
    blocks = max(cdiv(every, tiles * warps), min(cdiv(e, block), cdiv(most, warps)))
    share = cdiv(e, blocks * warps)
    head, opened = x.new_empty(blocks, dtype=torch.float32), x.new_empty((blocks, 4), dtype=torch.int32)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    launch(S[s], f"chunks<{types}, {block}>", blocks, block, out, head, opened, x, offsets, m, e, tiles, share, shared={"v7_bulk": 4096, "v7_bulk2": 8192}.get(s, 0) * warps)
    launch(S[s], f"join<{types}>", cdiv(blocks, 128), 128, out, head, opened, offsets, m, e, blocks, share * warps)
    return out
def runs(s, x, offsets, cfg):
    r, most, cut, *ring = cfg
    x, m, n, stride = rows(x)
    e = offsets.numel() - 1
    out = x.new_empty((e, n)); width, lanes, strips = wide(x, n, stride); groups = 256 // lanes
    chunk = power_of_2(max(16, cdiv(m, groups * most))); count = max(1, cdiv(m, groups * chunk))
    long = max(0, count - cut * processors(x)) if chunk >= 64 else count
    count = long + cdiv(max(0, m - long * groups * chunk), groups * chunk // 4)
    partial, opened = x.new_empty((2 * count, n), dtype=torch.float32), offsets.new_empty((count, 2), dtype=torch.int64)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    extra = f", {ring[0]}, {ring[1]}" if ring else ""
    launch(S[s], f"runs<{types}, {width}, {lanes}, {r}{extra}>", count * strips, 256, out, partial, opened, x, offsets, m, e, n, stride, strips, chunk.bit_length() - 1, long, shared=ring[0] * r * 4096 if ring else 0)
    launch(S[s], f"join<{types}, {1 if n % 4 else 4}>", max(cdiv(count, 16), cdiv(e, 512)), 512, out, partial, opened, offsets, m, e, n, count)
    return out
HALF = [("v5", (8, 8, 6, 3, 2)), ("scan_own", (8, 8, 6, 3, 2)), ("scan_own", (8, 8, 4, 2, 3)), ("scan_own", (16, 8, 3, 2, 2)), ("scan_own", (8, 16, 3, 2, 2)), ("scan_run", (8, 8, 6, 3, 2)), ("scan_run", (8, 8, 4, 2, 3)), ("v5", (8, 8, 4, 2, 3))]
SINGLE = [("v5", (8, 8, 3, 2, 2)), ("scan_own", (8, 8, 3, 2, 2)), ("scan_own", (4, 8, 6, 3, 2)), ("scan_own", (4, 8, 4, 2, 3)), ("scan_own", (4, 16, 3, 2, 2)), ("scan_run", (8, 8, 3, 2, 2)), ("scan_run", (4, 8, 4, 2, 3))]
ONE = [("v7", (256, 24)), ("v7_warps_any", (256, 24)), ("v7_warps_256", (256, 24)), ("v7_bulk", (256, 24)), ("v7_bulk", (128, 20)), ("v7_bulk2", (256, 16)), ("v7_bulk", (256, 48))]
def wide_rows(dt):
    ring = [("v6_bulk", (8, 2048, 2, 2, 3)), ("v6_bulk", (4, 2048, 2, 4, 3)), ("v6_bulk", (4, 2048, 2, 3, 4)), ("v6_bulk", (8, 1024, 0, 2, 3))]
    return [("v6", (4, 1024, 0) if dt == torch.bfloat16 else (8, 2048, 2)), ("v6_runs_any", (8, 2048, 2)), ("v6_runs_256", (8, 2048, 2))] + ring
def cuts(m, e): return torch.cat([torch.zeros(1, device="cuda", dtype=torch.int64), torch.randint(0, m + 1, (e - 1,), device="cuda").sort().values, torch.full((1,), m, device="cuda")])
def scans(dt, reverse):
    x = torch.randn(4096, 65536, device="cuda", dtype=dt)
    return f"scan{'_backward' * reverse} {dt}", lambda s, c: scan(s, x, c, reverse), HALF if dt == torch.bfloat16 else SINGLE, x, 1.0, 8e-3 if dt == torch.bfloat16 else 1e-4
def one():
    x, o = torch.randn(67108864, 1, device="cuda"), cuts(67108864, 1 << 20)
    return "N1", lambda s, c: numbers(s, x, o, c), ONE, x, 0.5 + (12 / 2) * 2**20 / 2**28, 1e-5
def many(dt, half):
    x, o = torch.randn(1 << 20, 128, device="cuda", dtype=dt), cuts(1 << 20, 16384)
    if half: o = torch.cat([o[:1], o[1:].clamp_min(1 << 19)])
    return f"N128 {dt} half={half}", lambda s, c: runs(s, x, o, c), wide_rows(dt), x, 0.5 + 0.5 * 16384 / 2**20, 8e-3 if dt == torch.bfloat16 else 1e-5
BF, FL = torch.bfloat16, torch.float32
FAMILIES = {"scan": [lambda: scans(BF, True), lambda: scans(BF, False), lambda: scans(FL, True), lambda: scans(FL, False)], "one": [one], "many": [lambda: many(FL, False), lambda: many(BF, False), lambda: many(FL, True)]}
LISTS = {"scan": HALF[1:] + SINGLE[1:], "one": ONE[1:], "many": wide_rows(FL)[1:]}  # the present kernel as it is picked is known to run
def attempt(family, name, config):  # in a process of its own: compiles, runs once in each case that has it, ends with 0 where nothing went wrong
    for make in FAMILIES[family]:
        torch.manual_seed(0); title, call, variants, *_ = make()
        if (name, config) in variants: call(name, config); torch.cuda.synchronize()
        del call
def tried(what):
    family, name, config = what
    for once in (1, 2):
        try: done = subprocess.run([sys.executable, __file__, "try", family, name, repr(config)], capture_output=True, text=True, timeout=25)
        except subprocess.TimeoutExpired: return what, "no end in 25 s"
        if not done.returncode: return what, None
        if "out of memory" not in done.stderr: break
    return what, next((l for l in reversed(done.stderr.splitlines()) if "rror" in l), done.stderr[-200:])[:200]
def case(name, call, variants, x, factor, limit):
    """`factor`: of a copy of x, what moves the same bytes."""
    todo, ref = {}, None
    for s, c in variants:
        if (s, c) in WRONG: continue
        try:
            out = call(s, c); torch.cuda.synchronize()
        except Exception as e: print(name, s, c, type(e).__name__, str(e)[:200], flush=True); continue
        if ref is None: ref = out
        elif not torch.equal(out, ref):
            off = float((out.float() - ref.float()).abs().max() / ref.float().abs().max())
            print(name, s, c, "off" if not off <= limit else "differs", f"{off:.1e}", flush=True)
        del out
        todo[f"{s}{c}"] = lambda s=s, c=c: call(s, c)
    half = x.flatten()[: int(x.numel() * factor)]; to = torch.empty_like(half)
    todo["copy"] = lambda: to.copy_(half)
    made = timing.compare(todo, torch.device("cuda", 0), budget_ms=BUDGET / len(todo))
    cp = made.timings["copy"].us
    print(name, "copy", f"{cp:.1f}", {n: f"{t.us:.1f} ({cp / t.us:.3f})" for n, t in sorted(made.timings.items(), key=lambda i: i[1].us)}, flush=True)
if TRIED: attempt(sys.argv[2], sys.argv[3], eval(sys.argv[4])); sys.exit()
t0 = time.time(); WRONG = set()
with ThreadPoolExecutor(13) as pool:
    for (family, name, config), wrong in pool.map(tried, dict.fromkeys((f, *v) for f, vs in LISTS.items() for v in vs)):
        if wrong: WRONG.add((name, config)); print("left out", family, name, config, wrong, flush=True)
print("tried", f"{time.time() - t0:.0f} s", flush=True)
for family, makes in FAMILIES.items():
    for make in makes:
        try: torch.manual_seed(0); case(*make())
        except Exception as e: print(family, type(e).__name__, str(e)[:200], flush=True)
print("all", f"{time.time() - t0:.0f} s", flush=True)
