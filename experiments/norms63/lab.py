"""norms63. usage: PYTHONPATH=src python3 .gpu/norms63/lab.py [seconds, 45]

Read in the machine code, and what each is predicted to win (H200, two numbers: bytes at 4.2 TB/s, operations):
G grad_norm bf16, 249 MB, 59 us of reads: "the next chunk looked up while they are on their way" is not what runs: the look-ups have the same address in all lanes, so they go to uniform registers,
  R2UR waits for each where it stands, two latencies one after another, behind the first vector's sum. sq_l: the next 32 chunks of a block are looked up at once, a lane each. 69.3 -> 66.
  sq_l6: the same, six blocks a multiprocessor by __launch_bounds__; sq_d: the next chunk's data asked for before this one's is added, four blocks.
D dropout_add_norm backward: of a Philox round's 64-bit product ptxas adds a zero to the high half (52 of 724 instructions), `word >= threshold` are two comparisons an element, the counter a signed
  division: 36 instructions an element, the pipe of integers 1.1 of 2.5 us a turn with two warps a scheduler. v3_w: mul.wide, one comparison, a shift: 1163 -> 997 a row of 1024, 724 -> 654 of 4096.
  8192 x 1024 33.2 -> 32; 16384 x 4096 layer 192 -> 183, rms 171 -> 167; 32768 x 768 105.4 -> 103.  v3_u: the seed by redux.sync into uniform registers too.
L layernorm backward: FULL (no branch a vector: 913 -> 843 instructions, 445 -> 411) and m: the two divisions a thread and row by three multiply-adds (-20, and ~150 cycles of latency after the barrier).
  8192 x 8192 v6 110.5 -> 107.5 and v8 110.3 -> 108; 2048 x 65536 v8 213.8 -> 209; w: plain stores in place of evict-first: even.
Q rmsnorm_quantize 16384 x 8192: the weight is asked for when the row's sum is known; a: before it (61 -> 64 registers, still four blocks), n: x does not enter L1, which leaves the weight there.
  103.8 -> 102.5.
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
from rooftile.ops.quantize import fused_cuda_kernels as fused
S = {p.stem: Source(p) for p in sorted(H.glob("*.cu"))}
# main file: where its launcher looks `launch` up, what becomes of the instance
PLACE = {"v3": (sum_pipeline, sum_pipeline.V3), "ln6": (layernorm, layernorm.V6), "ln8": (layernorm, layernorm.V8), "sq": (adamw, adamw.N2), "q": (fused, fused.V4)}

def other(kind, instance):
    if kind.startswith("v3"): return instance.replace("Dropped", "Drawn")
    if kind.startswith("ln8_f"): return instance.replace("64, 3, 1>", "64, 3, 6>").replace("128, 3, 1>", "128, 3, 3>")[:-1] + ", true>"  # as many blocks as now fit by their registers
    if kind.startswith("ln6_f"): return instance[:-1] + ", true>"
    return instance

def none(kind, op, kernel, cfg, call):
    """Without the launch that adds the partial rows: what it costs."""
    cuda_rows.launch = lambda *a, **k: None
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
def squares(v, t, p): return {"vecs": v, "threads": t, "per": p}
G6, G5, G4, G8, G12 = squares(4, 256, 6), squares(4, 256, 5), squares(4, 256, 4), squares(2, 256, 8), squares(4, 128, 12)
norm = OPS["grad_norm"].spec
GPT2 = {c.dtype: c for c in norm.cases if "bench" in c.use}
GN = of("grad_norm", "cuda.v5_norm_vector", "main", cfgs=(G6, G8)) + of("grad_norm", "cuda.v5_norm_vector", "sq_l", cfgs=(G5, G4, G8)) + of("grad_norm", "cuda.v5_norm_vector", "sq_l6", cfgs=(G6, G12)) + \
    of("grad_norm", "cuda.v5_norm_vector", "sq_d", cfgs=(G4, squares(2, 256, 6)))
d = "dropout_add_norm_backward"
DN = of(d, "triton", "main") + of(d, "cuda.v3_pipeline", "main", "v3_w", "v3_u") + [("v3_pipeline v3_w none", functools.partial(none, "v3_w", d, "cuda.v3_pipeline", None))]
l = "layernorm_backward"
SIX, EIGHT = of(l, "cuda.v6_pipeline", "main", "ln6_f", "ln6_fm", "ln6_m"), of(l, "cuda.v8_exchange", "main", "ln8_f", "ln8_fm", "ln8_fmw", "ln8_w")
TOKEN = [c for c in OPS["rmsnorm_quantize"].spec.cases if "bench" in c.use and c.dims["M"] == 16384 and c.dims["N"] == 8192]
QN = of("rmsnorm_quantize", "cuda.v4_fused_rows", "main", "q_a", "q_n", "q_an")
def case(m, n, p): return Case({"M": m, "N": n}, BF, p)
CASES = [  # name, operator, case, versions
    ("grad_norm bf16", "grad_norm", GPT2[BF], GN),
    ("grad_norm f32", "grad_norm", GPT2[torch.float32], GN),
    ("dropout 8192x1024 layer", d, case(8192, 1024, {**DR, "norm": "layer"}), DN),
    ("dropout 16384x4096 layer", d, case(16384, 4096, {**DR, "norm": "layer"}), DN),
    ("dropout 16384x4096 rms", d, case(16384, 4096, {**DR, "norm": "rms", "affine": "weight"}), DN),
    ("dropout 32768x768 layer f32", d, case(32768, 768, {**DR, "norm": "layer", "affine": "float32"}), DN),
    ("layernorm 8192x8192", l, case(8192, 8192, E5), SIX + EIGHT),
    ("layernorm 2048x65536", l, case(2048, 65536, E5), EIGHT),
    ("layernorm 4096x16384", l, case(4096, 16384, E5), EIGHT),
    ("layernorm 16384x4096", l, case(16384, 4096, E5), SIX),
    ("layernorm 32768x768 f32", l, case(32768, 768, {**E5, "affine": "float32"}), SIX),
    *((f"rmsnorm_quantize block_n={c.params['block_n']}", "rmsnorm_quantize", c, QN) for c in TOKEN),
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
