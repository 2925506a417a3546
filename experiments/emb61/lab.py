"""embedding's backward and embedding_accumulate as landed (emb-61), beside HEAD's, and what might be next. usage: lab.py [SECONDS a case]
Sources: head_* are HEAD's, new_* the branch's, var_* the branch's with more to choose from. A cfg:
  tokens, warps of the sort, span; sums "head", "new" or "var"; old rows "end" or "with"; blocks a multiprocessor; vectors of a lane (0: as now)
  zeros: "borders", "lists" (sums, before they wait), "known" (lists, a launch of its own), "blind" (a launch of its own, while dealt and sorted)
  ahead: the share of rows that get zeros blindly, by the sort's blocks while they wait for the deal, or by "blind"; ranges a multiprocessor"""
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
SUMS = {n: Source(HERE / f) for n, f in (("head", "head_v2_balanced.cu"), ("new", "new_v2_balanced.cu"), ("var", "var_v2.cu"))}
SORT = {n: Source(HERE / f) for n, f in (("head", "head_v5_dealt.cu"), ("new", "new_v5_dealt.cu"), ("var", "var_v5.cu"))}
BASE = dict(tokens=4, warps=8, span=16, sums="var", old="end", per=0, vectors=0, zeros="borders", ahead=0.0, ranges=1, after=True, blocks=264)
START, LEFT = time.time(), 22.0  # seconds of the whole, beyond which no case is begun

def full(cfg): return {**BASE, **cfg}

def names(c, dtype, n, added):
    """(source, instance) of what is launched, by role."""
    t, width = CTYPE[dtype], 16 // dtype.itemsize
    vectors = c["vectors"] or ck._strips(n, width)[0]
    sums = f"sums<{t}, int, int, {width}, {vectors}, {c['tokens']}"
    if c["sums"] == "var":
        per = c["per"] or (1 if c["tokens"] * vectors > 12 else 2)
        sums += f", {'true' if added else 'false'}, {'true' if c['old'] == 'with' else 'false'}, {per}>"
    else: sums += ", true>" if added else ">"
    sort = f"sort<{c['warps']}, {'true' if c['after'] else 'false'}>" if c["sums"] == "var" else f"sort<{c['warps']}>"
    out = {"deal": (SORT[c["sums"]], f"deal<{ck.DEAL_WARPS}>"), "sort": (SORT[c["sums"]], sort), "sums": (SUMS[c["sums"]], sums),
           "join": (SUMS["head"], f"join<{t}, int, 4{', true' if added else ''}>")}
    if c["zeros"] == "blind": out["blind"] = (SUMS["var"], f"blind<{t}>")
    if c["zeros"] == "known": out["known"] = (SUMS["var"], f"known<{t}, {width}>")
    return out

