"""Sums over ragged segments in CUDA C++: atomics, a warp a segment, rows dealt out evenly, rows of one number. Backward the last three."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv, dense_like, power_of_2, processors, resident, rows
from rooftile.ops.segment_sum.reference import check_offsets


def _types(x, offsets):
    return f"{CTYPE[x.dtype]}, {CTYPE[offsets.dtype]}"


def _atomics(source, x, offsets, out):
    x, m, n, stride = rows(x)
    e = out.shape[0]
    sums = x.new_empty(out.shape, dtype=torch.float32)
    launch(source, "clear", cdiv(out.numel(), BLOCK), BLOCK, sums, out.numel())
    launch(source, f"add<{_types(x, offsets)}>", cdiv(m * n, BLOCK), BLOCK, sums, x, offsets, m, e, n, stride)
    launch(source, f"finish<{_types(x, offsets)}>", cdiv(out.numel(), BLOCK), BLOCK, out, sums, offsets, m, e, n)


def _warp(source, x, offsets, out):
    x, m, n, stride = rows(x)
    lanes, e = min(32, power_of_2(n)), out.shape[0]
    strips = cdiv(n, lanes)
    launch(
        source, f"segments<{_types(x, offsets)}, {lanes}>", cdiv(e * strips, BLOCK // 32), BLOCK, out, x, offsets, m, e, n, stride, strips
    )


def wide(x, n, stride):
    """(elements an access, lanes a row, strips of columns): 16 bytes an access where rows begin at multiples of 16, else element by element."""
    width = 16 // x.itemsize
    if x.data_ptr() % 16 or stride % width or n % width:
        width = 1
    lanes = min(32, power_of_2(cdiv(n, width)))
    return width, lanes, cdiv(n, lanes * width)


def _balanced(source, x, offsets, out, *, config):
    x, m, n, stride = rows(x)
    width, lanes, strips = wide(x, n, stride)
    chunk = 16 * max(1, cdiv(m * strips * lanes, 16 * resident(x, config["lanes"])))  # all chunks at once, or in a whole number of turns
    chunks, e = cdiv(m, chunk), out.shape[0]
    partial = x.new_empty((2 * chunks, n), dtype=torch.float32)
    types, groups = _types(x, offsets), BLOCK // lanes
    launch(source, f"chunks<{types}, {width}, {lanes}, {config['rows']}>", cdiv(chunks * strips, groups), BLOCK, out, partial, x, offsets, m,
           e, n, stride, strips, chunk)  # fmt: skip
    launch(source, f"borders<{types}, {width}, {lanes}>", cdiv(e * strips, groups), BLOCK, out, partial, offsets, m, e, n, strips, chunk)


def _numbers(source, x, offsets, out, *, config):
    each = config["each"]
    _stretched(source, x, offsets, out, config, f"{each}", 2 * _room(x, each) + 4 * BLOCK * each)


def _laid(source, x, offsets, out, *, config):
    each, stages = config["each"], config["stages"]
    beside = 0 if x.itemsize == 4 else 4 * BLOCK * each  # sums of 4 bytes lie in the place of the numbers
    _stretched(source, x, offsets, out, config, f"{each}, {stages}", stages * _room(x, each) + beside)


def _stretched(source, x, offsets, out, config, constants, shared):
    m, e, types = x.shape[0], out.shape[0], _types(x, offsets)
    blocks, tiles = _stretches(x, m, config)
    partial = x.new_empty(2 * blocks, dtype=torch.float32)
    launch(source, f"chunks<{types}, {constants}>", blocks, BLOCK, out, partial, x.contiguous(), offsets, m, e, tiles, shared=shared)
    launch(source, f"join<{types}, {config['each']}>", cdiv(e, JOINED * BLOCK), BLOCK, out, partial, offsets, m, e, tiles)


def _stretches(x, m, config):
    """(blocks, tiles of each). One block at least: `join` looks at offsets as soon as the launch before it is its own operator's."""
    every = cdiv(m, BLOCK * config["each"])
    tiles = max(1, cdiv(every, config["per_sm"] * processors(x)))
    return max(1, cdiv(every, tiles)), tiles


