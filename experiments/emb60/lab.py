"""embedding's backward and embedding_accumulate: zeros (or the rows added to) seen to while the tokens are sorted. usage: lab.py [SECONDS a case]
MODES: lists = by what the deal left, while the sort runs; cluster = by the indices themselves, beside deal and sort; bulk = the same by the copy engine."""
import sys, time, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors, rows as as_rows
from rooftile.ops.embedding import cuda_kernels as ck
HERE = Path(__file__).resolve().parent
AHEAD, AFTER, PLACED = (Source(HERE / f"{n}.cu") for n in ("ahead", "dealt_after", "dealt_placed"))
MODES, OLD = {"nothing": 0, "lists": 1, "cluster": 2, "bulk": 3}, {"end": 0, "with": 1, "ask": 2}
START = time.time()
LEFT = 52.0  # seconds of the whole, beyond which no case is begun

def instance(dtype, n, tokens, mode, cluster, added=False, old="end", placed=False):
    width = 16 // dtype.itemsize
    vectors, _ = ck._strips(n, width)
    if placed and placed[0] > 1: return f"sums_ring<{CTYPE[dtype]}, {width}, {vectors}, {placed[0]}, {'true' if added else 'false'}, {MODES[mode]}, {cluster}>"
    return f"sums<{CTYPE[dtype]}, int, int, {width}, {vectors}, {tokens}, {'true' if added else 'false'}, {MODES[mode]}, {cluster}, {OLD[old]}, {'true' if placed else 'false'}>"

def variant(to, dout, indices, cfg, added=False, stop=9):
    """cfg: mode, tokens, warps of the sort, clearing clusters or None for all, old, 1 for places of one load or the slots of a ring. stop: so many launches only."""
    mode, tokens, warps, clusters, old, *placed = cfg
    (v, n), (dout, m, _, stride), padding, span = to.shape, as_rows(dout), -1, 16
    steps, parts, share, ranges = ck._dealt_of(indices, v, warps)
    dealt, begins = (indices.new_empty(size, dtype=torch.int32) for size in ((m, 2), (ranges + 1, parts)))
    keys, order = (indices.new_empty(m, dtype=torch.int32) for _ in range(2))
    borders = indices.new_empty(v + 1, dtype=torch.int32)
    sort = AFTER if mode == "lists" else ck.DEALT
    launch(sort, f"deal<{ck.DEAL_WARPS}>", parts, 32 * ck.DEAL_WARPS, dealt, begins, indices, m, v, padding, share, ranges, steps, shared=4 * ck.DEAL_WARPS * ranges)
    if stop < 2: return to
    places = indices.new_empty((m, 4) if placed else 1, dtype=torch.int32)
    if placed: launch(PLACED, f"sort<{warps}>", ranges, 32 * warps, keys, places, borders, dealt, begins, m, v, share, parts, 32 * ck.DEAL_WARPS * steps, shared=4 * (warps * share + 2 * parts + share + 1))
    else: launch(sort, f"sort<{warps}>", ranges, 32 * warps, keys, order, borders, dealt, begins, v, share, parts, 32 * ck.DEAL_WARPS * steps, shared=4 * (warps * share + 2 * parts))
    if stop < 3: return to
    width = 16 // dout.itemsize
    vectors, strips = ck._strips(n, width)
    spans = cdiv(m, span)
    partial = dout.new_empty((2 * spans, n), dtype=torch.float32)
    blocks, cluster, pieces, words, clearing, each = cdiv(spans * strips, 8), 1, 1, 1, 0, 0
    if mode == "nothing" and not added:
        blocks = max(blocks, cdiv(v, 256)); each = cdiv(v, blocks * 8)
    if mode == "lists":
        pieces = max(1, cdiv(blocks, ranges)); words = cdiv(share, 32 * pieces)
        clearing = ranges * pieces; blocks = max(blocks, clearing)
    if mode in ("cluster", "bulk"):
        cluster = 8
        blocks = cdiv(blocks, 8) * 8
        clearing = min(blocks, 8 * clusters) if clusters else blocks
        words = cdiv(v, clearing * 32)
    if placed and placed[0] > 1:
        launch(AHEAD, instance(dout.dtype, n, tokens, mode, cluster, added, old, placed), blocks, 256, to, partial, dout, v, n, stride, strips, span, indices, dealt,
               begins, m, padding, share, parts, pieces, words, clearing, places, shared=8 * placed[0] * vectors * 512 + 4 * words * (1 + 2 * cluster))
    else: launch(AHEAD, instance(dout.dtype, n, tokens, mode, cluster, added, old, placed), blocks, 256, to, partial, dout, keys, order, borders, v, 0, n, stride, strips, span,
           each, indices, dealt, begins, m, padding, share, parts, pieces, words, clearing, places, shared=4 * words * (1 + 2 * cluster))
    if stop < 4: return to
    launch(ck.BALANCED, f"join<{CTYPE[dout.dtype]}, int, 4{', true' if added else ''}>", (cdiv(spans, 256), cdiv(n, 32)), 256, to, partial, keys, borders, v, 0, n, span)
    return to

