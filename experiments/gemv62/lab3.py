"""gemv62, third: the landing candidate, whose 16-bit launch of sums lets the writer stand by only when all is read (land3; late: in float32 too), beside the second lab's (land);
the flat forward with longer runs of a row at once. usage: PYTHONPATH=src python3 .gpu/gemv62/lab3.py [SECONDS, 30]
Predicted: land3 f16 14336x4096 62.3 (land 65.3), 4096^2 f16 23.5, 16384^2 f16 249, 8192x1024 bf16 17.8; float32 late 0.4 us behind. Flat: split 256,2,4 with three blocks a multiprocessor 44, flat 256,2,8 43.5.
"""
import multiprocessing, os, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
F32, F16, BF = torch.float32, torch.float16, torch.bfloat16

def tools():
    global timing, L, launch, CTYPE, Source, cdiv, processors, dense_like, add_rows, CK, TK, AK, tables, resident, compiled, V
    from rooftile.core import timing
    from rooftile.cuda import launch as L
    from rooftile.cuda.compile import compiled
    from rooftile.cuda.launch import CTYPE, launch
    from rooftile.cuda.source import Source
    from rooftile.ops._shared.cuda_rows import add_rows
    from rooftile.ops._shared.launch import cdiv, dense_like, processors, resident
    from rooftile.ops._shared.tables import tables
    from rooftile.ops.adamw import cuda_kernels as AK
    from rooftile.ops.gemv import cuda_kernels as CK, triton_kernels as TK
    V = {n: Source(H / f"{n}.cu") for n in ("strips", "turns", "flat", "add_early", "norm", "land", "land3", "late")}

def tf(x): return "true" if x else "false"
def outs(a, x, out): return out or (dense_like(a), dense_like(x))
def old(dout, a, x, out, per, apart):
    return CK._gradients(CK._LAST)(dout, a, x, config={"per_sm": per, "apart": apart})
def now(dout, a, x, out):
    return old(dout, a, x, out, *CK.pick_gradients({"a": a}).values())
def add_early(partial, dx):
    p, n = partial.shape
    columns = 4 if n % 4 == 0 and n >= 1 << 14 else 1
    block = 32 * min(32, max(8, 1 << (max(1, cdiv(p, 8)) - 1).bit_length()))
    launch(V["add_early"], f"add_rows<{CTYPE[dx.dtype]}, {CTYPE[dx.dtype]}, {columns}>", cdiv(n, 32 * columns), block, dx, dx, partial, p, n, 0)