def _room(x, each):
    """Bytes of a tile in shared memory, where an odd number of vectors lies between two threads."""
    return BLOCK * 16 * (each * x.itemsize // 16 | 1)


def _spread_warp(source, dout, offsets, dx):
    dout, e, n, stride = rows(dout)
    width, lanes, strips = wide(dout, n, stride)
    instance = f"spread<{_types(dout, offsets)}, {width}, {lanes}>"
    launch(source, instance, cdiv((e + 2) * strips, BLOCK // 32), BLOCK, dx, dout, offsets, dx.shape[0], e, n, stride, strips)


def _spread_balanced(source, dout, offsets, dx, *, config):
    (dout, e, n, stride), m, chunk = rows(dout), dx.shape[0], config["rows"]
    width, lanes, strips = wide(dout, n, stride)
    instance = f"spread<{_types(dout, offsets)}, {width}, {lanes}>"
    launch(source, instance, cdiv(cdiv(m, chunk) * strips, BLOCK // lanes), BLOCK, dx, dout, offsets, m, e, n, stride, strips, chunk)


def _spread_numbers(source, dout, offsets, dx, *, config):
    each = config["each"]
    blocks, tiles = _stretches(dx, dx.shape[0], config)
    launch(source, f"spread<{_types(dout, offsets)}, {each}>", blocks, BLOCK, dx, dout.contiguous(), offsets, dx.shape[0], dout.shape[0],
           tiles, shared=_room(dx, each) + BLOCK * each * dx.itemsize)  # fmt: skip


def of_one(x, name):
    """Why rows of x are not for the rung of numbers, or None."""
    if x.shape[1] != 1:
        return f"rows of {name} have {x.shape[1]} numbers, it takes rows of 1"
    return off_gpu(x)


def beyond_32_bits(offsets):
    """Why there are too many segments, or None."""
    segments = offsets.numel() - 1
    return f"there are {segments} segments, and it counts them in 32 bits" if segments >= 2**31 else None


def _not_numbers(call):
    x = call["x"]
    if (why := beyond_32_bits(call["offsets"])) is not None:
        return why
    if x.shape[1] == 1 and x.is_contiguous() and x.data_ptr() % 16:
        return f"x begins {x.data_ptr() % 16} bytes past a multiple of 16, and it reads 16 bytes at a time"
    return of_one(x, "x")


def _few(call):
    m = call["x"].shape[0]
    return f"x has {m} numbers, and to have more tiles on their way pays from {FEW}" if m < FEW else None


# 4 rows of 16 bytes a lane and 768 lanes: 48 KB in flight on a multiprocessor, all chunks at once
_ROWS = tuple(
    {"rows": r, "lanes": n} for r, n in ((4, 768), (8, 768), (4, 1024), (2, 768), (2, 1024), (4, 512), (4, 1536), (16, 512), (8, 1536))
)
# 16 float32 numbers a thread are 16 KB a block in flight and 57 KB of shared memory: 3 blocks a multiprocessor, 8 numbers 8 KB and 33 KB: 6
_TILES = tuple({"each": e, "per_sm": p} for e, p in ((16, 3), (8, 6), (16, 12), (8, 24), (16, 24), (32, 2), (32, 12)))
# 32 float32 numbers a thread in 3 stages are 111 KB of shared memory, 2 blocks a multiprocessor with 64 KB each on their way, and then 2 more: whoever is
# done first takes the next
_LAID = tuple({"each": e, "per_sm": p, "stages": s} for e, p, s in ((32, 4, 3), (32, 2, 3), (16, 3, 3), (16, 2, 5), (8, 6, 3), (16, 6, 3)))
JOINED = 4  # segments a thread of `join`
FEW = 1 << 23  # numbers: 4 tiles of 32 a thread for each of an H200's 264 blocks
_CHUNKS = tuple({"rows": r} for r in (128, 64, 32, 256, 512))
BACKWARD_RUNGS = (
    ("v4_numbers", _spread_numbers, "rows of one number: laid down where segments begin, carried on by the block", _TILES),
    ("v3_balanced", _spread_balanced, "rows dealt out evenly, a segment's gradient kept in registers", _CHUNKS),
    ("v2_warp", _spread_warp, "a warp a segment", ()),
)


def _on_a_gpu(call):
    return off_gpu(call["x"])


def _rung(name, launcher, idea, configs=(), refuse=_on_a_gpu, **more):
    source = Source.beside(__file__, f"{name}.cu")

    def segment_sum(x, offsets, **config):
        check_offsets(offsets, x.shape[0])
        out = x.new_empty((offsets.numel() - 1, x.shape[1]))
        if out.numel():
            launcher(source, x, offsets.contiguous(), out, **config)
        return out

    return Kernel(f"cuda.{name}", segment_sum, idea, refuse, configs, sources=(source,), **more)


def _backward_rung(name, launcher, idea, configs):
    source = Source.beside(__file__, f"{name}.cu")

    def segment_sum_backward(dout, x, offsets, **config):
        dx = dense_like(x)
        if not dout.numel():
            return dx.zero_()
        launcher(source, dout, offsets.contiguous(), dx, **config)
        return dx

    def refuse(call):
        return of_one(call["x"], "x") if launcher is _spread_numbers else off_gpu(call["x"])

    return Kernel(f"cuda.{name}", segment_sum_backward, idea, refuse, configs, sources=(source,))


FORWARD = (  # the highest first
    _rung("v5_laid", _laid, "rows of one number: sums laid down without a branch, more tiles ahead", _LAID, _not_numbers, declines=_few),
    _rung("v4_numbers", _numbers, "rows of one number: 16 bytes an access, sums joined by a scan over the block", _TILES, _not_numbers),
    _rung("v3_balanced", _balanced, "rows dealt out evenly, 16 bytes an access; sums that cross chunks added in order", _ROWS),
    _rung("v2_warp", _warp, "a warp a segment"),
    _rung("v1_atomics", _atomics, "a thread an element, atomics", varies="float32 atomics add the rows of a segment in any order"),
)
BACKWARD = tuple(_backward_rung(*rung) for rung in BACKWARD_RUNGS)
