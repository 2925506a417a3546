"""bias62: the gradient of bias_mask_scale_add at 32768 x 768, its forward at 64 x 4096, and add_rows, which every gradient of parameters ends with.
usage: PYTHONPATH=src python3 .gpu/bias62/lab.py [seconds, 60]

Two numbers: backward 5 bytes a bf16 element, 126 MB of 32768 x 768 (a copy of as many 36.8 us), and 3 operations an element; forward 7 bytes, 1.8 MB of 64 x 4096.
Seen in the machine code: add_rows says "8 of them asked for at once", but its unrolled loop is LDG, FADD, branch, LDG, ...: one row at a time, a wait for the L2 each. Of
1320 partial rows (v2: 10 blocks of 96 threads on 132 multiprocessors, 4 MB) a warp of 32 reads 41 one after another: 41 x 0.2 us = 8 us of the 46.6. Of the norms' 128 to 264
rows a warp reads 4 to 8 so. add_at.cu: the same, 8 asked for at once, the same order. add_new.cu: compact, W warps, AT at once, last sums by shuffles; warm: its code runs once on nothing
before it may begin, since a cold clock finds no code in the L2.
Predicted us of 32768 x 768: today 46.6; v2 with add_at 40.5, none (rows alone) 38; walk (a block's rows summed in it: 132 partial rows) with add_at 39.5; pipe (cp.async) 39;
pipe with new warm 38.5; ticket 38.5 (no launch, but a wait, an atomic, two barriers); bulk 38.5. Of 16384 x 14336: 294 today, pipe 288 (reads stay in the L2).
Forward 64 x 4096: triton 5.12, 512 columns a program 5.0, a compact kernel of 4 columns a thread 4.9. Norms: 0.5 us less each with add_at, 1 with new warm.
dropout_add_norm 8192 x 1024: 8 warps a multiprocessor are bound by their own latency; 9 rows a block (131 blocks of 63 rows) 31.5, 11 (125 of 66) 31.
"""
import contextlib, functools, multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import CTYPE, launch, recording
from rooftile.cuda.source import Source
import rooftile.ops  # noqa
import rooftile
from rooftile.ops._shared import cuda_rows, sum_pipeline
from rooftile.ops._shared.cuda_shares import evenly
from rooftile.ops._shared.launch import cdiv, resident
S = {n: Source(H / f"{n}.cu") for n in ("pipe", "walk", "bulk", "add_at", "add_new", "fwd")}
REAL, PARK = cuda_rows.launch, sum_pipeline.PARK

def adder(kind):
    """cuda_rows.launch as add_rows has it, of another add_rows: main, none, at, or new WARPS AT WARM."""
    def go(source, instance, grid, block, *a, **k):
        if source is not cuda_rows.ADD_ROWS or kind == "main": return REAL(source, instance, grid, block, *a, **k)
        if kind == "none": return None
        if kind == "at": return REAL(S["add_at"], instance, grid, block, *a, **k)
        warps, at, warm = kind
        return REAL(S["add_new"], f"{instance[:-1]}, {warps}, {at}, {'true' if warm else 'false'}>", grid, 32 * warps, *a, **k)
    return go

@contextlib.contextmanager
def adding(kind):
    cuda_rows.launch = adder(kind)
    try: yield
    finally: cuda_rows.launch = REAL

def tag(kind): return kind if isinstance(kind, str) else "new{},{}{}".format(*kind[:2], " warm" if kind[2] else "")

