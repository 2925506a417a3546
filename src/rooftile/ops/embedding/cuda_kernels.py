"""Rows of a table in CUDA C++: a warp a row; backward sorted tokens dealt out evenly, and a sort of our own before it.

Bytes of the backward at GPT-2's step (32768 tokens, 50304 rows of 768 bfloat16): 50 MB of dout read and 77 MB of dweight written are 30 us at
4.2 TB/s. 16 warps of 12 vectors in flight are 96 KB a multiprocessor, where 4200 GB/s over 700 ns ask for 22.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.launch import cdiv, processors, rows
from rooftile.ops.embedding.reference import check_indices

WARPS = BLOCK // 32
KEY = {torch.int16: "short", torch.int32: "int", torch.int64: "long long"}
SORT_WARPS = 16  # of a block of the sort, unless the config says more
SORT_WORDS = 24 * 1024  # rows of a range, and steps of 32 indices, that all warps of the sort keep: 96 KiB a block
TABLE_ROWS = 512  # a thread each of a block of 16 warps
SHARE_TOKENS = 8192  # of a block that sorts them in shared memory, twice 32 KiB
DEAL_WARPS = 8  # of a block that deals its part of the tokens, 256 or a multiple
PARTS = 1024  # at most: two words each beside the counters of the sort
SORT_BYTES = 2**27  # of indices, read by all blocks of the sort together: 24 us of the L2, about what torch's sort takes


def _lanes(x, n, stride):
    """(elements an access, accesses a lane, strips of columns): 16 bytes an access where rows allow it, and as few idle lanes as can be."""
    width = 16 // x.itemsize
    if x.data_ptr() % 16 or n % width or stride % width:
        width = 1
    return width, *_strips(n, width)


def _strips(n, width):
    """(accesses of `width` elements a lane, strips of columns) of a row."""
    need = cdiv(n, 32 * width)
    vectors = min(range(1, 5), key=lambda v: cdiv(need, v) * (v + 1))  # a strip costs one more than its accesses
    return vectors, cdiv(need, vectors)


def _gather(source):
    def embedding(indices, weight, padding_idx, *, config):
        check_indices(indices, weight.shape[0])
        weight, v, n, stride = rows(weight)
        out = weight.new_empty((*indices.shape, n))
        if not out.numel():
            return out
        indices, m, per = indices.contiguous(), indices.numel(), config["rows"]
        width, vectors, strips = _lanes(weight, n, stride)
        instance = f"gather<{CTYPE[weight.dtype]}, {width}, {vectors}, {per}>"
        launch(source, instance, cdiv(cdiv(m, per) * strips, WARPS), BLOCK, out, indices, weight, m, v, n, stride, strips)
        return out

    return embedding


def _sorted(source, indices, v, padding_idx):
    """Keys and tokens as torch's stable sort leaves them, the borders of every row's segment, and what the keys count from."""
    m, narrow = indices.numel(), v < 2**16  # and v itself, for those that go nowhere
    base = -(2**15) if narrow else 0
    keys = indices.new_empty(m, dtype=torch.int16 if narrow else torch.int32)
    key = KEY[keys.dtype]
    launch(source, f"keys<{key}>", cdiv(m, BLOCK), BLOCK, keys, indices, m, v, padding_idx, base)
    ordered, order = keys.sort(stable=True)
    borders = indices.new_empty(v + 1, dtype=torch.int32)
    launch(source, f"search<{key}>", cdiv(v + 1, BLOCK), BLOCK, borders, ordered, m, v, base)
    return ordered, order, borders, base


def _ranges(source, indices, dweight, padding_idx, per, warps):
    """The same by blocks that own a range of rows each, and in dweight the zeros of rows that nobody asked for."""
    (v, n), m = dweight.shape, indices.numel()
    width = 16 // dweight.itemsize if n * dweight.itemsize % 16 == 0 else 1
    steps, share, blocks = _ranges_of(indices, v, per, warps)
    keys, order = indices.new_empty(m, dtype=torch.int32), indices.new_empty(m, dtype=torch.int32)
    borders = indices.new_empty(v + 1, dtype=torch.int32)
    launch(source, f"sort<{warps}, {CTYPE[dweight.dtype]}, {width}>", blocks, 32 * warps, dweight, keys, order, borders, indices, m, v, n, padding_idx,
           share, steps, shared=4 * warps * (share + steps))  # fmt: skip
    return keys, order, borders, 0


def _dealt(source, indices, v, padding_idx, warps):
    """As _sorted in two launches: tokens are dealt to ranges of rows first, and a block sorts those of its own. Last what was dealt, and how."""
    m = indices.numel()
    steps, parts, share, ranges = _dealt_of(indices, v, warps)
    dealt, begins = (indices.new_empty(size, dtype=torch.int32) for size in ((m, 2), (ranges + 1, parts)))
    keys, order = (indices.new_empty(m, dtype=torch.int32) for _ in range(2))
    borders = indices.new_empty(v + 1, dtype=torch.int32)
    launch(source, f"deal<{DEAL_WARPS}>", parts, 32 * DEAL_WARPS, dealt, begins, indices, m, v, padding_idx, share, ranges, steps,
           shared=4 * DEAL_WARPS * ranges)  # fmt: skip
    launch(source, f"sort<{warps}>", ranges, 32 * warps, keys, order, borders, dealt, begins, v, share, parts, 32 * DEAL_WARPS * steps,
           shared=4 * (warps * share + 2 * parts))  # fmt: skip
    return keys, order, borders, 0, dealt, begins, share, parts, ranges


def _dealt_of(indices, v, warps):
    """(steps of a warp, parts, rows of a range, ranges): a multiprocessor a range, more where its counters would not fit."""
    m = indices.numel()
    steps = max(1, cdiv(m, 32 * DEAL_WARPS * PARTS))
    share = max(1, min(cdiv(v, processors(indices)), SORT_WORDS // warps))
    return steps, max(1, cdiv(m, 32 * DEAL_WARPS * steps)), share, cdiv(v, share)


def _ranges_of(indices, v, per, warps=SORT_WARPS):
    """(steps of a warp, rows of a block, blocks) of the sort: `per` multiprocessors a block, more blocks where a range would not fit."""
    steps = cdiv(indices.numel(), 32 * warps)
    share = max(1, min(cdiv(v, max(1, processors(indices) // per)), SORT_WORDS // warps - steps))
    return steps, share, cdiv(v, share)


def _warp_row(source):
    def embedding_backward(dout, indices, weight, padding_idx):
        v, n = weight.shape
        dweight, (dout, _, _, stride) = weight.new_empty((v, n)), rows(dout)
        if not dweight.numel():
            return dweight
        _, order, borders, _ = _sorted(source, indices.contiguous(), v, padding_idx)
        width, vectors, strips = _lanes(dout, n, stride)
        instance = f"sums<{CTYPE[dout.dtype]}, {width}, {vectors}>"
        launch(source, instance, cdiv(v * strips, WARPS), BLOCK, dweight, dout, order, borders, v, n, stride, strips)
        return dweight

    return embedding_backward


def _balanced(source, sort, clears=True):
    """clears: rows that nobody asked for are left to the sums, and not written by the sort."""

    def embedding_backward(dout, indices, weight, padding_idx, *, config):
        dweight = weight.new_empty(weight.shape)
        if dweight.numel():
            _sum_rows(source, sort, dweight, dout, indices, padding_idx, config, clears, False)
        return dweight

    return embedding_backward


def _accumulated(source, sort):
    def embedding_accumulate(dout, indices, grad, padding_idx, *, config):
        if dout.numel():
            _sum_rows(source, sort, grad, dout, indices, padding_idx, config, False, True)

    return embedding_accumulate


def _sum_rows(source, sort, to, dout, indices, padding_idx, config, clears, added):
    (v, n), (dout, m, _, stride) = to.shape, rows(dout)
    keys, order, borders, base, *early = sort(indices.contiguous(), to, padding_idx, config)
    dealt, begins, of, parts, ranges = early or (borders, borders, 0, 0, 0)
    width, vectors, strips = _lanes(dout, n, stride)
    span = config["span"]
    spans = cdiv(m, span)
    partial, four = dout.new_empty((2 * spans, n), dtype=torch.float32), 1 if n % 4 else 4
    dtype, key, blocks, share = CTYPE[dout.dtype], KEY[keys.dtype], cdiv(spans * strips, WARPS), 0
    pieces = 2 if clears and ranges and blocks <= 2 * ranges else 0
    if pieces:  # all blocks are there while the sort goes on, and do not wait for it to know who is empty
        blocks = ranges * pieces
    elif clears:  # at most 32 rows a warp
        blocks = max(blocks, cdiv(v, 32 * WARPS))
        share = cdiv(v, blocks * WARPS)
    full, more = "true" if strips * vectors * 32 * width == n else "false", ", true" if added else ""
    launch(source, f"sums<{dtype}, {key}, {KEY[order.dtype]}, {width}, {vectors}, {config['tokens']}, {full}{more}>",
           blocks, BLOCK, to, partial, dout, keys, order, borders, v, base, n, stride, strips, span, share, dealt, begins, of, parts, pieces,
           shared=4 * cdiv(of, 32) if pieces else 0)  # fmt: skip
    launch(source, f"join<{dtype}, {key}, {four}{more}>", (cdiv(spans, BLOCK), cdiv(n, 8 * four)), BLOCK, to, partial, keys, borders, v,
           base, n, span)  # fmt: skip


def _shares(source):
    def embedding_backward(dout, indices, weight, padding_idx, *, config):
        v, n = weight.shape
        dweight, (dout, m, _, stride) = weight.new_empty((v, n)), rows(dout)
        if not dweight.numel():
            return dweight
        width, tokens, warps = config["width"], config["tokens"], config["warps"]
        if warps == 32 and dout.itemsize == 4:
            tokens //= 2  # 64 registers a thread
        if dout.data_ptr() % (width * dout.itemsize) or n % width or stride % width:
            width = 1
        strips = cdiv(n, 32 * width)
        # one wave of blocks; and as many tokens as two rows each, or tables would be what moves
        shares = max(1, min(processors(dout) // strips, m // (2 * v)), cdiv(m, SHARE_TOKENS))
        share = max(1, cdiv(m, shares))
        shares = max(1, cdiv(m, share))
        partial = dweight if shares == 1 else dout.new_empty((shares, v * n), dtype=torch.float32)
        instance = f"sums<{CTYPE[dout.dtype]}, {CTYPE[partial.dtype]}, {width}, {tokens}, {warps}>"
        words = warps * 64 * width + (warps + 1) * v + share + cdiv(share, 32 * warps) * 32 * warps
        launch(source, instance, (shares, strips), 32 * warps, partial, dout, indices.contiguous(), m, v, n, stride, padding_idx, share,
               shared=4 * words)  # fmt: skip
        if shares > 1:
            add_rows(partial, dweight.view(-1))
        return dweight

    return embedding_backward


def _table(call):
    """What the rows are of: the weight, or the gradient that is added to."""
    return call["weight"] if "weight" in call else call["dweight"]


def _refuses(call):
    m, v = call["indices"].numel(), _table(call).shape[0]
    if max(m, v) >= 2**31:
        return f"there are {m} indices into {v} rows, and it counts both in 32 bits"
    return off_gpu(call["dout"])


def _many(call):
    """Why the sort by ranges cannot, or None: the hits of every step lie in shared memory."""
    m, most = call["indices"].numel(), 16 * SORT_WORDS  # half of the words
    return f"there are {m} indices, and a block of its sort keeps track of {most} at most" if m > most else _refuses(call)


def _long(call):
    """Why tokens cannot be dealt to ranges of this weight, or None: every warp has a counter for each."""
    m, v, most = call["indices"].numel(), _table(call).shape[0], SORT_WORDS // DEAL_WARPS
    *_, ranges = _dealt_of(call["indices"], v, 32)
    if ranges > most:
        return f"{v} rows are {ranges} ranges, and a block deals its tokens to {most} at most"
    return f"there are {m} indices, and the last part of 2^30 must end below 2^31" if m > 2**30 else _refuses(call)


def _in_place(call):
    """Why a gradient cannot be added to where it lies, or None."""
    dweight = call["dweight"]
    if not dweight.is_contiguous():
        return f"dweight has strides {tuple(dweight.stride())}, and it is added to in rows of neighbours"
    return misaligned(16, {"dweight": dweight}) or _long(call)


def _few_rows(call):
    """Why tables of sums are not for this weight, or None."""
    v, n = call["weight"].shape
    if v * n >= 2**31:
        return f"the weight has {v * n} elements, and it counts them in 32 bits"
    return f"the weight has {v} rows, and a table of sums {TABLE_ROWS} at most" if v > TABLE_ROWS else _refuses(call)


def _slow(call):
    """Why torch's sort is sooner, or None."""
    indices, v = call["indices"], call["weight"].shape[0]
    read = 8 * indices.numel() * _ranges_of(indices, v, 1)[2]
    return (
        f"its sort would read {read} bytes of indices, more than the {SORT_BYTES} that torch's takes as long for"
        if read > SORT_BYTES
        else None
    )


