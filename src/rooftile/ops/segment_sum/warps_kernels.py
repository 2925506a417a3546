"""Rows of one number by warps alone, beside the file of the other rungs and not in it: what was measured of those still speaks of them.

Floor: x read once; the offsets twice, E sums written. 24 warps with 4 KB each are 96 KB on their way a multiprocessor, where 4.2 TB/s over 700 ns ask for 22.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.segment_sum.cuda_kernels import JOINED, _not_numbers
from rooftile.ops.segment_sum.reference import check_offsets

WARPS = Source.beside(__file__, "v7_warps.cu")
SIZE = 1024  # numbers of a tile
LONGEST = 1 << 20  # tiles of a stretch, within which numbers are counted in 32 bits
# warps a multiprocessor: the 24 that it holds, all of equal stretches, or several times that, so that whoever is done first takes the next
CONFIGS = tuple({"block": b, "per_sm": p} for b, p in ((256, 24), (128, 24), (128, 48), (256, 48), (128, 96), (256, 96)))


def by_warps(x, offsets, *, config):
    check_offsets(offsets, x.shape[0])
    m, e, warps = x.shape[0], offsets.numel() - 1, config["block"] // 32
    out, offsets = x.new_empty((e, 1)), offsets.contiguous()
    if not e:
        return out
    every = cdiv(m, SIZE)
    tiles = min(max(1, cdiv(every, config["per_sm"] * processors(x))), LONGEST)
    # one block at least: `join` looks at offsets as soon as the launch before it is its own operator's
    blocks = max(1, cdiv(every, tiles * warps))
    partial = x.new_empty(2 * blocks, dtype=torch.float32)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    launch(WARPS, f"chunks<{types}, {config['block']}>", blocks, config["block"], out, partial, x.contiguous(), offsets, m, e, tiles)
    launch(WARPS, f"join<{types}>", cdiv(e, JOINED * BLOCK), BLOCK, out, partial, offsets, m, e, tiles * warps)
    return out


FORWARD = (
    Kernel("cuda.v7_warps", by_warps, "rows of one number: a warp a stretch, numbers in registers, scans over lanes and no barrier", _not_numbers, CONFIGS,
           sources=(WARPS,)),
)  # fmt: skip
