"""The gradient of a table, added where its tokens are sorted; beside the file of the rungs before it and not in it: what was measured of those still speaks of
them.

Bytes at GPT-2's step (32768 tokens, 50304 rows of 768 bfloat16): 50 MB of dout read and 77 MB of dweight written are 30 us at 4.2 TB/s. Dealing and
sorting are some 8 us in which nothing moves, once; a launch that sums, and one that joins, are spared.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv, processors, rows
from rooftile.ops.embedding.cuda_kernels import DEAL_WARPS, PARTS, SORT_WORDS, WARPS, _lanes, _refuses

ADDED = Source.beside(__file__, "v7_added.cu")
FEW = 8  # tokens of a row that are added at once; a slot lies at every 8th sorted place
SORT = 8  # warps of a block that sorts and adds
ROWS = 1024  # of a range, for its counters: 36 KiB of shared memory, and 8 for the parts
RANGES = SORT_WORDS // DEAL_WARPS  # at most: each of 8 warps that deal has a counter for each
_CONFIGS = tuple({"per": p, "tokens": t} for p, t in ((4, 4), (4, 2), (2, 4), (3, 2), (6, 4), (6, 2), (8, 4), (8, 2)))


def _ranges_of(indices, v, per):
    """(rows of a range, ranges): `per` ranges a multiprocessor, and more where their counters would not fit."""
    ranges = min(v, max(per * processors(indices), cdiv(v, ROWS)))
    return cdiv(v, ranges), ranges


def added(dout, indices, weight, padding_idx, *, config):
    (v, n), (dout, m, _, stride) = weight.shape, rows(dout)
    dweight, indices, warps, tokens = weight.new_empty((v, n)), indices.contiguous(), SORT, config["tokens"]
    if not dweight.numel():
        return dweight
    steps = max(1, cdiv(m, 32 * DEAL_WARPS * PARTS))
    parts, slots = max(1, cdiv(m, 32 * DEAL_WARPS * steps)), cdiv(m, FEW)
    share, ranges = _ranges_of(indices, v, config["per"])
    dealt, begins = (indices.new_empty(size, dtype=torch.int32) for size in ((m, 2), (ranges + 1, parts)))
    launch(ADDED, f"deal<{DEAL_WARPS}>", parts, 32 * DEAL_WARPS, dealt, begins, indices, m, v, padding_idx, ranges, steps,
           shared=4 * DEAL_WARPS * ranges)  # fmt: skip
    width, vectors, strips = _lanes(dout, n, stride)
    tasks, arrived, sorted_ = (indices.new_empty(size, dtype=torch.int32) for size in ((slots, 4), (slots, strips), (m, 2)))
    launch(ADDED, f"few<{CTYPE[dout.dtype]}, {width}, {vectors}, {tokens}, {warps}>", ranges, 32 * warps, dweight, tasks, arrived, sorted_, dout, dealt, begins,
           v, share, parts, 32 * DEAL_WARPS * steps, slots, n, stride, strips, shared=4 * (warps * share + share + 1 + 2 * parts))  # fmt: skip
    if m > FEW:
        partial = dout.new_empty((slots, n), dtype=torch.float32)
        launch(ADDED, f"many<{CTYPE[dout.dtype]}, {width}, {vectors}, {4 if vectors <= 3 else 2}>", cdiv(slots * strips, WARPS), BLOCK, dweight, partial, arrived, dout, tasks, sorted_,
               slots, n, stride, strips)  # fmt: skip
    return dweight


def _long(call):
    (m, v), most = (call["indices"].numel(), call["weight"].shape[0]), RANGES * ROWS
    if m > 2**30:
        return f"there are {m} indices, and the last part of 2^30 must end below 2^31"
    return f"the weight has {v} rows, and ranges of {ROWS} are {most} at most" if v > most else _refuses(call)


BACKWARD = (
    Kernel("cuda.v7_added", added, "tokens added by who sorts their range of rows, a row of many in chunks by whoever is free", _long, _CONFIGS,
           sources=(ADDED,)),
)  # fmt: skip
