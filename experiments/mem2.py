"""Memory-bound operators, second round: variants beside the kernel there is and a copy. PYTHONPATH=src OUT=/dir python3 experiments/mem2.py [names];
the table goes to $OUT/mem2.txt. MEM2_SIM=1: the same on small cases in the simulator, each variant once, nothing timed."""
import contextlib, os, pathlib, sys, time, traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import torch
import rooftile.ops  # noqa: F401
import rooftile.cuda.launch as cl
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.cuda.compile import architecture, compiled
from rooftile.cuda.launch import CTYPE
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv, rows as matrix_rows
from rooftile.workbench.peers import copy_run

BEGAN, SIM = time.time(), bool(os.environ.get("MEM2_SIM"))
W = torch.device("cpu") if SIM else torch.device("cuda", 0)
HERE = pathlib.Path(__file__).resolve().parent / "v2"
LIMIT_S = float(os.environ.get("MEM_LIMIT_S", 1e9 if SIM else 85))
ONLY = sys.argv[1:]
real, instead, beside = cl.launch, {}, {"shared": 0}


def through(source, *args, shared=0, **more):
    """`beside`: shared memory that nobody uses, so that fewer blocks share a multiprocessor."""
    return real(instead.get(source.path.name, source), *args, shared=shared + beside["shared"], **more)


for m in list(sys.modules.values()):
    if getattr(m, "__name__", "").startswith("rooftile.ops") and getattr(m, "launch", None) is real:
        m.launch = through
SOURCES, TABLE = {}, []


def source(folder, name):
    return SOURCES.setdefault((folder, name), Source(HERE / folder / name))


def clear(*folders, held=0):
    instead.clear(), instead.update({p.name: source(f, p.name) for f in folders if f for p in (HERE / f).glob("*.cu")})
    beside["shared"] = held


def said(line):
    TABLE.append(line)
    print(line, flush=True)


def tensors(out):
    return [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor) and t.numel()]


def wait():
    if not SIM:
        torch.cuda.synchronize()


def poison(out):
    """What the next results are allocated on is not the right answer of the run before."""
    held = [torch.empty_like(t) for t in tensors(out)]
    for t in held:
        t.view(torch.uint8).fill_(0xFF) if t.dim() else None
    wait()


def apart(got, want):
    """0.0 where all bits agree, else the largest difference, of the largest number."""
    worst = 0.0
    for g, w in zip(tensors(got), tensors(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, (g.shape, w.shape, g.dtype, w.dtype)
        if torch.equal(g.contiguous().reshape(-1).view(torch.uint8), w.contiguous().reshape(-1).view(torch.uint8)):
            continue
        g, w = g.float(), w.float()
        assert torch.equal(g.isnan(), w.isnan()), "NaN in other places"
        worst = max(worst, float((g - w).nan_to_num().abs().max() / w.nan_to_num().abs().max().clamp_min(1e-30)))
    return worst


def drawn(op, case, **small):
    """The case that is timed; in the simulator one of its kind with these dimensions."""
    o = OPS[op]
    found = [c for c in o.spec.cases if "bench" in c.use and all(part in c.id for part in case.split("|"))]
    assert found, [c.id for c in o.spec.cases if "bench" in c.use]
    c = replace(found[0], dims={**found[0].dims, **small}) if SIM else found[0]
    return o, o.spec.draw(c, 0, W)


def variants(o, call, kernel, folders=(), more=(), every=True, args=None):
    """The kernel as it is and with other files in the place of its own, by its own config first, then by all and by `more`."""
    k = o.kernel(kernel)
    assert k.objection(call) is None, k.objection(call)
    own, args, made = o.config(k, call), args or tuple(call.values()), {}
    configs = [own, *(c for c in (*(k.configs if every else ()), *more) if c != own)]
    for folder in (None, *folders):
        for c in configs:
            def run(folder=folder, c=c):
                clear(folder)
                return k.bound(c, save=False)(*args)
            made[f"{folder or kernel} {' '.join(f'{n}={v}' for n, v in (c or {}).items())}".strip()] = run
    return made


def warm(made):
    """What these runs launch is compiled side by side, before any of them runs."""
    wanted = {}
    for run in made.values():
        with contextlib.suppress(Exception), cl.recording() as seen:
            run()
        for s in seen:
            wanted[id(s.source), s.instance] = s
    clear()
    if not SIM:
        arch = architecture(*torch.cuda.get_device_capability(W))
        with contextlib.suppress(ImportError):  # threads must not import it at once
            from cuda.core import Program, ProgramOptions  # noqa: F401
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda s: _compiles(s, arch), wanted.values()))