def variant(to, dout, indices, c, added=False):
    by, span = names(c, dout.dtype, to.shape[1], added), c["span"]
    (v, n), (dout, m, _, stride), padding = to.shape, as_rows(dout), -1
    steps, parts, share, ranges = ck._dealt_of(indices, v, c["warps"])
    if c["ranges"] > 1: share = cdiv(v, c["ranges"] * processors(indices)); ranges = cdiv(v, share)
    dealt, begins = (indices.new_empty(size, dtype=torch.int32) for size in ((m, 2), (ranges + 1, parts)))
    keys, order = (indices.new_empty(m, dtype=torch.int32) for _ in range(2))
    borders = indices.new_empty(v + 1, dtype=torch.int32)
    width = 16 // dout.itemsize
    vectors = c["vectors"] or ck._strips(n, width)[0]
    strips = cdiv(cdiv(n, 32 * width), vectors)
    blind = int(share * c["ahead"]) // 8 * 8 if c["zeros"] == "lists" else 0  # of every range
    first = int(v * c["ahead"]) if c["zeros"] == "blind" else 0  # of all rows
    launch(*by["deal"], parts, 32 * ck.DEAL_WARPS, dealt, begins, indices, m, v, padding, share, ranges, steps, shared=4 * ck.DEAL_WARPS * ranges)
    launch(*by["sort"], ranges, 32 * c["warps"], keys, order, borders, dealt, begins, v, share, parts, 32 * ck.DEAL_WARPS * steps,
           *((to.view(torch.int8), n * to.itemsize, blind) if c["sums"] == "var" else ()), shared=4 * (c["warps"] * share + 2 * parts))
    spans = cdiv(m, span)
    partial = dout.new_empty((2 * spans, n), dtype=torch.float32)
    blocks, each, pieces = cdiv(spans * strips, 8), 0, 0
    if not added:
        if c["zeros"] == "lists":
            pieces = max(1, cdiv(blocks, ranges)) if c["sums"] == "var" else 2
            if c["sums"] == "var" or blocks <= 2 * ranges: blocks = ranges * pieces
            else: pieces = 0  # as landed: by borders
        if c["zeros"] == "known": launch(*by["known"], 4 * ranges, 256, to, dealt, begins, share, parts, 4, v, n, shared=4 * cdiv(share, 32))
        if c["zeros"] == "blind": launch(*by["blind"], c["blocks"], 256, to, first, n)
        if not pieces and c["zeros"] != "known" and first < v: blocks = max(blocks, cdiv(v - first, 256)); each = cdiv(v - first, blocks * 8)
    more = () if c["sums"] == "head" else (dealt, begins, share, parts, pieces)
    if c["sums"] == "var": more += (blind, first)
    launch(*by["sums"], blocks, 256, to, partial, dout, keys, order, borders, v, 0, n, stride, strips, span, each, *more, shared=4 * cdiv(share, 32) if pieces else 0)
    launch(*by["join"], (cdiv(spans, 256), cdiv(n, 32)), 256, to, partial, keys, borders, v, 0, n, span)
    return to

BF, F32 = torch.bfloat16, torch.float32
HEAD, NEW = dict(sums="head"), dict(sums="new", zeros="lists")
L = dict(zeros="lists")
BACK = {"head": HEAD, "new": NEW, "lists": L, "lists, borders": dict(), "lists ahead 1/8": {**L, "ahead": 1 / 8}, "lists ahead 1/4": {**L, "ahead": 1 / 4},
        "lists ahead 1/2": {**L, "ahead": 1 / 2}, "known": dict(zeros="known"), "blind 1/4": dict(zeros="blind", ahead=1 / 4, after=False),
        "blind 1/2": dict(zeros="blind", ahead=1 / 2, after=False), "blind all": dict(zeros="blind", ahead=1.0, after=False),
        "blind 1/4 of 132": dict(zeros="blind", ahead=1 / 4, after=False, blocks=132), "lists, 2 ranges": {**L, "ranges": 2}, "head, 2 ranges": {**HEAD, "ranges": 2},
        "lists, sort of 4": {**L, "warps": 4}}
WIDE = {"head": {**HEAD, "tokens": 2}, "new": {**NEW, "tokens": 2}, "lists": {**L, "tokens": 2}, "lists ahead 1/8": {**L, "tokens": 2, "ahead": 1 / 8},
        "known": dict(zeros="known", tokens=2), "blind 1/8": dict(zeros="blind", ahead=1 / 8, after=False, tokens=2)}
W = dict(old="with")
ADD = {"head": HEAD, "new": dict(sums="new"), "new t1 (with)": dict(sums="new", tokens=1), "t1 at the end": dict(tokens=1), "t1 with": {**W, "tokens": 1},
       "t1 with, span 48": {**W, "tokens": 1, "span": 48}, "t2 with": {**W, "tokens": 2}, "t2 at the end": dict(tokens=2), "t2 with, span 48": {**W, "tokens": 2, "span": 48},
       "t4 with, per 1": {**W, "tokens": 4, "per": 1}, "v1 t4 with": {**W, "vectors": 1}, "v1 t4 with, per 3": {**W, "vectors": 1, "per": 3}, "v1 t4 at the end, per 4": dict(vectors=1, per=4)}
