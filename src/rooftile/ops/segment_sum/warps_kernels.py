"""Rows of one number by warps alone, beside the file of the other rungs and not in it: what was measured of those still speaks of them.

Floor: x read once; the offsets twice, E sums written. 24 warps with 4 KB each are 96 KB on their way a multiprocessor, where 4.2 TB/s over 700 ns ask for 22.
"""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.segment_sum.cuda_kernels import _not_numbers
from rooftile.ops.segment_sum.reference import check_offsets

WARPS = Source.beside(__file__, "v7_warps.cu")
SIZE, JOIN = 1024, 128  # numbers of a tile; threads of a block of `join`
LONGEST = 1 << 20  # tiles of a stretch, within which numbers are counted in 32 bits
# warps a multiprocessor: the 24 that it holds, all of equal stretches, or several times that, so that whoever is done first takes the next; or 16
CONFIGS = tuple({"block": b, "per_sm": p} for b, p in ((256, 24), (256, 72), (128, 24), (128, 72), (256, 48), (128, 48), (128, 16)))
MANY = 1 << 25  # numbers: three tiles and more for each of three waves of warps


def by_warps(x, offsets, *, config):
    check_offsets(offsets, x.shape[0])
    m, e, block = x.shape[0], offsets.numel() - 1, config["block"]
    out, offsets = x.new_empty((e, 1)), offsets.contiguous()
    if not e:
        return out
    every, warps, most = cdiv(m, SIZE), block // 32, config["per_sm"] * processors(x)
    tiles = min(max(1, cdiv(every, most)), LONGEST)
    # of few numbers, or none, more blocks than have any: segments are dealt out among all, so that each warp looks at its share whether they are empty
    blocks = max(cdiv(every, tiles * warps), min(cdiv(e, block), cdiv(most, warps)))
    share = cdiv(e, blocks * warps)
    head, opened = x.new_empty(blocks, dtype=torch.float32), x.new_empty((blocks, 4), dtype=torch.int32)
    types = f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"
    launch(WARPS, f"chunks<{types}, {block}>", blocks, block, out, head, opened, x.contiguous(), offsets, m, e, tiles, share)
    launch(WARPS, f"join<{types}>", cdiv(blocks, JOIN), JOIN, out, head, opened, offsets, m, e, blocks, share * warps)
    return out


def pick(call):
    """As an H200 has them: of many numbers of 4 bytes three waves of warps take a fiftieth less than one, of 2 bytes a twentieth more."""
    x = call["x"]
    return CONFIGS[1 if x.itemsize == 4 and x.shape[0] >= MANY else 0]


FORWARD = (
    Kernel("cuda.v7_warps", by_warps, "rows of one number: a warp a stretch, numbers in registers, scans over lanes and no barrier", _not_numbers, CONFIGS,
           pick, sources=(WARPS,), limits=Limits(spill_bytes_elsewhere=148)),  # sm_80, offsets of 64 bits: 37 registers
)  # fmt: skip
