"""Padding and causal masks in CUDA C++: an element a thread, and 16 bytes a thread."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.attention_mask.reference import check_lengths

BLOCK = 256


def _rung(name, width, idea):
    source = Source.beside(__file__, f"{name}.cu")

    def attention_mask(lengths, queries, keys, causal, repeats, to):
        check_lengths(lengths, keys)
        b, g = lengths.shape
        dtype = getattr(torch, to)
        mask = lengths.new_empty((b, g * repeats, queries, keys), dtype=dtype)
        element = "unsigned char" if to == "bool" else CTYPE[dtype]
        instance = f"attention_mask<{element}, {CTYPE[lengths.dtype]}, {'true' if causal else 'false'}>"
        blocks = cdiv(mask.numel(), BLOCK * (width // mask.itemsize or 1))
        launch(source, instance, blocks, BLOCK, mask, lengths, mask.numel(), queries, keys, g, repeats, *lengths.stride())
        return mask

    return Kernel(f"cuda.{name}", attention_mask, idea, lambda call: off_gpu(call["lengths"]), sources=(source,))


FORWARD = (_rung("v2_vector", 16, "16 bytes a store, rows of any length"), _rung("v1_naive", 1, "a thread an element"))
