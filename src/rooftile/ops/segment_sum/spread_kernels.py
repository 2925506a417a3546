"""The gradient of rows of one number by warps alone. Floor: dx written once; offsets read twice, dout once."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, dense_like, processors
from rooftile.ops.segment_sum.cuda_kernels import of_one

SPREAD = Source.beside(__file__, "v8_spread.cu")
SIZE = 1024  # numbers of a tile
# warps a multiprocessor: the 32 that it holds, or several times that, so that whoever is done first takes the next
CONFIGS = tuple({"block": b, "per_sm": p} for b, p in ((128, 128), (256, 32), (256, 64), (128, 32), (256, 128), (256, 512)))


def by_warps(dout, x, offsets, *, config):
    dx, m, e, warps = dense_like(x), x.shape[0], dout.shape[0], config["block"] // 32
    if not dout.numel():
        return dx.zero_()
    every = cdiv(m, SIZE)
    tiles = max(1, cdiv(every, config["per_sm"] * processors(x)))
    instance = f"spread<{CTYPE[dout.dtype]}, {CTYPE[offsets.dtype]}, {config['block']}>"
    launch(SPREAD, instance, cdiv(every, tiles * warps), config["block"], dx, dout.contiguous(), offsets.contiguous(), m, e, tiles)
    return dx


def _refuse(call):
    return of_one(call["x"], "x")


BACKWARD = (
    Kernel("cuda.v8_spread", by_warps, "rows of one number: a warp a stretch, and every number counts the segments up to its place", _refuse, CONFIGS,
           sources=(SPREAD,)),
)  # fmt: skip