# 4 tokens of 3 vectors of a 768-column row are 6 KB a warp. A span of 16 tokens is one look at keys and borders; 48 keep a third of the partial sums
_SPANS = tuple({"tokens": t, "span": s} for t, s in ((4, 16), (2, 16), (4, 48), (2, 48)))
# 32 warps a block halve what a warp reads of the indices in its two walks
_RANGES = tuple(
    {"tokens": t, "span": s, "per": p, "warps": w}
    for t, s, p, w in ((2, 16, 1, 32), (4, 16, 1, 32), (2, 16, 1, 16), (4, 16, 1, 16), (2, 16, 2, 16), (4, 48, 1, 32), (2, 48, 1, 16))
)
# 248 tokens a range at GPT-2's step are one step of 8 warps; more warps share a text's most frequent tokens
_DEALT = tuple(
    {"tokens": t, "span": s, "warps": w}
    for t, s, w in ((4, 16, 8), (2, 16, 8), (4, 16, 16), (2, 16, 16), (4, 16, 32), (2, 16, 32), (4, 48, 16), (2, 48, 8))
)
# 32 columns a warp and element of width. 4: 22 shares of 1490 tokens, 17 MB of tables at 256 rows of 768; 2: half the tables, sorts twice as long
_SHARES = tuple(
    {"width": w, "tokens": t, "warps": b} for w, t, b in ((2, 8, 32), (4, 4, 32), (2, 4, 32), (2, 8, 16), (4, 8, 16), (4, 4, 16))
)
# added to: one token, and with a row's last what is there, or two
_ADDED = ({"tokens": 1, "span": 16, "warps": 8}, *_DEALT)


