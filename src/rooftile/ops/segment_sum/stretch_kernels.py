"""Rows that the copy engine brings, beside the file of the other rungs and not in it: what was measured of those still speaks of them.

Floor: x read once; E rows written. Of each multiprocessor's shared memory 192 KB are under way, where 4.2 TB/s over 700 ns ask for 22.
"""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.segment_sum.reference import check_offsets

STRETCH = Source.beside(__file__, "v6_stretch.cu")
LANES, STRIPS = 8, 16  # 128 bytes of a row a warp, 16 warps at most
# 16 KB a tile, 4 of them: 3 blocks a multiprocessor, 192 KB under way
STAGES = tuple(
    {"per_sm": p, "kbytes": k, "stages": s} for p, k, s in ((3, 16, 4), (2, 16, 6), (2, 32, 3), (4, 8, 6), (6, 8, 4), (1, 32, 6), (6, 16, 4), (12, 16, 4))
)


def stretched(x, offsets, *, config):
    check_offsets(offsets, x.shape[0])
    (m, n), e = x.shape, offsets.numel() - 1
    out = x.new_empty((e, n))
    if not out.numel():
        return out
    offsets, size = offsets.contiguous(), n * x.itemsize
    strips, tile = cdiv(size, 16 * LANES), max(1, config["kbytes"] * 1024 // size)
    share = max(tile, cdiv(m, config["per_sm"] * processors(x)))
    blocks = max(1, cdiv(m, share))  # one at least: `join` looks at offsets as soon as the launch before it is its own operator's
    partial = x.new_empty((2 * blocks, n), dtype=torch.float32)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    launch(STRETCH, f"stretches<{types}, {LANES}, {config['stages']}>", blocks, 32 * (strips + 1), out, partial, x, offsets, m, e, n, share, tile,
           shared=config["stages"] * tile * size)  # fmt: skip
    launch(STRETCH, f"join<{types}>", cdiv(e, BLOCK), BLOCK, out, partial, offsets, m, e, n, share)
    return out


def _not_side_by_side(call):
    """Why the copy engine cannot bring these rows, or None."""
    x = call["x"]
    size, most = x.shape[1] * x.itemsize, 16 * LANES * STRIPS
    if size % 16 or size > most:
        return f"rows of x have {size} bytes, it takes multiples of 16 up to {most}"
    if not x.is_contiguous():
        return f"rows of x are {x.stride(0)} numbers apart and have {x.shape[1]}, it takes rows side by side"
    return misaligned(16, {"x": x}) or off_gpu(x)


FORWARD = (
    Kernel("cuda.v6_stretch", stretched, "stretches of rows brought by the copy engine, a warp has a strip of every row", _not_side_by_side, STAGES,
           limits=Limits(shared_bytes=227 * 1024), architectures=(90,), sources=(STRETCH,)),
)  # fmt: skip