def _compiles(s, arch):
    with contextlib.suppress(Exception):  # the run itself will say so
        compiled(s.source, s.instance, arch)


def check(op, case, made, tolerance, fresh=None):
    """Those that are right, with how right. `fresh()`: before each run, what is written in place is as it was; results are then what it returns."""
    want, good = None, {}
    for name, run in made.items():
        try:
            if want is not None:
                poison(want)
            state = fresh() if fresh else None
            got = run()
            got = state if fresh else got
            wait()
            if want is None:
                want, right = [t.clone() for t in tensors(got)], "the base"
            else:
                off = apart(got, want)
                assert off <= tolerance, f"it is off by {off:.3g}"
                right = "same bits" if off == 0 else f"off {off:.1e}"
            if SIM:
                said(f"   {op} {name}: {right}")
            good[name] = (run, right)
        except Exception as error:  # one variant's fault is not the others'
            said(f"{op} {case} {name}: FAILED {type(error).__name__}: {str(error)[:200]}")
    clear()
    return good


def clock(op, case, good, moved, rounds=60, budget=40.0):
    versions = {n: r for n, (r, _) in good.items()} | {"copy": copy_run(moved, W)}
    if SIM:
        return
    with torch.no_grad():
        t = timing.compare(versions, W, budget_ms=budget, rounds=rounds)
    clear()
    copy, first = t.timings["copy"].us, next(iter(good))
    lines = [f"== {op} {case}: {moved / 1e6:.1f} MB, {moved / 4.2e6:.2f} us at 4.2 TB/s, copy {copy:.2f} us, noise {t.noise:.4f}"]
    for n in sorted(good, key=lambda n: (n != first, t.timings[n].us)):
        x = t.timings[n]
        lines.append(f"   {op:26s} {x.p20:8.2f} {x.us:8.2f} {x.p80:8.2f} us {copy / x.us:6.3f} of a copy  {n}  [{good[n][1]}]")
    said("\n".join(lines))
    print(f"({time.time() - BEGAN:.0f} s)", flush=True)


def measure(op, case, made, call, o, tolerance=2**-7, **more):
    warm(made)
    clock(op, case, check(op, case, made, tolerance), o.spec.floor_bytes(call), **more)


# ---- the items, the most important first ---------------------------------------------------------------------------------


def held(threads, block):
    """Shared memory a block, so that no more than `threads` threads share a multiprocessor of 227 KB."""
    return 0 if not threads or SIM else 227 * 1024 // (threads // block) // 1024 * 1024 - 1024


def steps(call, plans):
    """adamw's runs on this call: (folder, vecs, threads, steps of a block, once, threads a multiprocessor or 0 for as many as there is room for)."""
    width = 16 // max(call[n][0].itemsize for n in ("params", "grads", "exp_avgs"))
    if call["masters"]:
        width = 4
    k, made = OPS["adamw"].kernel("cuda.v2_vector"), {}
    for folder, vecs, threads, loops, once, hold in plans:
        config = {"vecs": vecs, "threads": threads, "chunk": vecs * threads * width * loops, "once": once}
        def run(folder=folder, config=config, threads=threads, hold=hold):
            clear(folder, held=held(hold, threads))
            return k.bound(config)(*call.values())
        name = f"{folder or 'v2'} vecs={vecs} threads={threads} loops={loops} once={once}" + (f" hold={hold}" if hold else "")
        made[name] = run
    return made