def walk(dout, a, x, out, threads, each, per, how, when=0, first=True, share=0, add=True):
    (m, k), (da, dx) = a.shape, outs(a, x, out)
    strips = cdiv(k, threads * 16 // a.itemsize)
    blocks = cdiv(m, share) if share else max(1, min(cdiv(m, each), per * processors(a) // max(1, strips)))
    bound = 1024 // threads if share else per
    partial = a.new_empty((blocks, k), dtype=F32)
    launch(V["turns"], f"gradients<{CTYPE[a.dtype]}, float, {threads}, {each}, {bound}, {how}, {when}, {tf(first)}>", (strips, blocks), threads, da, partial, dout, a, x, m, k, a.stride(0), share)
    if add: add_rows(partial, dx)
    return (da, dx) if add else (da, dx, partial)
def mix(*a): return walk(*a[:7], 0, 0, False)
def tile(dout, a, x, out, threads, each, rows): return walk(dout, a, x, out, threads, each, 0, 0, 0, False, rows)
def turn(*a): return walk(*a[:7], 1, 0, a[7:] != ("-",))
def apart(dout, a, x, out, each, per, rows, how):
    (m, k), when = a.shape, int(how == "late")
    da, dx, partial = walk(dout, a, x, out, 256, each, per, 2, when, True, 0, False)
    if how == "plain": add_rows(partial, dx)
    else: add_early(partial, dx)
    launch(V["turns"], f"outer{'' if how == 'plain' else '_early'}<{CTYPE[a.dtype]}, {rows}>", (cdiv(k, 4096 // a.itemsize), cdiv(m, rows)), 256, da, dout, x, m, k)
    return da, dx
def strip(dout, a, x, out, lanes, threads, each, *more):
    (m, k), (da, dx) = a.shape, outs(a, x, out)
    strips = cdiv(k, lanes * 16 // a.itemsize)
    cluster = next((c for c in (8, 4, 2) if strips * c <= processors(a) * (1024 if each <= 4 else 512) // threads), 1)
    instance = f"strips<{CTYPE[a.dtype]}, {lanes}, {threads}, {each}, {cluster}, {tf('m' not in more)}, {tf('-' not in more)}>"
    launch(V["strips"], instance, strips * cluster, threads, da, dx, dout, a, x, m, k, a.stride(0))
    return da, dx
def normnow(*grads): *grads, out, cfg = grads; return AK.norm_vector(grads, config=dict(zip(("vecs", "threads", "per"), cfg)))
def norm(*grads):
    """squares or a ring, and the root early or as it is: kind, vecs, threads or stages, per, policy, root."""
    *grads, out, kind, vecs, threads, per, first, root = grads
    chunk = vecs * (threads if kind == "sq" else 256) * 16 // grads[0].itemsize
    addresses, layout, chunks, _ = tables(chunk, grads)
    parts = max(1, min(chunks, resident(grads[0], per)))
    partial, out = layout.new_empty(parts, dtype=F32), layout.new_empty((), dtype=F32)
    t = CTYPE[grads[0].dtype]
    if kind == "sq": launch(V["norm"], f"squares<{t}, {vecs}, {threads}, {tf(first)}>", parts, threads, partial, addresses, layout, len(grads), chunks, chunk, reaches=grads)
    else: launch(V["norm"], f"ring<{t}, {vecs}, {threads}, {per}>", parts, 288, partial, addresses, layout, len(grads), chunks, chunk, shared=threads * vecs * 4096, reaches=grads)
    if root: launch(V["norm"], "root", 1, 512, out, partial, parts)
    else: launch(AK.ROOT, "root", 1, 1024, out, partial, parts)
    return out
def land3(dout, a, x, out, per): return land(dout, a, x, out, per, "land3")
def late(dout, a, x, out, per): return land(dout, a, x, out, per, "late")
def splitp(a, x, out, threads, rows, each, per):
    before, CK.PER_SM = CK.PER_SM, per
    try: return split(a, x, out, threads, rows, each)
    finally: CK.PER_SM = before
def land(dout, a, x, out, per, which="land"):
    (m, k), (da, dx) = a.shape, outs(a, x, out)
    strips = cdiv(k, 4096 // a.itemsize)
    blocks = max(1, min(cdiv(m, 16), 65535, per * processors(a) // max(1, strips)))
    partial, adders = a.new_empty((blocks, k), dtype=F32), cdiv(k, 128)
    launch(V[which], f"shares<{CTYPE[a.dtype]}>", (strips, blocks), 256, partial, dout, a, m, k, a.stride(0))
    launch(V[which], f"product<{CTYPE[a.dtype]}>", adders + strips * cdiv(m, 8), 256, da, dx, partial, dout, x, m, k, blocks, adders, strips)
    return da, dx
def split(a, x, out, threads, rows, each): return CK._split(CK._LAST)(a, x, config={"threads": threads, "rows": rows, "each": each})
def triton(a, x, out): return TK.gemv(a, x, config=TK.pick({"a": a}))
def join(partial, out, slices): launch(V["flat"], f"join<{CTYPE[out.dtype]}>", cdiv(out.numel(), 8), 256, out, partial, out.numel(), slices)
def flat(a, x, out, threads, rows, each, per, waves):
    m, k = a.shape
    out, groups, vectors = a.new_empty(m) if out is None else out, cdiv(m, rows), k * a.itemsize // 16
    share = cdiv(vectors, max(1, int(per * waves * processors(a)) // groups))
    slices = cdiv(vectors, share)
    partial = a.new_empty((m, slices), dtype=F32)
    launch(V["flat"], f"flat<{CTYPE[a.dtype]}, {threads}, {rows}, {each}, {per}>", (groups, slices), threads, partial, a, x, m, k, a.stride(0), share)
    join(partial, out, slices)
    return out
def ring(a, x, out, vectors, stages):
    m, k = a.shape
    out, tiles = a.new_empty(m) if out is None else out, k * a.itemsize // 16 // vectors
    blocks = min(tiles, processors(a))
    partial = a.new_empty((m, blocks), dtype=F32)
    launch(V["flat"], f"ring<{CTYPE[a.dtype]}, 16, {vectors}, {stages}>", blocks, 288, partial, a, x, m, k, a.stride(0), tiles, shared=stages * 17 * vectors * 16)
    join(partial, out, blocks)
    return out
def kept(a, x, out, threads, vecs, rows, per):
    m, k = a.shape
    out = a.new_empty(m) if out is None else out
    launch(V["flat"], f"kept<{CTYPE[a.dtype]}, {threads}, {vecs}, {rows}, {per}>", min(cdiv(m, rows), per * processors(a)), threads, out, a, x, m, k, a.stride(0))
    return out

F4 = [("now",), ("land", 2), ("land", 3), ("late", 2), ("late", 3)]
HALF = [("now",), ("land", 2), ("land3", 2), ("land3", 3), ("apart", 8, 2, 8, "early"), ("apart", 8, 2, 8, "late")]
FLAT = [("split", 256, 4, 2), ("split", 256, 8, 1), ("split", 256, 2, 4), ("split", 256, 1, 8), ("splitp", 256, 2, 4, 3), ("splitp", 256, 2, 4, 6), ("splitp", 256, 2, 4, 12), ("splitp", 256, 4, 2, 3),
        ("splitp", 256, 8, 1, 3), ("flat", 256, 8, 1, 3, 1), ("flat", 256, 2, 8, 2, 1), ("flat", 256, 4, 4, 2, 1), ("splitp", 128, 2, 4, 6)]
CASES = [*(("G", m, k, t, HALF) for m, k, t in ((14336, 4096, F16), (4096, 4096, F16), (16384, 16384, F16), (8192, 1024, BF), (2048, 2048, F16), (1024, 16384, BF), (512, 65536, F16), (128, 262144, BF), (64, 524288, BF), (32, 1048576, F16), (512, 512, F16))),
         *(("G", m, k, t, F4) for m, k, t in ((14336, 4096, F32), (4096, 4096, F32), (16384, 16384, F32), (65536, 256, F32), (64, 262144, F32), (32, 1048576, F32), (256, 256, F32))),
         *(("F", m, k, t, FLAT) for m, k, t in ((16, 4194304, BF), (8, 4194304, BF), (64, 1048576, F32), (5, 4194304, F16), (1, 16777216, BF), (128, 262144, BF)))]
D, BLOCK = 768, [(2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), *[(768,)] * 5]
GPT2 = [(50304, D), (1024, D), *BLOCK * 12, (D,), (D,)]
def label(v): return v[0] + "".join(f",{i}" if i not in ("m", "-") else f"/{i}" for i in v[1:]).replace(",", " ", 1)

def made(kind, m, k, dtype, device):
    g = torch.Generator(device="cpu" if device == "meta" else device).manual_seed(m + k)
    new = (lambda *s: torch.empty(*s, dtype=dtype, device="meta")) if device == "meta" else (lambda *s: torch.empty(*s, dtype=dtype, device=device).normal_(generator=g))
    if kind == "N": return [new(*s) for s in (GPT2 if m == 148 else ((5, 67), (1,), (129,), (70001,), (0,), (33, 1000)))]
    return (new(m), new(m, k), new(k)) if kind == "G" else (new(m, k), new(k))
def run(v, t, out=None): return globals()[v[0]](*t, out, *v[1:])

def jobs():
    """(source, instance) of all that is launched, from a walk in which nothing runs."""
    seen = {}
    with L.recording() as launches:
        for kind, m, k, dtype, variants in CASES:
            for v in variants:
                if v[0] != "triton": run(v, made(kind, 6, k, dtype, "cpu") if kind == "N" else made(kind, m, k, dtype, "meta"))
    for l in launches: seen[l.source.path.stem, l.instance] = l.source
    return [(s, i) for (_, i), s in seen.items()]
def warm(some):
    tools()
    bad = []
    for s, i in some:
        try:
            c = compiled(Source(s), i, "sm_90a")
            if c.spill_bytes: bad.append(f"{s.stem} {i}: spills {c.spill_bytes}")
        except Exception as e: bad.append(f"{s.stem} {i}: {type(e).__name__} {str(e)[:100]}")
    return bad

def right(kind, v, t, got, ref):
    """What differs from the kernel as it is, or None; sums of another order may by their rounding."""
    eps = 2e-6 if kind == "N" else 2e-5 if t[0].dtype == F32 else 1e-2 if t[0].dtype == BF else 2e-3
    parts = zip(("da", "dx"), got, ref) if kind == "G" else (("out", got, ref),)
    for name, g, r in parts:
        if name == "da" and torch.equal(g, r): continue
        if name == "da": return f"da differs in {int((g != r).sum())}"
        off = float((g.float() - r.float()).abs().max() / r.float().abs().max())
        if not off <= eps: return f"{name} off {off:.1e}"
def poison(kind, t):
    if kind == "N": return None
    if kind == "G": return tuple(torch.full_like(s, float("nan")) for s in t[1:])
    return torch.full((t[0].shape[0],), float("nan"), dtype=t[0].dtype, device=t[0].device)

def case(kind, m, k, dtype, variants, left, device="cuda"):
    t, runs, head = made(kind, m, k, dtype, device), {}, f"{kind} {m}x{k} {str(dtype)[6:]}"
    ref = run(variants[0], t)
    for v in variants:
        try:
            got = run(v, t, poison(kind, t))
            if device == "cuda": torch.cuda.synchronize()
            if why := right(kind, v, t, got, ref): print("WRONG", head, label(v), why, flush=True)
            again = run(v, t, poison(kind, t))
            if not all(torch.equal(p, q) for p, q in (zip(got, again) if kind == "G" else ((got, again),))): print("WRONG", head, label(v), "does not repeat", flush=True)
            runs[label(v)] = lambda v=v: run(v, t)
        except Exception as e: print("WRONG", head, label(v), type(e).__name__, str(e)[:120], flush=True)
    if device != "cuda": return
    moved = sum(g.numel() * g.itemsize for g in t) if kind == "N" else (2 if kind == "G" else 1) * m * k * t[0].itemsize + sum(s.numel() * s.itemsize for s in t if s.dim() == 1) + (k if kind == "G" else m) * t[0].itemsize
    src = torch.empty(moved // 2, dtype=torch.uint8, device="cuda").random_(); to = torch.empty_like(src)
    runs["copy"] = lambda: to.copy_(src)
    r = timing.compare(runs, torch.device("cuda", 0), budget_ms=1e3 * left / len(runs), rounds=100)
    cp, line = r.timings["copy"].us, f"{head} copy {r.timings['copy'].us:.1f} noise {r.noise:.3f}:"
    for n, s in sorted(r.timings.items(), key=lambda i: i[1].us):
        if n == "copy": continue
        one = f" {n} {s.us:.1f};"
        if len(line) + len(one) > 198: print(line, flush=True); line = "   "
        line += one
    print(line, flush=True)

def main(seconds):
    began = time.time()
    tools()
    todo = [(s.path, i) for s, i in jobs()]
    with multiprocessing.get_context("spawn").Pool(many := min(12, os.cpu_count() or 2)) as pool:
        got = [pool.apply_async(warm, (todo[i::many],)) for i in range(many)]
        for g in got:
            try:
                for bad in g.get(timeout=max(1, 25 - (time.time() - began))): print(bad[:190], flush=True)
            except Exception as e: print("not all compiled", type(e).__name__, flush=True)
    print(f"compiled {len(todo)} after {time.time() - began:.1f} s", flush=True)
    for i, c in enumerate(CASES):
        left = seconds - (time.time() - began)
        if left < 1: print("no time for", *c[:4]); continue
        try: case(*c, left=min(3.0, left / (len(CASES) - i)))
        except Exception as e: print("WRONG", *c[:4], type(e).__name__, str(e)[:150], flush=True)
        torch.cuda.empty_cache()
    print(f"all after {time.time() - began:.1f} s", flush=True)

if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
