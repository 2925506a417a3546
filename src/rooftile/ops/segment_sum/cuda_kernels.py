"""Sums over ragged segments in CUDA C++: atomics, a warp a segment, rows dealt out evenly."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv, power_of_2, resident, rows
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


def _balanced(source, x, offsets, out, *, config):
    x, m, n, stride = rows(x)
    e, width, batch = out.shape[0], 16 // x.itemsize, config["rows"]
    aligned = x.data_ptr() % 16 == 0
    flat = aligned and n == stride == 1
    if flat or not aligned or stride % width or n % width:  # rows that do not begin at multiples of 16 bytes go element by element
        width = 1
    lanes = min(32, power_of_2(cdiv(n, width)))
    strips = cdiv(n, lanes * width)
    chunk = 16 * max(1, cdiv(m * strips * lanes, 16 * resident(x, config["lanes"])))  # all chunks at once, or in a whole number of turns
    chunks = cdiv(m, chunk)
    partial = x.new_empty((2 * chunks, n), dtype=torch.float32)
    types, groups = _types(x, offsets), BLOCK // lanes
    launch(source, f"chunks<{types}, {width}, {lanes}, {batch}, {str(flat).lower()}>", cdiv(chunks * strips, groups), BLOCK, out, partial, x,
           offsets, m, e, n, stride, strips, chunk)  # fmt: skip
    launch(source, f"borders<{types}, {width}, {lanes}>", cdiv(e * strips, groups), BLOCK, out, partial, offsets, m, e, n, strips, chunk)


def pick(call):
    """8 rows of 16 bytes a lane take 80 registers, which leaves room for 768 lanes: 96 KB in flight on a multiprocessor, all chunks at
    once. Of rows of one number 16, which are 4 loads, in 48 registers on 1280 lanes."""
    return {"rows": 16, "lanes": 1280} if call["x"].shape[1] == 1 else {"rows": 8, "lanes": 768}


CONFIGS = tuple(
    {"rows": r, "lanes": n} for r, n in ((8, 768), (16, 1280), (4, 1280), (16, 512), (8, 1536), (4, 2560), (16, 2560), (8, 4096))
)
VARIES = "float32 atomics add the rows of a segment in any order"
RUNGS = (  # name, launcher, idea, configs, pick, why it varies; the highest first
    ("v3_balanced", _balanced, "rows dealt out evenly, 16 bytes an access; sums that cross chunks added in order", CONFIGS, pick, ""),
    ("v2_warp", _warp, "a warp a segment", (), None, ""),
    ("v1_atomics", _atomics, "a thread an element, atomics", (), None, VARIES),
)


def _rung(name, launcher, idea, configs, choose, varies):
    source = Source.beside(__file__, f"{name}.cu")

    def segment_sum(x, offsets, **config):
        check_offsets(offsets, x.shape[0])
        out = x.new_empty((offsets.numel() - 1, x.shape[1]))
        if out.numel():
            launcher(source, x, offsets.contiguous(), out, **config)
        return out

    return Kernel(f"cuda.{name}", segment_sum, idea, lambda call: off_gpu(call["x"]), configs, choose, sources=(source,), varies=varies)


FORWARD = tuple(_rung(*rung) for rung in RUNGS)