def adamw(case, plans):
    o, call = drawn("adamw", case, **({"P": ((5, 67), (1,), (129,))} if case.startswith("P148") else {"P": ((9001,),)}))
    made = steps(call, plans)
    warm(made)
    # Right on small tensors with ragged tails, where the same instances run
    c = next(c for c in o.spec.cases if "bench" in c.use and all(part in c.id for part in case.split("|")))
    sizes = ((1503,), (1,), (4, 1024)) if SIM else ((1000003,), (1,), (33, 4096), (2 * 10**6,))
    small = o.spec.draw(replace(c, dims={"P": sizes}), 1, W)
    lists = ("params", "exp_avgs", "exp_avg_sqs", "masters")
    before = {n: [t.clone() for t in small[n]] for n in lists}

    def fresh():
        for n in lists:
            for t, b in zip(small[n], before[n]):
                t.copy_(b)
        return [t for n in lists for t in small[n]]

    good = check("adamw", case, steps(small, plans), 2**-7, fresh)
    clock("adamw", case, {n: (made[n], right) for n, (_, right) in good.items()}, o.spec.floor_bytes(call), rounds=24, budget=44.0)


BASE = (None, 1, 256, 4, False, 0)  # 4096 float32
PLAIN_PLANS = [
    BASE, (None, 1, 256, 1, False, 0), (None, 1, 128, 1, False, 0), (None, 2, 128, 1, False, 0), (None, 2, 256, 1, False, 0), (None, 1, 512, 1, False, 0),
    (None, 1, 256, 1, True, 0), *(
        (f, v, t, 1, once, hold)
        for f in ("aw_once", "aw_once_last")
        for v, t, once, hold in ((1, 256, False, 0), (2, 128, False, 0), (1, 128, False, 0), (1, 512, False, 0), (1, 256, True, 0), (2, 128, True, 0), (1, 256, False, 768),
                                 (2, 128, False, 512))
    ),
    ("aw_last", 1, 256, 4, False, 0), ("aw_last", 1, 256, 4, True, 0), ("aw_lastg", 1, 256, 4, False, 0), ("aw_lastg", 1, 256, 1, False, 0),
]  # fmt: skip
FEW_PLANS = [BASE, (None, 1, 256, 1, False, 0), (None, 2, 128, 1, False, 0), ("aw_once", 1, 256, 1, False, 0), ("aw_once", 2, 128, 1, False, 0),
             ("aw_once_last", 1, 256, 1, False, 0), ("aw_once_last", 2, 128, 1, False, 0), ("aw_once_last", 1, 256, 1, True, 0)]  # fmt: skip
RANDOM_PLANS = [(None, 1, 256, 2, False, 0), ("aw_bits", 1, 256, 2, False, 0), ("aw_bits", 1, 256, 1, False, 0), (None, 1, 256, 1, False, 0),
                *((f, v, t, 1, o, 0) for f in ("aw_once", "aw_once_last") for v, t, o in ((1, 256, False), (1, 128, False), (1, 512, False), (2, 128, False), (1, 256, True)))]  # fmt: skip


def stochastic(case):
    """v3 is the base here."""
    adamw(case, RANDOM_PLANS)


def losses(case):
    o, call = drawn("cross_entropy_backward", case, M=61)
    more = [{"threads": t, "vecs": v} for t, v in ((128, 1), (64, 4), (64, 2), (64, 1), (512, 1), (128, 8), (256, 8))]
    measure("cross_entropy_backward", case, variants(o, call, "cuda.v4_vector", ["ce_fit"], more), call, o)


def few(op, case, kernels, folder):
    o, call = drawn(op, case, M=3)
    made = {}
    for name in kernels:
        with contextlib.suppress(AssertionError):
            if not (SIM and name.startswith("triton")):
                made |= variants(o, call, name, every=False)
    made |= {n: r for n, r in variants(o, call, "cuda.v4_register_row", [folder], [{"vecs": 1}]).items()}
    measure(op, case, made, call, o, rounds=100)