ADD2048 = {"head": {**HEAD, "tokens": 2}, "new t1 (with)": dict(sums="new", tokens=1), "t1 at the end": dict(tokens=1), 
           "t1 with, span 48": {**W, "tokens": 1, "span": 48}, "t2 with": {**W, "tokens": 2}, "t2 with, per 1": {**W, "tokens": 2, "per": 1}, "v2 t2 with": {**W, "tokens": 2, "vectors": 2},
           "v2 t1 with, per 3": {**W, "tokens": 1, "vectors": 2, "per": 3}, "v2 t4 with": {**W, "tokens": 4, "vectors": 2}, "v1 t4 with, per 3": {**W, "tokens": 4, "vectors": 1, "per": 3}}
CASES = [("backward", 32768, 50304, 768, BF, BACK), ("accumulate", 16384, 128256, 2048, BF, ADD2048), ("accumulate", 32768, 50304, 768, BF, ADD),
         ("accumulate", 32768, 50304, 768, F32, ADD), ("backward", 32768, 50304, 768, F32, BACK), ("backward", 16384, 128256, 4096, BF, WIDE),
         ("backward", 32768, 256, 768, BF, {k: BACK[k] for k in ("head", "new")})]

def instances():
    return list({pair: 0 for kind, _, _, n, dtype, cfgs in CASES for cfg in cfgs.values() for pair in names(full(cfg), dtype, n, kind == "accumulate").values()})

def tried(source, name):
    try: return compiler.compiled(source, name, "sm_90a")
    except Exception as e: return f"{type(e).__name__} {str(e)[:200]}"

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
        # a frequent token too: half of the text is one row's, some indices are outside
        skewed = torch.where(torch.arange(m, device="cuda") % 2 > 0, v // 2, indices); skewed[::97] = -1; skewed[5::97] = v + 3
        runs, first = {}, full(next(iter(cfgs.values())))
        def result(i, c):
            return variant(grad.clone() if added else torch.full_like(weight, float("nan")), dout, i, c, added)
        want = {k: result(i, first) for k, i in (("even", indices), ("skewed", skewed))}
        for name, cfg in cfgs.items():
            c = full(cfg)
            try:
                for text, i in (("even", indices), ("skewed", skewed)):
                    if c["span"] != first["span"] and text == "skewed": continue  # another order of partial sums
                    got = result(i, c); torch.cuda.synchronize()
                    if not torch.equal(got, want[text]):
                        bad = (got != want[text]).any(1)
                        print(kind, name, text, "off in", int(bad.sum()), "rows, the first", int(bad.nonzero()[0]), float((got.float() - want[text].float()).abs().nan_to_num(1e9).max()), flush=True)
                if added: runs[name] = lambda c=c: variant(grad, dout, indices, c, True)
                else: runs[name] = lambda c=c: variant(torch.empty_like(weight), dout, indices, c)
            except Exception as e: print(kind, name, type(e).__name__, str(e)[:200], flush=True)
        if kind == "backward" and v > 256:
            runs["new, skewed"] = lambda: variant(torch.empty_like(weight), dout, skewed, full(cfgs["new"]))
            runs["head, skewed"] = lambda: variant(torch.empty_like(weight), dout, skewed, full(cfgs["head"]))
        call = {"dout": dout, "indices": indices, **({"dweight": weight} if added else {"weight": weight}), "padding_idx": -1}
        moved = OPS[f"embedding_{kind}"].spec.moved(call, () if added else (weight,))
        half = torch.randn(moved // 8, device="cuda"); other = torch.empty_like(half)
        runs["copy"] = lambda: other.copy_(half)
        try: made = timing.compare(runs, where, budget_ms=1e3 * budget / len(runs))
        except Exception as e: print(kind, type(e).__name__, str(e)[:200], flush=True); continue
        cp = made.timings["copy"].us
        print(kind, m, v, n, dtype, f"copy {cp:.1f}, noise {made.noise:.3f},", {k: f"{t.us:.1f} ({cp / t.us:.3f})" for k, t in sorted(made.timings.items(), key=lambda i: i[1].us) if k != "copy"}, f"after {time.time() - START:.0f} s", flush=True)
        del indices, dout, weight, grad, half, other, runs, want

if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.5)
