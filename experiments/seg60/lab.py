"""scan backward in bf16, segment_sum of N=1 and N=128: present kernels against variants. usage: PYTHONPATH=src python3 .gpu/seg60/lab.py [ms a case, 5000]"""
import sys, time, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.compile import compiled
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, power_of_2, processors, rows
from rooftile.ops.scan import cuda_kernels as C
from rooftile.ops.segment_sum import runs_kernels as R, warps_kernels as W
from rooftile.ops.segment_sum.cuda_kernels import wide
H, O = Path(".gpu/seg60").resolve(), Path("src/rooftile/ops").resolve()
BUDGET = float(sys.argv[1]) if len(sys.argv) > 1 else 5000.0
PRESENT = {"v5": O / "scan/cuda/v5_pipeline.cu", "v6": O / "segment_sum/cuda/v6_runs.cu", "v7": O / "segment_sum/cuda/v7_warps.cu"}
S = {n: Source(PRESENT.get(n, H / f"{n}.cu")) for n in ("v5", "scan_own", "scan_run", "v6", "v6_runs_any", "v6_runs_first", "v6_runs_256", "v6_bulk", "v7", "v7_warps_any", "v7_warps_first", "v7_warps_256", "v7_bulk", "v7_bulk2")}
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
B = "__nv_bfloat16"
SCAN = [("v5", (8, 8, 6, 3, 2)), ("scan_own", (8, 8, 6, 3, 2)), ("scan_run", (8, 8, 6, 3, 2)), ("scan_run", (16, 8, 3, 2, 2)), ("scan_run", (8, 8, 4, 2, 3)), ("scan_run", (8, 16, 3, 2, 2)), ("v5", (8, 8, 4, 2, 3)), ("v5", (8, 16, 3, 2, 2))]
ONE = [("v7", (256, 24)), ("v7_warps_any", (256, 24)), ("v7_warps_256", (256, 24)), ("v7_bulk", (256, 24)), ("v7_bulk", (128, 20)), ("v7_bulk2", (256, 16)), ("v7", (128, 48)), ("v7_bulk", (256, 48))]
def wide_rows(dt):
    ring = [("v6_bulk", (8, 2048, 2, 2, 3)), ("v6_bulk", (4, 2048, 2, 4, 3)), ("v6_bulk", (4, 2048, 2, 3, 4)), ("v6_bulk", (8, 1024, 0, 2, 3))]
    return [("v6", (4, 1024, 0) if dt == torch.bfloat16 else (8, 2048, 2)), ("v6_runs_first", (8, 2048, 2)), ("v6_runs_any", (8, 2048, 2)), ("v6_runs_256", (8, 2048, 2))] + ring
def warm():  # compile what the cases ask for, side by side
    todo = []
    for s, (v, w, st, lead, per) in SCAN: v = v // 2; st = max(2, min(st, C.SHARED // per // (512 * v * w))); todo += [(s, f"tiles<{B}, float, {v}, {w}, {st}, {min(lead, st - 1)}, {per}, false, {r}>") for r in ("true", "false")]
    for s, (b, _) in ONE: todo += [(s, f"chunks<float, long long, {b}>"), (s, "join<float, long long>")]
    for dt, t, wd, ln in ((torch.float32, "float", 4, 32), (torch.bfloat16, B, 8, 16)):
        for s, (r, _, _, *ring) in wide_rows(dt): todo += [(s, f"runs<{t}, long long, {wd}, {ln}, {r}{''.join(f', {i}' for i in ring)}>"), (s, f"join<{t}, long long, 4>")]
    def one(a):
        try: compiled(S[a[0]], a[1], "sm_90a")
        except Exception as e: print(*a, type(e).__name__, str(e)[:200], flush=True)
    with ThreadPoolExecutor(12) as pool: list(pool.map(one, dict.fromkeys(todo)))
def case(name, call, variants, x, factor, limit):
    """`factor`: of a copy of x, what moves the same bytes."""
    todo, ref = {}, None
    for s, c in variants:
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
t0 = time.time(); warm(); print("compiled", f"{time.time() - t0:.0f} s", flush=True)
def cuts(m, e): return torch.cat([torch.zeros(1, device="cuda", dtype=torch.int64), torch.randint(0, m + 1, (e - 1,), device="cuda").sort().values, torch.full((1,), m, device="cuda")])
torch.manual_seed(0)
try:
    x = torch.randn(4096, 65536, device="cuda", dtype=torch.bfloat16)
    case("scan_backward", lambda s, c: scan(s, x, c), SCAN, x, 1.0, 8e-3)
    case("scan", lambda s, c: scan(s, x, c, False), SCAN[:3], x, 1.0, 8e-3)
except Exception as e: print("scan", type(e).__name__, str(e)[:200], flush=True)
try:
    x = torch.randn(67108864, 1, device="cuda"); o = cuts(67108864, 1 << 20)
    case("N1", lambda s, c: numbers(s, x, o, c), ONE, x, 0.5 + (12 / 2) * 2**20 / 2**28, 1e-5)
except Exception as e: print("N1", type(e).__name__, str(e)[:200], flush=True)
for dt, half in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, True)):
    try:
        x = torch.randn(1 << 20, 128, device="cuda", dtype=dt); o = cuts(1 << 20, 16384)
        if half: o = torch.cat([o[:1], o[1:].clamp_min(1 << 19)])
        case(f"N128 {dt} half={half}", lambda s, c: runs(s, x, o, c), wide_rows(dt), x, 0.5 + 0.5 * 16384 / 2**20, 8e-3 if dt == torch.bfloat16 else 1e-5)
    except Exception as e: print("N128", type(e).__name__, str(e)[:200], flush=True)