def by_flag(dout, indices, to, padding, config, added):
    """cuda.v5_dealt whose sums wait for a word of the sort (emb_flag)."""
    from rooftile.ops.embedding.cuda_kernels import DEAL_WARPS, _dealt_of, _lanes
    (v, n), (dout, m, _, stride), indices, warps = to.shape, matrix_rows(dout), indices.contiguous(), config["warps"]
    n_steps, parts, share, ranges = _dealt_of(indices, v, warps)
    dealt, begins = (indices.new_empty(size, dtype=torch.int32) for size in ((m, 2), (ranges + 1, parts)))
    keys, order = (indices.new_empty(m, dtype=torch.int32) for _ in range(2))
    borders, sorted_ = indices.new_empty(v + 1, dtype=torch.int32), indices.new_empty(1, dtype=torch.int32)
    sort_of, sums_of, dtype = source("emb_flag", "v5_dealt.cu"), source("emb_flag", "v2_balanced.cu"), CTYPE[dout.dtype]
    real(sort_of, f"deal<{DEAL_WARPS}>", parts, 32 * DEAL_WARPS, sorted_, dealt, begins, indices, m, v, padding, share, ranges, n_steps, shared=4 * DEAL_WARPS * ranges)
    wide = 16 // to.itemsize if n * to.itemsize % 16 == 0 else 1
    real(sort_of, f"sort<{warps}, {dtype}, {wide}, {'false' if added else 'true'}>", ranges, 32 * warps, to, sorted_, keys, order, borders, dealt, begins, v, n, share, parts,
         32 * DEAL_WARPS * n_steps, shared=4 * (warps * share + 2 * parts + cdiv(share, 32)))
    width, vectors, strips = _lanes(dout, n, stride)
    span = config["span"]
    spans, four, more = cdiv(m, span), 1 if n % 4 else 4, ", true" if added else ""
    partial = dout.new_empty((2 * spans, n), dtype=torch.float32)
    real(sums_of, f"sums<{dtype}, int, int, {width}, {vectors}, {config['tokens']}{more}>", cdiv(spans * strips, BLOCK // 32), BLOCK, to, partial, dout, keys, order, borders, v,
         0, n, stride, strips, span, sorted_, ranges)
    real(sums_of, f"join<{dtype}, int, {four}{more}>", (cdiv(spans, BLOCK), cdiv(n, 8 * four)), BLOCK, to, partial, keys, borders, m, v, 0, n, span)


FLAGGED = ((4, 16, 8), (4, 16, 16), (2, 16, 8), (2, 16, 16), (4, 16, 32))


def embedding(case, **small):
    o, call = drawn("embedding_backward", case, **(small or {"M": 211, "V": 97, "N": 80}))
    made = variants(o, call, "cuda.v5_dealt")

    def run(config):
        out = call["weight"].new_empty(call["weight"].shape)
        by_flag(call["dout"], call["indices"], out, call["padding_idx"], config, False)
        return out

    for t, s, w in FLAGGED:
        config = {"tokens": t, "span": s, "warps": w}
        made[f"emb_flag tokens={t} span={s} warps={w}"] = lambda config=config: run(config)
    measure("embedding_backward", case, made, call, o, 0.0)


def accumulate(case):
    o, call = drawn("embedding_accumulate", case, M=211, V=97, N=80)
    k, to = o.kernel("cuda.v5_dealt"), call["dweight"]
    made = variants(o, call, "cuda.v5_dealt", ["acc_old"])
    for t, s, w in FLAGGED:
        config = {"tokens": t, "span": s, "warps": w}
        made[f"emb_flag tokens={t} span={s} warps={w}"] = lambda config=config: by_flag(call["dout"], call["indices"], to, call["padding_idx"], config, True)
    warm(made)
    before = to.clone()

    def fresh():
        to.copy_(before)
        return (to,)

    clock("embedding_accumulate", case, check("embedding_accumulate", case, made, 0.0, fresh), o.spec.floor_bytes(call))


def numbers(folder, x, offsets, each, per, stages):
    """segment_sum's cuda.v4_numbers with more tiles on their way."""
    from rooftile.ops._shared.launch import processors
    from rooftile.ops.segment_sum.cuda_kernels import _room
    m, e = x.shape[0], offsets.numel() - 1
    out = x.new_empty((e, 1))
    every = cdiv(m, BLOCK * each)
    tiles = max(1, cdiv(every, per * processors(x)))
    blocks = cdiv(every, tiles)
    partial = x.new_empty(2 * blocks, dtype=torch.float32)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}, {each}"
    shared = stages * _room(x, each) + (0 if x.itemsize == 4 else 4 * BLOCK * each)
    real(source(folder, "v4_numbers.cu"), f"chunks<{types}, {stages}>", blocks, BLOCK, out, partial, x, offsets, m, e, tiles, shared=shared)
    real(source(folder, "v4_numbers.cu"), f"join<{types}>", cdiv(e, BLOCK), BLOCK, out, partial, offsets, m, e, tiles)
    return out


