"""norms63, third. usage: PYTHONPATH=src python3 .gpu/norms63/lab3.py [seconds, 45]

add_rows beyond an empty launch in its place: 2.1 us of dropout 8192 x 1024 (1 MB), 3 of 32768 x 768 (0.8 MB), 3 of 16384 x 4096 (8.6 MB), 4 of layernorm 2048 x 65536 (17 MB at 4.2 TB/s: its bytes).
Of a megabyte the bytes are 0.2 us: it is a chain: code that no cache holds, one load, a barrier, five shuffles in a loop, 32 warps' single stores, the end.
add_xA: A lanes of 4 columns each across, a warp's other lanes and the block's warps down, all asked for at once: sums of two or three shuffles, one shared read of 8, neighbouring stores; 256 threads a block,
which may stand by beside the kernel before where 1024 have no place. x8w: its code runs once on nothing while it stands by; x8s: 16 warps; x8t: 4 rows at once. add_0: no loads, add_1: no sums over warps
(both wrong, to see what of it is what). Predicted: x8 0.7 us less where rows are few and short, even at 65536. v3_om: only the mean is asked for where it is written; v3_ol: both, of LayerNorm alone.
"""
import functools, multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import launch as REAL, recording
from rooftile.cuda.source import Source
import rooftile.ops  # noqa
import rooftile
from rooftile.ops._shared import cuda_rows, sum_pipeline
from rooftile.ops.adamw import cuda_kernels as adamw
from rooftile.ops.layernorm import cuda_kernels as layernorm
from rooftile.ops.rmsnorm import cuda_kernels as rmsnorm
from rooftile.ops.quantize import fused_cuda_kernels as fused
S = {p.stem: Source(p) for p in sorted(H.glob("*.cu"))}
# main file: where its launcher looks `launch` up, what becomes of the instance
PLACE = {"v3": (sum_pipeline, sum_pipeline.V3), "ln6": (layernorm, layernorm.V6), "rms6": (rmsnorm, rmsnorm.V6), "ln8": (layernorm, layernorm.V8), "sq": (adamw, adamw.N2), "q": (fused, fused.V4)}

def other(kind, instance):
    if kind.startswith("v3_w"): return instance.replace("Dropped", "Drawn")
    if kind.startswith("ln8_f"): return instance.replace("64, 3, 1>", "64, 3, 6>").replace("128, 3, 1>", "128, 3, 3>")[:-1] + ", true>"  # as many blocks as now fit by their registers
    if kind.startswith(("ln6_f", "rms6_f")): return instance[:-1] + ", true>"
    return instance

