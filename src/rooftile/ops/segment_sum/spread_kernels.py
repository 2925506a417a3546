"""The gradient of rows of one number by warps alone. Floor: dx written once; offsets read twice, dout once."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, dense_like, processors
from rooftile.ops.segment_sum.cuda_kernels import beyond_32_bits, of_one

SPREAD = Source.beside(__file__, "v8_spread.cu")
SIZE = 1024  # numbers of a tile
BUSY = 32  # warps that a multiprocessor holds
# a warp's tiles: few, so that who writes at one time writes near one another; not one, as each warp searches where it begins, unless there are few
CONFIGS = tuple(
    {"block": b, "tiles": t} for b, t in ((256, 3), (256, 4), (256, 1), (128, 3), (128, 4), (128, 1), (256, 2), (256, 6), (256, 8))
)


def pick(call):
    x = call["x"]
    wanted = CONFIGS[0 if x.itemsize == 4 else 1]
    return wanted if cdiv(x.shape[0], SIZE) >= wanted["tiles"] * BUSY * processors(x) else CONFIGS[2]


def by_warps(dout, x, offsets, *, config):
    dx, m, e, block, tiles = dense_like(x), x.shape[0], dout.shape[0], config["block"], config["tiles"]
    if not dout.numel():
        return dx.zero_()
    instance = f"spread<{CTYPE[dout.dtype]}, {CTYPE[offsets.dtype]}, {block}>"
    launch(SPREAD, instance, cdiv(m, SIZE * tiles * block // 32), block, dx, dout.contiguous(), offsets.contiguous(), m, e, tiles)
    return dx


def _refuse(call):
    return beyond_32_bits(call["offsets"]) or of_one(call["x"], "x")


BACKWARD = (
    Kernel("cuda.v8_spread", by_warps, "rows of one number: a warp a stretch, and every number counts the segments up to its place", _refuse, CONFIGS,
           pick, sources=(SPREAD,)),
)  # fmt: skip
