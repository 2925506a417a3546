"""Rows of a table by the copy engine, beside the file of the rungs before it and not in it: what was measured of those still speaks of them.

Floor: the rows asked for, read and written. 200 KB under way a multiprocessor, where 4.2 TB/s over 700 ns ask for 22: rows from all over a large table
are longer on their way.
"""

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import uneven
from rooftile.ops._shared.launch import cdiv, rows
from rooftile.ops.embedding.reference import check_indices

BULK = Source.beside(__file__, "v6_bulk.cu")
BYTES = tuple({"bytes": b * 1024} for b in (16, 8, 32, 24))  # a block; of 16 KB 13 are in a multiprocessor


def bulk(indices, weight, padding_idx, *, config):
    check_indices(indices, weight.shape[0])
    weight, v, n, stride = rows(weight)
    out, m, size = weight.new_empty((*indices.shape, n)), indices.numel(), n * weight.itemsize
    if not out.numel():
        return out
    strip = min(size, config["bytes"])
    per = min(32, config["bytes"] // strip)
    launch(BULK, f"gather<{CTYPE[weight.dtype]}>", (cdiv(m, per), cdiv(size, strip)), 32, out, indices.contiguous(), weight, m, v, size, stride,
           per, strip, shared=per * strip)  # fmt: skip
    return out


def _even(call):
    """Why the copy engine cannot bring these rows, or None."""
    weight = call["weight"]
    size, most = weight.shape[1] * weight.itemsize, 65535 * 8 * 1024
    return f"a row of {size} bytes, and its strips are {most} at most" if size > most else uneven({"weight": weight}) or off_gpu(weight)


FORWARD = (
    Kernel("cuda.v6_bulk", bulk, "whole rows through shared memory, by the copy engine", _even, BYTES, limits=Limits(shared_bytes=227 * 1024),
           architectures=(90,), sources=(BULK,)),
)  # fmt: skip
