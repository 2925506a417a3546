"""Padding and causal masks in CUDA C++: an element a thread, 16 bytes a thread, and a head's rows by the block."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, power_of_2
from rooftile.ops.attention_mask.reference import check_lengths

BLOCK = 256
FEW = 1 << 22  # bytes
V3 = Source.beside(__file__, "v3_rows.cu")


def _launch(source, shape, lengths, queries, keys, causal, repeats, to, rows=0):
    """`shape`: of a mask, blocks, threads and what the kernel is told of the sizes."""
    check_lengths(lengths, keys)
    b, g = lengths.shape
    dtype = getattr(torch, to)
    mask = lengths.new_empty((b, g * repeats, queries, keys), dtype=dtype)
    element = "unsigned char" if to == "bool" else CTYPE[dtype]
    instance = f"attention_mask<{element}, {CTYPE[lengths.dtype]}, {'true' if causal else 'false'}{f', {rows}' if rows else ''}>"
    blocks, block, size = shape(mask)
    launch(source, instance, blocks, block, mask, lengths, size, queries, keys, g, repeats, *lengths.stride())
    return mask


def _rung(name, width, idea):
    source = Source.beside(__file__, f"{name}.cu")

    def flat(mask):
        return cdiv(mask.numel(), BLOCK * (width // mask.itemsize or 1)), BLOCK, mask.numel()

    def attention_mask(lengths, queries, keys, causal, repeats, to):
        return _launch(source, flat, lengths, queries, keys, causal, repeats, to)

    return Kernel(f"cuda.{name}", attention_mask, idea, lambda call: off_gpu(call["lengths"]), sources=(source,))


def _vectors(keys, to):
    return keys * getattr(torch, to).itemsize // 16


def _lanes(keys, to):
    return min(BLOCK, power_of_2(_vectors(keys, to)))


def _rows(lengths, queries, keys, causal, repeats, to, *, config):
    lanes = _lanes(keys, to)
    tiles = cdiv(queries, BLOCK // lanes * config["rows"])

    def tiled(mask):
        return lengths.numel() * repeats * tiles, (lanes, BLOCK // lanes), tiles

    return _launch(V3, tiled, lengths, queries, keys, causal, repeats, to, config["rows"])


def _whole(call):
    """Why a row is no whole vectors, or None."""
    if why := off_gpu(call["lengths"]):
        return why
    past = call["keys"] * getattr(torch, call["to"]).itemsize % 16
    return f"a row ends {past} bytes past a multiple of 16, and it writes 16 bytes at a time" if past else None


def _few(call):
    vectors = call["queries"] * _vectors(call["keys"], call["to"])
    if vectors < BLOCK:
        return f"a head has {vectors} vectors of 16 bytes, and a block takes {BLOCK} of one head at a time"
    size = 16 * vectors * call["lengths"].numel() * call["repeats"]
    return f"the mask has {size} bytes, and blocks of a head's rows pay from {FEW}" if size < FEW else None


def pick(call):
    """Two vectors a thread: more write the memory in a less even order, and of one the way to it is most of the work. Of 4 bytes an entry, two lie in one row."""
    lanes = _lanes(call["keys"], call["to"])
    long = call["to"] == "float32" and _vectors(call["keys"], call["to"]) >= 2 * BLOCK
    return ROWS[1] if long or call["queries"] < 2 * (BLOCK // lanes) else ROWS[0]


ROWS = tuple({"rows": r} for r in (2, 1, 4, 8))
FORWARD = (
    Kernel("cuda.v3_rows", _rows, "a head's rows a block, 16 bytes by shifts", _whole, ROWS, pick, sources=(V3,), declines=_few),
    _rung("v2_vector", 16, "16 bytes a store, rows of any length"),
    _rung("v1_naive", 1, "a thread an element"),
)