def adding(add, kind, op, kernel, cfg, call):
    """Its partial rows added by another, or by nobody."""
    def go(s, instance, grid, block, *a, **k):
        if add == "none": return None
        if add == "main": return REAL(s, instance, grid, block, *a, **k)
        if "_x" in add:
            across, block = int(add[5]), 512 if add.endswith("s") else 256
            grid = (-(-a[4] // (4 * across)), grid[1])
        return REAL(S[add], instance, grid, block, *a, **k)
    cuda_rows.launch = go
    try: return variant(kind, op, kernel, cfg, call)
    finally: cuda_rows.launch = REAL

def variant(kind, op, kernel, cfg, call):
    k = OPS[op].kernel(kernel)
    run = k.bound(cfg or k.heuristic(call)) if k.configs or cfg else k.bound(None)
    if kind == "main": return run(*call.values())
    module, source = PLACE[kind.split("_")[0]]
    def go(s, instance, *a, **kw): return REAL(S[kind], other(kind, instance), *a, **kw) if s is source else REAL(s, instance, *a, **kw)
    module.launch = go
    try: return run(*call.values())
    finally: module.launch = REAL

BF = torch.bfloat16
E5, DR = {"eps": 1e-5}, {"p": 0.1, "eps": 1e-5}
def of(op, kernel, *kinds, cfgs=(None,)): return [(f"{kernel.split('.')[-1]} {k}{' ' + ','.join(map(str, c.values())) if c else ''}", functools.partial(variant, k, op, kernel, c)) for k in kinds for c in cfgs]
def added(op, kernel, kind, *adds): return [(f"{kernel.split('.')[-1]} {kind} {a}" + (" none" if a in ("add_e", "add_0", "add_1") else ""), functools.partial(adding, a, kind, op, kernel, None)) for a in adds]
def case(m, n, p): return Case({"M": m, "N": n}, BF, p)
d, al, ar, l, r = (f"{x}_backward" for x in ("dropout_add_norm", "add_layernorm", "add_rmsnorm", "layernorm", "rmsnorm"))
V3, V6 = "cuda.v3_pipeline", "cuda.v6_pipeline"
ADDS = ("main", "none", "add_e", "add_0", "add_1", "add_x2", "add_x4", "add_x8", "add_x8w", "add_x8s", "add_x8t")
F32, E6 = {**E5, "affine": "float32"}, {"eps": 1e-6}
CASES = [  # name, operator, case, versions
    ("dropout 8192x1024 layer", d, case(8192, 1024, {**DR, "norm": "layer"}), of(d, "triton", "main") + of(d, V3, "main") + added(d, V3, "v3_ol", *ADDS)),
    ("layernorm 32768x768 f32", l, case(32768, 768, F32), added(l, V6, "ln6_fo", *ADDS)),
    ("layernorm 16384x2048", l, case(16384, 2048, E5), added(l, V6, "ln6_fo", *ADDS)),
    ("rmsnorm 16384x4096", r, case(16384, 4096, E6), added(r, V6, "main", *ADDS)),
    ("layernorm 8192x8192", l, case(8192, 8192, E5), added(l, V6, "ln6_fo", *ADDS)),
    ("add_layernorm 16384x4096", al, case(16384, 4096, E5), of(al, V3, "main", "v3_o", "v3_ol", "v3_om") + added(al, V3, "v3_ol", *ADDS)),
    ("layernorm 64x1024", l, case(64, 1024, E5), of(l, "triton", "main") + of(l, "cuda.v8_exchange", "main") + added(l, V6, "ln6_fo", *ADDS)),
    ("layernorm 64x8192", l, case(64, 8192, E5), of(l, "triton", "main") + added(l, "cuda.v8_exchange", "main", *ADDS)),
    ("dropout 16384x4096 layer", d, case(16384, 4096, {**DR, "norm": "layer"}), of(d, V3, "v3_o", "v3_ol", "v3_om")),
    ("dropout 16384x4096 rms", d, case(16384, 4096, {**DR, "norm": "rms", "affine": "weight"}), of(d, V3, "main", "v3_ol", "v3_om")),
    ("dropout 16384x2048 layer", d, case(16384, 2048, {**DR, "norm": "layer"}), of(d, V3, "main", "v3_ol", "v3_om")),
    ("layernorm 2048x65536", l, case(2048, 65536, E5), added(l, "cuda.v8_exchange", "main", *ADDS)),
]

def compile_one(job):
    path, instance = job
    try: compiler.compiled(Source(Path(path)), instance, "sm_90a")
    except Exception as e: return f"{path} {instance} {type(e).__name__} {str(e)[:150]}"

def tuple_of(x): return tuple(t.view(torch.uint8) if t is not None and t.dtype == torch.float8_e4m3fn else t for t in (x if isinstance(x, tuple) else (x,)))
def far(got, want):
    out = []
    for i, (a, b) in enumerate(zip(tuple_of(got), tuple_of(want))):
        if a is None or b is None or not a.numel() or torch.equal(a, b): continue
        a, b = a.float(), b.float()
        small = 1e-2 if a.dim() > 1 else 4e-3 * float(b.abs().max())
        if not bool(((a - b).abs() <= b.abs() / 64 + small).all()): out.append((i, float((a - b).abs().max())))
    return out
def same(got, want): return all(torch.equal(a, b) for a, b in zip(tuple_of(got), tuple_of(want)) if a is not None)

def draw(op, c, device, m=None):
    if m and "M" in c.dims: c = Case({**c.dims, "M": m}, c.dtype, c.params)
    return OPS[op].spec.draw(c, 0, device)

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 else 45.0, time.time()
    device = torch.device("cuda", 0)
    clock = lambda: time.time() - began
    with multiprocessing.get_context("spawn").Pool(14) as pool, torch.no_grad():
        jobs = {}
        for title, op, c, versions in CASES:
            call = draw(op, c, device, 1024)
            with recording() as seen:
                for name, run in versions:
                    if "triton" not in name: run(call=call)
            jobs |= {(str(x.source.path), x.instance): None for x in seen}
        for r in pool.imap_unordered(compile_one, list(jobs)):
            if r: print("compile", r, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    for title, op, c, versions in CASES:
        if clock() > seconds - 3: print("late", title); continue
        with torch.no_grad():
            call = draw(op, c, device)
            moved, runs, right = OPS[op].spec.floor_bytes(call), {}, None
            for name, run in versions:
                bound = functools.partial(run, call=call)
                try: got = bound(); torch.cuda.synchronize()
                except Exception as e: print(title, name, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                if right is None: right = got
                wrong = far(got, right) if 'none' not in name else None
                if wrong: print(title, name, "WRONG", wrong, flush=True); continue
                if 'none' not in name and not same(got, bound()): print(title, name, "WRONG: two runs differ", flush=True); continue
                runs[name + ("" if same(got, right) else " ~")] = bound
            source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=device).random_()
            target = torch.empty_like(source)
            runs["copy"] = lambda: target.copy_(source)
            compared = timing.compare(runs, device, budget_ms=40, rounds=60 if moved < 1 << 27 else 30)
        cp = compared.timings["copy"].us
        print(f"{title}: copy {cp:.2f} noise {compared.noise:.3f} at {clock():.0f} s", flush=True)
        line = [f"{t.us:7.2f} {cp / t.us:.3f} {k}" for k, t in sorted(compared.timings.items(), key=lambda i: i[1].us) if k != "copy"]
        for i in range(0, len(line), 4): print(" ; ".join(f"{x:<38}" for x in line[i:i + 4]), flush=True)
        del runs, call, right, source, target
if __name__ == "__main__": main()