def pick_dealt(call):
    """4 tokens on their way where they are at most 12 vectors: of more one block fits a multiprocessor."""
    return _DEALT[0 if _vectors(call) <= 3 else 1]


def pick_added(call):
    """Two tokens at a time with what is there are half of the trips, and a thirtieth of float32's time; of 4 vectors each there are no registers for them."""
    return _ADDED[2 if _vectors(call) <= 3 else 0]


def _vectors(call):
    return _strips(_table(call).shape[1], 16 // call["dout"].itemsize)[0]


DEALT, SHARES, RANGES, BALANCED, ROW = (
    Source.beside(__file__, f"{name}.cu") for name in ("v5_dealt", "v4_shares", "v3_ranges", "v2_balanced", "v1_warp_row")
)


def _by_parts(indices, dweight, padding_idx, config):
    return _dealt(DEALT, indices, dweight.shape[0], padding_idx, config["warps"])


def _kernels():
    def by_ranges(indices, dweight, padding_idx, config):
        return _ranges(RANGES, indices, dweight, padding_idx, config["per"], config["warps"])

    def by_torch(indices, dweight, padding_idx, config):
        return _sorted(ROW, indices, dweight.shape[0], padding_idx)

    yield Kernel("cuda.v5_dealt", _balanced(BALANCED, _by_parts), "tokens dealt to ranges of rows first, which then sort their own", _long, _DEALT,
                 pick_dealt, sources=(DEALT, BALANCED))  # fmt: skip
    yield Kernel("cuda.v4_shares", _shares(SHARES), "a block sorts its share in shared memory, sums in registers", _few_rows, _SHARES,
                 sources=(SHARES, ADD_ROWS))  # fmt: skip
    yield Kernel("cuda.v3_ranges", _balanced(BALANCED, by_ranges, clears=False), "sorted in one launch by blocks that own ranges of rows, and write zeros", _many, _RANGES,
                 sources=(RANGES, BALANCED), declines=_slow)  # fmt: skip
    yield Kernel("cuda.v2_balanced", _balanced(BALANCED, by_torch), "sorted tokens dealt out evenly, long segments joined", _refuses, _SPANS,
                 sources=(BALANCED, ROW))  # fmt: skip
    yield Kernel("cuda.v1_warp_row", _warp_row(ROW), "a warp a row", _refuses, sources=(ROW,))


BACKWARD = tuple(_kernels())
ACCUMULATE = (
    Kernel("cuda.v5_dealt", _accumulated(BALANCED, _by_parts), "the same, a row's sums added to what is there, the others left alone", _in_place, _ADDED,
           pick_added, sources=(DEALT, BALANCED)),
)  # fmt: skip
# 64 warps a multiprocessor with one row of 768 bfloat16 each are 96 KB in flight; more rows a warp are fewer warps that wait for an index
_ROWS = tuple({"rows": r} for r in (1, 2, 4))
FORWARD = (
    Kernel("cuda.v1_warp_row", _gather(ROW), "a warp a row, 16 bytes a lane", lambda call: off_gpu(call["weight"]), _ROWS, sources=(ROW,)),
)
