"""rows64: add_rows of a753345d beside main's before it, over all who add partial rows. usage: PYTHONPATH=src python3 .gpu/rows64/lab.py [seconds, 70]
new: as it stands (8 lanes across, up to 32 by the number of blocks); old: main's; a8, a16, a32: so many lanes across. Predicted: 0.2 to 1.4 us less of each; 65536 columns even."""
import functools, multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import CTYPE, launch as REAL, recording
from rooftile.cuda.source import Source
import rooftile, rooftile.ops  # noqa
from rooftile.ops._shared import cuda_rows
from rooftile.ops._shared.launch import cdiv, power_of_2
OLD = Source(H / "old.cu")
NEW = cuda_rows.add_rows

def old(partial, *sums):
    n, p = partial.shape[-1], partial.shape[:-1].numel() // len(sums)
    columns = 4 if n % 4 == 0 and len(sums) * n >= 1 << 14 else 1
    block = 32 * min(32, max(8, power_of_2(cdiv(p, 8))))
    if len(sums) == 3:
        return REAL(OLD, f"add_three<{', '.join(CTYPE[t.dtype] for t in sums)}, {columns}>", (cdiv(n, 32 * columns), 3), block, *sums, partial, p, n)
    half, halves = (0, 1) if len(sums) == 1 else (0 if sums[0].numel() else 1, sum(bool(s.numel()) for s in sums))
    columns = 4 if n % 4 == 0 and n * halves >= 1 << 14 else 1
    REAL(OLD, f"add_rows<{CTYPE[sums[0].dtype]}, {CTYPE[sums[-1].dtype]}, {columns}>", (cdiv(n, 32 * columns), halves), block, sums[0], sums[-1], partial, p, n, half)

def across(a, partial, *sums):
    p, n, wanted = partial.shape[:-1].numel() // len(sums), partial.shape[-1], [i for i, s in enumerate(sums) if s.numel()]
    columns, to = 4 if n % 4 == 0 else 1, (*sums, sums[-1], sums[-1])[:3]
    REAL(cuda_rows.ADD_ROWS, f"add_rows<{', '.join(CTYPE[t.dtype] for t in to)}, {columns}, {a}>", (cdiv(n, a * columns), len(wanted)), 256, *to, partial, p, n, wanted[0])

HOW = {"new": NEW, "old": old, **{f"a{a}": functools.partial(across, a) for a in (8, 16, 32)}}
HOLD = [m for n, m in list(sys.modules.items()) if n.startswith("rooftile") and getattr(m, "add_rows", None) is NEW]

def variant(how, op, kernel, call):
    k = OPS[op].kernel(kernel)
    run = k.bound(k.heuristic(call)) if k.configs else k.bound(None)
    for m in HOLD: m.add_rows = HOW[how]
    try: return run(*call.values())
    finally:
        for m in HOLD: m.add_rows = NEW

BF = torch.bfloat16
E5, E6, DR = {"eps": 1e-5}, {"eps": 1e-6}, {"p": 0.1, "eps": 1e-5}
F32 = {**E5, "affine": "float32"}
d, al, l, r, bm, em = (f"{x}_backward" for x in ("dropout_add_norm", "add_layernorm", "layernorm", "rmsnorm", "bias_mask_scale_add", "embedding"))
V3, V6, V8 = "cuda.v3_pipeline", "cuda.v6_pipeline", "cuda.v8_exchange"
def case(m, n, p): return Case({"M": m, "N": n}, BF, p)
CASES = [  # operator, kernel, case
    (l, V8, case(2048, 65536, E5)), (r, V8, case(2048, 65536, E6)), (l, V8, case(4096, 16384, E5)),
    (d, V3, case(8192, 1024, {**DR, "norm": "layer"})), (d, V3, case(16384, 4096, {**DR, "norm": "rms", "affine": "weight"})),
    (al, V3, case(32768, 768, {**F32, "stream": "io", "lacks": "f32"})), (al, V3, case(16384, 4096, E5)),
    (l, V6, case(8192, 8192, E5)), (l, V6, case(32768, 768, F32)), (l, V8, case(64, 1024, E5)), (l, V8, case(64, 8192, E5)), (l, V6, case(16384, 2048, E5)),
    (r, V6, case(16384, 4096, E6)), (r, V6, case(32768, 768, {**E6, "affine": "float32"})), (r, V8, case(64, 8192, E6)),
    (bm, V3, case(32768, 768, {"scale": 0.5, "affine": "float32"})), (bm, V3, case(4096, 4096, {"scale": 0.5})),
    (em, "cuda.v4_shares", Case({"M": 32768, "V": 256, "N": 768}, BF, {"padding_idx": -1})), (em, "cuda.v4_shares", Case({"M": 32768, "V": 1, "N": 768}, BF, {"padding_idx": -1})),
]

def compile_one(job):
    path, instance = job
    try: compiler.compiled(Source(Path(path)), instance, "sm_90a")
    except Exception as e: return f"{path} {instance} {type(e).__name__} {str(e)[:150]}"

def flat(x): return [t.float() for t in (x if isinstance(x, tuple) else (x,)) if t is not None and t.numel()]
def near(got, want): return all(bool(((a - b).abs() <= b.abs() / 64 + (1e-2 if a.dim() > 1 else 4e-3 * float(b.abs().max()))).all()) for a, b in zip(flat(got), flat(want)))

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 else 70.0, time.time()
    device = torch.device("cuda", 0)
    clock = lambda: time.time() - began
    names = list(HOW)
    with multiprocessing.get_context("spawn").Pool(14) as pool, torch.no_grad():
        jobs = {}
        for op, kernel, c in CASES:
            call = OPS[op].spec.draw(Case({**c.dims, "M": min(2048, c.dims["M"])}, c.dtype, c.params), 0, device)
            with recording() as seen:
                for how in names: variant(how, op, kernel, call)
            jobs |= {(str(x.source.path), x.instance): None for x in seen}
        for x in pool.imap_unordered(compile_one, list(jobs)):
            if x: print("compile", x, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    for op, kernel, c in CASES:
        title = f"{op} {c.name if hasattr(c, 'name') else c.dims}"
        if clock() > seconds - 3: print("late", title); continue
        with torch.no_grad():
            call = OPS[op].spec.draw(c, 0, device)
            runs, right = {}, None
            for how in names:
                bound = functools.partial(variant, how, op, kernel, call)
                try: got = bound(); torch.cuda.synchronize()
                except Exception as e: print(title, how, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                if right is None: right = got
                if not near(got, right): print(title, how, "WRONG", flush=True); continue
                runs[how] = bound
            t = timing.compare(runs, device, budget_ms=60, rounds=60)
        print(f"{title[:60]:60} noise {t.noise:.3f}", " ".join(f"{k} {x.us:.2f}" for k, x in t.timings.items()), f"at {clock():.0f} s", flush=True)
        del runs, call, right
if __name__ == "__main__": main()