BF, F32 = torch.bfloat16, torch.float32
BACKWARD = [  # name, cfg
    ("nothing", ("nothing", 4, 8, None, "end")), ("placed", ("nothing", 4, 8, None, "end", 1)),
    ("lists", ("lists", 4, 8, None, "end")), ("lists t2", ("lists", 2, 8, None, "end")),
    ("cluster", ("cluster", 4, 8, None, "end")), ("cluster c16", ("cluster", 4, 8, 16, "end")), ("cluster t2", ("cluster", 2, 8, None, "end")),
    ("bulk", ("bulk", 4, 8, None, "end")), ("bulk c16", ("bulk", 4, 8, 16, "end")), ("bulk t2", ("bulk", 2, 8, None, "end")),
    ("cluster placed", ("cluster", 4, 8, None, "end", 1)), ("bulk placed", ("bulk", 4, 8, None, "end", 1)), ("bulk c16 placed", ("bulk", 4, 8, 16, "end", 1)),
    ("bulk ring 8", ("bulk", 0, 8, None, "end", 8)), ("bulk ring 6", ("bulk", 0, 8, None, "end", 6)), ("cluster ring 8", ("cluster", 0, 8, None, "end", 8)),
    ("lists ring 8", ("lists", 0, 8, None, "end", 8)),
]
WIDE = [  # 4096 columns: 2 tokens are 8 vectors
    ("nothing", ("nothing", 2, 8, None, "end")), ("lists", ("lists", 2, 8, None, "end")), ("cluster", ("cluster", 2, 8, None, "end")),
    ("cluster c33", ("cluster", 2, 8, 33, "end")), ("bulk", ("bulk", 2, 8, None, "end")), ("bulk c33", ("bulk", 2, 8, 33, "end")), ("bulk placed", ("bulk", 2, 8, None, "end", 1)), ("bulk ring 6", ("bulk", 0, 8, None, "end", 6)),
]
ADD = [
    ("nothing", ("nothing", 4, 8, None, "end")), ("with tokens t2", ("nothing", 2, 8, None, "with")),
    ("asked for", ("nothing", 4, 8, None, "ask")), ("asked ahead", ("cluster", 4, 8, None, "end")), ("asked ahead c16", ("cluster", 4, 8, 16, "end")),
    ("asked ahead, with tokens t2", ("cluster", 2, 8, None, "with")), ("asked by lists", ("lists", 4, 8, None, "end")),
    ("asked ahead placed", ("cluster", 4, 8, None, "end", 1)), ("asked ahead, with tokens t2 placed", ("cluster", 2, 8, None, "with", 1)),
    ("asked ahead ring 8", ("cluster", 0, 8, None, "end", 8)),
]
ADD_WIDE = [
    ("nothing", ("nothing", 2, 8, None, "end")), ("with tokens t1", ("nothing", 1, 8, None, "with")), ("asked for", ("nothing", 2, 8, None, "ask")),
    ("asked ahead", ("cluster", 2, 8, None, "end")), ("asked ahead c16", ("cluster", 2, 8, 16, "end")), ("asked by lists", ("lists", 2, 8, None, "end")),
]
CASES = [("backward", 32768, 50304, 768, BF, BACKWARD), ("backward", 32768, 50304, 768, F32, BACKWARD), ("accumulate", 32768, 50304, 768, BF, ADD),
         ("backward", 16384, 128256, 4096, BF, WIDE), ("accumulate", 16384, 128256, 2048, BF, ADD_WIDE)]

