"""norms63, second. usage: PYTHONPATH=src python3 .gpu/norms63/lab2.py [seconds, 45]

Read in the machine code: v3_pipeline "asks for a row's statistics a row ahead", and of rows wider than a warp ptxas asks at the end of the row before (instruction 625 of 724, used at 723) and
waits: an .nc load may pass barriers and stores, and it is sunk. A plain ld.global stays (o). The same befell LayerNorm's v6_pipeline without its two divisions (lab.py: m, fm 130 and 142 us), whose calls had held it.
Predicted: dropout 16384 x 4096 layer 185 (w) -> 176 (wo), rms 172 -> 168; add_layernorm 16384 x 4096 139 -> 133, add_rmsnorm 135 -> 132; rows of a warp (1024, 768) even.
LayerNorm 8192 x 8192 v6: f 107.5 -> fmo 105.5; 16384 x 4096 f 105 -> fmo 103.5; RMSNorm the same: 105 -> 103, 103.6 -> 102.
add_e: the launch that adds partial rows does nothing, add_n: it is not launched early; none: it is not there: what of its 3.3 us is what.
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
    cuda_rows.launch = lambda s, *a, **k: None if add == "none" else REAL(S[add] if s is cuda_rows.ADD_ROWS else s, *a, **k)
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
def added(op, kernel, kind, *adds): return [(f"{kernel.split('.')[-1]} {kind} {a}" + (" none" if a == "add_e" else ""), functools.partial(adding, a, kind, op, kernel, None)) for a in adds]
def case(m, n, p): return Case({"M": m, "N": n}, BF, p)
d, al, ar, l, r = (f"{x}_backward" for x in ("dropout_add_norm", "add_layernorm", "add_rmsnorm", "layernorm", "rmsnorm"))
V3, V6 = "cuda.v3_pipeline", "cuda.v6_pipeline"
DN = of(d, "triton", "main") + of(d, V3, "main", "v3_w", "v3_o", "v3_wo") + added(d, V3, "v3_wo", "none", "add_e", "add_n")
def sums(op): return of(op, "triton", "main") + of(op, V3, "main", "v3_o") + added(op, V3, "v3_o", "none")
SIX = of(l, V6, "main", "ln6_f", "ln6_fo", "ln6_fmo") + added(l, V6, "ln6_fmo", "none", "add_e")
RSIX = of(r, V6, "main", "rms6_f", "rms6_fo", "rms6_fmo") + added(r, V6, "rms6_fmo", "none")
EIGHT = of(l, "cuda.v8_exchange", "main") + added(l, "cuda.v8_exchange", "main", "none", "add_e", "add_n")
F32, E6 = {**E5, "affine": "float32"}, {"eps": 1e-6}
CASES = [  # name, operator, case, versions
    ("dropout 8192x1024 layer", d, case(8192, 1024, {**DR, "norm": "layer"}), DN),
    ("dropout 16384x4096 layer", d, case(16384, 4096, {**DR, "norm": "layer"}), DN),
    ("dropout 16384x4096 rms", d, case(16384, 4096, {**DR, "norm": "rms", "affine": "weight"}), DN),
    ("dropout 32768x768 layer f32", d, case(32768, 768, {**DR, "norm": "layer", "affine": "float32"}), DN),
    ("dropout 16384x2048 layer", d, case(16384, 2048, {**DR, "norm": "layer"}), DN),
    ("add_layernorm 16384x4096", al, case(16384, 4096, E5), sums(al)),
    ("add_layernorm 32768x768 f32 lacks", al, case(32768, 768, {**F32, "stream": "io", "lacks": "f32"}), sums(al)),
    ("add_layernorm 32768x768 f32", al, case(32768, 768, F32), sums(al)),
    ("add_rmsnorm 16384x4096", ar, case(16384, 4096, E6), sums(ar)),
    ("add_rmsnorm 8192x8192", ar, case(8192, 8192, E6), sums(ar)),
    ("layernorm 8192x8192", l, case(8192, 8192, E5), SIX + of(l, "cuda.v8_exchange", "main")),
    ("layernorm 16384x4096", l, case(16384, 4096, E5), SIX),
    ("layernorm 32768x768 f32", l, case(32768, 768, F32), SIX),
    ("layernorm 16384x2048", l, case(16384, 2048, E5), SIX + of(l, "triton", "main")),
    ("rmsnorm 8192x8192", r, case(8192, 8192, E6), RSIX),
    ("rmsnorm 16384x4096", r, case(16384, 4096, E6), RSIX),
    ("rmsnorm 32768x768 f32", r, case(32768, 768, {**E6, "affine": "float32"}), RSIX),
    ("layernorm 2048x65536", l, case(2048, 65536, E5), EIGHT),
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