TICKETS = {}
def backward(name, cfg, add, dout, bias, mask, scale):
    """cfg: lanes at most, groups, rows, stages (pipe, bulk), blocks a multiprocessor the registers are for, blocks launched, policy."""
    m, n = dout.shape
    dx, dbias = torch.empty_like(dout), torch.empty_like(bias)
    mask = mask.view(torch.uint8)
    width, groups, r, stages, bound, per, policy = cfg
    vectors = cdiv(n * dout.itemsize, 16)
    strips = 1 if name == "bulk" else cdiv(vectors, width)
    lanes = cdiv(vectors, strips)
    threads = lanes * groups
    turns = cdiv(m, groups * r)
    blocks = evenly(turns, min(turns, max(1, resident(dout, per) // strips)))
    partial = dout.new_empty((blocks, n), dtype=torch.float32)
    t = CTYPE[dout.dtype]
    slot = 16 + 16 // dout.itemsize
    sums = threads * 4 * 16 // dout.itemsize
    if name == "walk":
        launch(S["walk"], f"backward<{t}, {r}, {threads}, {bound}, {policy}>", (strips, blocks), (lanes, groups), dx, partial, dout, mask, m, n, scale, n, n, shared=sums)
    elif name == "bulk":
        launch(S["bulk"], f"backward<{t}, {r}, {stages}, {threads}, {bound}, {policy}>", blocks, (lanes, groups), dx, partial, dout, mask, m, n, scale, shared=max(sums, stages * r * threads * slot))
    else:
        ticket = name == "ticket"
        if dout.device not in TICKETS: TICKETS[dout.device] = torch.zeros(2, dtype=torch.int32, device=dout.device)
        launch(S["pipe"], f"backward<{t}, {CTYPE[bias.dtype]}, {r}, {stages}, {threads}, {bound}, {policy}, {'true' if ticket else 'false'}>", (strips, blocks), (lanes, groups), dx, partial,
               dout, mask, dbias, TICKETS[dout.device], m, n, scale, n, n, shared=max(sums, stages * r * threads * slot))
        if ticket: return dx, dbias
    with adding(add): cuda_rows.add_rows(partial, dbias)
    return dx, dbias

def today(add, cfg, dout, bias, mask, scale):
    k = OPS["bias_mask_scale_add_backward"].kernel("cuda.v2_vector")
    with adding(add): return k.bound(cfg or k.heuristic({"dout": dout, "bias": bias, "mask": mask, "scale": scale}))(dout, bias, mask, scale)

def forward(name, cfg, x, bias, mask, scale, residual):
    k = None if name == "fwd" else OPS["bias_mask_scale_add"].kernel(name)
    if k: return k.bound(cfg or k.heuristic({"x": x}))(x, bias, mask, scale, residual)
    width, threads = cfg
    m, n = x.shape
    out = torch.empty_like(x)
    launch(S["fwd"], f"forward<{CTYPE[x.dtype]}, {CTYPE[bias.dtype]}, {width}>", (cdiv(n, width * threads), m), threads, out, x, bias, mask.view(torch.uint8), residual, n, scale, n, n, n)
    return out

def other(op, kernel, cfg, add, call):
    sum_pipeline.PARK = 216 * 1024 if cfg and cfg["threads"] == 288 else PARK
    k = OPS[op].kernel(kernel)
    with adding(add): return k.bound(cfg or k.heuristic(call))(**call)

AT, W32, W16, W8 = "at", (32, 8, True), (16, 8, True), (8, 16, True)
def back(cases): return [(f"{n} {','.join(map(str, c))} {tag(a)}", functools.partial(backward, n, c, a)) for n, c, a in cases]
def tod(cases): return [(f"v2 {','.join(map(str, c.values())) if c else 'own'} {tag(a)}", functools.partial(today, a, c)) for c, a in cases]
V = lambda r, t, p: {"rows": r, "threads": t, "per": p}
P8 = (96, 8, 1, 4, 2, 1, 1)
NARROW = tod([(None, "main"), (None, AT), (None, W32), (None, "none"), (V(4, 256, 512), AT), (V(8, 256, 512), AT), (V(4, 256, 1536), AT)]) + back([
    ("walk", (96, 8, 4, 0, 1, 1, 0), AT), ("walk", (96, 8, 4, 0, 1, 1, 1), AT), ("walk", (96, 8, 4, 0, 1, 1, 1), "none"), ("walk", (96, 4, 4, 0, 2, 2, 1), AT), ("walk", (96, 10, 4, 0, 1, 1, 1), W32),
    ("walk", (96, 8, 2, 0, 2, 2, 1), W32), ("walk", (96, 5, 4, 0, 2, 2, 1), W32), ("walk", (96, 5, 2, 0, 3, 3, 1), W32),
    ("pipe", P8, AT), ("pipe", P8, "main"), ("pipe", P8, "none"), ("pipe", P8, W32), ("pipe", P8, (32, 8, False)), ("pipe", P8, W16), ("pipe", P8, W8),
    ("pipe", (96, 8, 1, 4, 1, 1, 0), W32), ("pipe", (96, 8, 1, 6, 2, 1, 1), W32), ("pipe", (96, 8, 1, 8, 2, 1, 1), W32), ("pipe", (96, 8, 2, 3, 1, 1, 1), W32), ("pipe", (96, 10, 1, 6, 1, 1, 1), W32),
    ("pipe", (96, 4, 1, 4, 2, 2, 1), W32), ("pipe", (96, 4, 2, 3, 2, 2, 1), W32), ("pipe", (96, 8, 1, 3, 2, 2, 1), W32), ("pipe", (96, 5, 1, 4, 3, 3, 1), W32),
    ("ticket", (96, 8, 1, 4, 1, 1, 1), "none"), ("ticket", (96, 8, 1, 6, 1, 1, 1), "none"),
    ("bulk", (96, 8, 1, 6, 2, 1, 1), W32), ("bulk", (96, 4, 2, 4, 2, 2, 1), W32), ("bulk", (96, 4, 1, 6, 2, 2, 1), W32)])
WIDE = tod([(None, "main"), (None, AT), (None, "none"), (V(4, 256, 2048), AT)]) + back([
    ("walk", (256, 1, 4, 0, 4, 4, 1), AT), ("walk", (256, 3, 4, 0, 1, 1, 1), AT), ("walk", (128, 6, 4, 0, 1, 1, 1), AT),
    ("pipe", (256, 1, 1, 4, 3, 3, 1), AT), ("pipe", (256, 3, 1, 4, 1, 1, 1), AT), ("pipe", (128, 6, 1, 4, 1, 1, 1), AT), ("pipe", (64, 12, 1, 4, 1, 1, 1), AT), ("pipe", (128, 6, 1, 6, 1, 1, 1), W32),
    ("pipe", (256, 3, 2, 3, 1, 1, 1), AT)])
SMALL = [(f"{n} {c and ','.join(map(str, c.values() if isinstance(c, dict) else c))}", functools.partial(forward, n, c)) for n, c in [
    ("triton", None), ("triton", {"rows": 1, "block": 512, "warps": 4}), ("triton", {"rows": 1, "block": 512, "warps": 2}), ("triton", {"rows": 1, "block": 1024, "warps": 8}), ("cuda.v2_vector", None),
    ("cuda.v2_vector", {"rows": 1, "threads": 256}), ("fwd", (8, 128)), ("fwd", (8, 256)), ("fwd", (4, 128)), ("fwd", (4, 256)), ("fwd", (2, 256))]]
def norm(op, kernel, cfgs, adds):
    return [(f"{kernel} {','.join(map(str, c.values())) if c else 'own'} {tag(a)}", functools.partial(other, op, kernel, c, a)) for c in cfgs for a in adds]
D = lambda v, t, s, r: {"vecs": v, "threads": t, "stages": s, "resident": r}
DROP = [D(4, 288, 3, 288), D(4, 288, 2, 288), D(4, 352, 2, 352), D(4, 384, 2, 384), D(4, 320, 3, 320), D(4, 128, 3, 256), D(4, 256, 2, 256)]
BF = torch.bfloat16
CASES = {  # name: operator, dims, params, versions, kind
    "N": ("bias_mask_scale_add_backward", {"M": 32768, "N": 768}, {"scale": 0.5, "affine": "float32"}, NARROW),
    "F": ("bias_mask_scale_add", {"M": 64, "N": 4096}, {"scale": 0.5}, SMALL),
    "W": ("bias_mask_scale_add_backward", {"M": 16384, "N": 14336}, {"scale": 0.5}, WIDE),
    "S": ("dropout_add_norm_backward", {"M": 8192, "N": 1024}, {"norm": "layer", "p": 0.1, "eps": 1e-5},
          norm("dropout_add_norm_backward", "cuda.v3_pipeline", [None], ["main", AT, W32, W16, W8, (32, 8, False), "none"]) + norm("dropout_add_norm_backward", "cuda.v3_pipeline", DROP, [W32])),
    "L": ("layernorm_backward", {"M": 32768, "N": 768}, {"eps": 1e-5, "affine": "float32"}, norm("layernorm_backward", "cuda.v6_pipeline", [None], ["main", AT, W32, W16, W8, "none"])),
    "R": ("rmsnorm_backward", {"M": 32768, "N": 768}, {"eps": 1e-5, "affine": "float32"}, norm("rmsnorm_backward", "cuda.v6_pipeline", [None], ["main", AT, W32, W16, W8, "none"])),
    "Y": ("layernorm_backward", {"M": 8192, "N": 8192}, {"eps": 1e-5}, norm("layernorm_backward", "cuda.v6_pipeline", [None], ["main", AT, W32, (32, 4, True), W16, "none"])),
    "B": ("bias_mask_scale_add_backward", {"M": 4096, "N": 4096}, {"scale": 0.5}, tod([(None, "main"), (None, AT)]) + back([("pipe", (128, 6, 1, 4, 1, 1, 1), W32), ("walk", (128, 4, 4, 0, 2, 2, 1), W32)])),
    "K": ("bias_mask_scale_add_backward", {"M": 1024, "N": 1024}, {"scale": 0.5}, tod([(None, "main"), (None, AT)]) + back([("pipe", (128, 6, 1, 4, 1, 1, 1), W32), ("walk", (128, 2, 4, 0, 2, 2, 1), W32)])),
}

def compile_one(job):
    path, instance = job
    try: compiler.compiled(Source(Path(path)), instance, "sm_90a")
    except Exception as e: return f"{path} {instance} {type(e).__name__} {str(e)[:150]}"
    return None

def bound(case, run, call):
    return (lambda: run(call=call)) if case in "SLRY" else (lambda: run(**call))

def far(got, want):
    """Results beyond rounding: rows a bf16 step, columns 1/256 of the largest."""
    got, want = (t if isinstance(t, tuple) else (t,) for t in (got, want))
    out = []
    for i, (a, b) in enumerate(zip(got, want)):
        if a is None or b is None or not a.numel(): continue
        a, b = a.float(), b.float()
        small = 8e-3 if a.dim() > 1 else 4e-3 * float(b.abs().max())
        if not bool(((a - b).abs() <= b.abs() / 64 + small).all()): out.append((i, float((a - b).abs().max())))
    return out

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, time.time()
    device = torch.device("cuda", 0)
    clock = lambda: time.time() - began
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        calls, jobs = {}, {}
        for c, (op, dims, params, versions) in CASES.items():
            small = {**dims, "M": 64 if c == "F" else 1024}
            call = OPS[op].spec.draw(Case(small, BF, params), 0, device)
            with recording() as seen:
                for name, run in versions:
                    if c == "F" and "triton" in name: continue
                    bound(c, run, call)()
            jobs |= {(str(l.source.path), l.instance): None for l in seen}
        done = pool.imap_unordered(compile_one, list(jobs))
        peer = torch.compile(OPS["bias_mask_scale_add"].spec.peer)
        f = OPS["bias_mask_scale_add"].spec.draw(Case({"M": 64, "N": 4096}, BF, {"scale": 0.5}), 0, device)
        try:
            with torch.no_grad(): peer(**f); torch.cuda.synchronize()
        except Exception as e: peer = None; print("torch.compile", str(e)[:150])
        for r in done:
            if r: print("compile", r, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    for c, (op, dims, params, versions) in CASES.items():
        if clock() > seconds - 4: print("late", c); continue
        with torch.no_grad():
            call = OPS[op].spec.draw(Case(dims, BF, params), 0, device)
            runs, right = {}, None
            for name, run in versions:
                try:
                    got = bound(c, run, call)(); torch.cuda.synchronize()
                except Exception as e: print(c, name, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                if right is None: right = got; moved = OPS[op].spec.floor_bytes(call)
                elif " none" not in name or name.startswith("ticket"):
                    wrong = far(got, right)
                    if wrong: print(c, name, "WRONG", wrong, flush=True); continue
                    for again in range(2):
                        more = bound(c, run, call)()
                        if not all(torch.equal(a, b) for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, more))) if a is not None): print(c, name, "WRONG: two runs differ", flush=True)
                runs[name] = bound(c, run, call)
            if c == "F" and peer: runs["torch.compile"] = lambda: peer(**call)
            source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=device).random_()
            target = torch.empty_like(source)
            runs["copy"] = lambda: target.copy_(source)
            compared = timing.compare(runs, device, budget_ms=40, rounds=60 if dims["M"] * dims["N"] < 1 << 27 else 30)
        cp = compared.timings["copy"].us
        print(f"{c} {op} {dims['M']}x{dims['N']} copy {cp:.2f} needs {cp / 0.9:.2f} noise {compared.noise:.3f} at {clock():.0f} s", flush=True)
        line = []
        for k, t in sorted(compared.timings.items(), key=lambda i: i[1].us):
            line.append(f"{t.us:7.2f} {cp / t.us:.3f} {k}")
            if len(line) == 3: print(" ; ".join(f"{x:<62}" for x in line)); line = []
        if line: print(" ; ".join(f"{x:<62}" for x in line), flush=True)
        del runs, call, right, source, target
if __name__ == "__main__": main()