def instances():
    """All that is to be compiled: (source, instance)."""
    found = {}
    for kind, m, v, n, dtype, cfgs in CASES:
        added = kind == "accumulate"
        for _, (mode, tokens, warps, _, old, *placed) in cfgs:
            found[AHEAD, instance(dtype, n, tokens, mode, 8 if MODES[mode] > 1 else 1, added, old, placed)] = 0
            found[ck.BALANCED, f"join<{CTYPE[dtype]}, int, 4{', true' if added else ''}>"] = 0
            for s in (ck.DEALT, AFTER, PLACED):
                found[s, f"deal<{ck.DEAL_WARPS}>"] = found[s, f"sort<{warps}>"] = 0
    return list(found)

def main(budget):
    with ThreadPoolExecutor(16) as pool:
        for (s, i), made in zip(instances(), pool.map(lambda a: tried(*a), instances())):
            if isinstance(made, str) or made.spill_bytes: print(s.path.name, i, made if isinstance(made, str) else f"spills {made.spill_bytes}")
    print(f"compiled after {time.time() - START:.1f} s", flush=True)
    where = torch.device("cuda", 0)
    for kind, m, v, n, dtype, cfgs in CASES:
        if time.time() - START > LEFT: print("no time for", kind, m, v, n, dtype); continue
        added = kind == "accumulate"
        torch.manual_seed(0)
        indices, dout = torch.randint(0, v, (m,), device="cuda"), torch.randn(m, n, device="cuda", dtype=dtype)
        weight, grad = (torch.randn(v, n, device="cuda", dtype=dtype) for _ in range(2))
        op = OPS[f"embedding_{kind}"].kernel("cuda.v5_dealt")
        call = {"dout": dout, "indices": indices, **({"dweight": weight} if added else {"weight": weight}), "padding_idx": -1}
        now = op.bound(op.heuristic(call))
        runs = {"v5": (lambda: now(dout, indices, weight, -1))}
        # a frequent token too: half of the text is one row's, some indices are outside
        skewed = torch.where(torch.arange(m, device="cuda") % 2 > 0, v // 2, indices); skewed[::97] = -1; skewed[5::97] = v + 3
        def check(name, cfg):
            for text, i in (("even", indices), ("skewed", skewed)):
                if added:
                    want, got = grad.clone(), grad.clone()
                    now(dout, i, want, -1)
                else:
                    want, got = now(dout, i, weight, -1), torch.full_like(weight, float("nan"))
                variant(got, dout, i, cfg, added); torch.cuda.synchronize()
                if not torch.equal(got, want):
                    bad = (got != want).any(1)
                    print(kind, name, text, "off in", int(bad.sum()), "rows, the first", int(bad.nonzero()[0]), float((got.float() - want.float()).abs().nan_to_num(1e9).max()), flush=True)
        for name, cfg in cfgs:
            try:
                check(name, cfg)
                if added: runs[name] = lambda cfg=cfg: variant(grad, dout, indices, cfg, True)
                else: runs[name] = lambda cfg=cfg: variant(torch.empty_like(weight), dout, indices, cfg)
            except Exception as e: print(kind, name, type(e).__name__, str(e)[:200], flush=True)
        if n == 768 and dtype == BF:  # where the time goes: so many of the launches only
            for stop, name in ((1, "deal only"), (2, "deal, sort only"), (3, "no join")):
                runs[name] = lambda stop=stop: variant(grad if added else torch.empty_like(weight), dout, indices, cfgs[0][1], added, stop)
        moved = OPS[f"embedding_{kind}"].spec.moved(call, () if added else (weight,))
        half = torch.randn(moved // 8, device="cuda"); other = torch.empty_like(half)
        runs["copy"] = lambda: other.copy_(half)
        try: made = timing.compare(runs, where, budget_ms=1e3 * budget / len(runs))
        except Exception as e: print(kind, type(e).__name__, str(e)[:200], flush=True); continue
        cp = made.timings["copy"].us
        print(kind, m, v, n, dtype, f"copy {cp:.1f}, noise {made.noise:.3f},", {k: f"{t.us:.1f} ({cp / t.us:.3f})" for k, t in sorted(made.timings.items(), key=lambda i: i[1].us) if k != "copy"}, f"after {time.time() - START:.0f} s", flush=True)
        del indices, dout, weight, grad, half, other, runs

def tried(source, name):
    try: return compiler.compiled(source, name, "sm_90a")
    except Exception as e: return f"{type(e).__name__} {str(e)[:200]}"

if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