# (numbers a thread, blocks a multiprocessor, stages): tiles of 16 KB in 20 of shared memory, of 8 in 12, of 32 in 37
FLAT = ((16, 3, 3), (16, 2, 4), (16, 2, 5), (8, 4, 4), (8, 6, 3), (8, 3, 6), (16, 6, 3), (32, 2, 3), (16, 12, 3))


def segments(case, **small):
    o, call = drawn("segment_sum", case, **(small or {"M": 40011, "E": 601}))
    made = variants(o, call, "cuda.v4_numbers")
    x, offsets = call["x"].contiguous(), call["offsets"].contiguous()
    for folder in ("seg_flat", "seg_first"):
        for each, per, stages in FLAT:
            made[f"{folder} each={each} per={per} stages={stages}"] = lambda folder=folder, each=each, per=per, stages=stages: numbers(folder, x, offsets, each, per, stages)
    measure("segment_sum", case, made, call, o)


D = "M32768_V50304_N768"
JOBS = [
    ("adamw", adamw, ("P1of268435456-float32|beta1", PLAIN_PLANS)),
    ("cross_entropy", losses, ("M32768_V256-bfloat16",)),
    ("rmsnorm", few, ("rmsnorm", "M64_N8192", ("cuda.v9_ahead", "cuda.v6_pipeline", "triton"), "rms_few")),
    ("rmsnorm", few, ("rmsnorm", "M64_N1024", ("triton", "cuda.v5_rows"), "rms_few")),
    ("layernorm", few, ("layernorm", "M64_N1024", ("triton", "cuda.v5_rows"), "ln_few")),
    ("layernorm", few, ("layernorm", "M64_N8192", ("cuda.v9_ahead", "cuda.v6_pipeline", "triton"), "ln_few")),
    ("embedding", embedding, (f"{D}-bfloat16",)),
    ("accumulate", accumulate, (f"{D}-bfloat16",)),
    ("segment_sum", segments, ("M67108864",)),
    ("adamw_bf16", adamw, ("P1of268435456-bfloat16|beta1", [(None, 1, 256, 2, False, 0), *PLAIN_PLANS[1:19], ("aw_last", 1, 256, 2, False, 0)])),
    ("adamw_gpt2", adamw, ("P148of124475904-float32", FEW_PLANS)),
    ("adamw_stochastic", stochastic, ("P1of268435456-bfloat16|stochastic",)),
    ("embedding_float", embedding, (f"{D}-float32",)),
    ("embedding_128k", embedding, ("M16384_V128256_N4096",)),
    ("adamw_master", adamw, ("P148of124475904-bfloat16|master", FEW_PLANS)),
]


def main():
    for name, job, args in JOBS:
        if ONLY and name not in ONLY:
            continue
        if time.time() - BEGAN > LIMIT_S - 5:
            said(f"{name} {args[:2]}: left out, {time.time() - BEGAN:.0f} s have passed")
            continue
        try:
            with simulator.active("checks") if SIM else contextlib.nullcontext():
                job(*args)
        except Exception as error:
            traceback.print_exc()
            said(f"{name} {args[:2]}: FAILED {type(error).__name__}: {str(error)[:200]}")
        clear()
        if not SIM:
            torch.cuda.empty_cache()
    text = "\n".join(["simulated" if SIM else torch.cuda.get_device_name(0), *TABLE, f"{time.time() - BEGAN:.0f} s in all"]) + "\n"
    pathlib.Path(os.environ.get("OUT", "/tmp"), "mem2.txt").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
