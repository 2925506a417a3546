"""The norm of a whole model's gradients. Floor: every gradient read once, 2 operations an element.

A persistent grid: each program adds the squares of every n-th chunk, whichever tensor it belongs to; one more adds what they found. Sums are
always added in the same order.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import launch, off_gpu, power_of_2, resident
from rooftile.ops._shared.tables import chunk_of, pointer, tables

# 16 elements a lane of 8 warps: two to four 16-byte loads in flight
CONFIGS = tuple({"chunk": c, "warps": w, "per": p} for c, w, p in ((4096, 8, 6), (2048, 8, 8), (4096, 8, 8), (8192, 8, 4), (8192, 16, 4)))


@triton.jit
def _squares(gLike, gTable, gLayout, gPartial, P, chunks, ALIGNED: tl.constexpr, CHUNK: tl.constexpr):
    rSum = tl.zeros([CHUNK], tl.float32)
    for number in range(tl.program_id(0), chunks, tl.num_programs(0)):
        t, first, size = chunk_of(gLayout, P, number, CHUNK)
        i = first + tl.arange(0, CHUNK)
        rG = tl.load(pointer(gTable, t, gLike, ALIGNED) + i, mask=i < size, other=0.0).to(tl.float32)
        rSum += rG * rG
    tl.store(gPartial + tl.program_id(0), tl.sum(rSum, 0))


@triton.jit
def _root(gPartial, gNorm, parts, PARTS: tl.constexpr):
    i = tl.arange(0, PARTS)
    tl.store(gNorm, tl.sqrt_rn(tl.sum(tl.load(gPartial + i, mask=i < parts, other=0.0), 0)))


def grad_norm(grads, *, config):
    grads = [g if g.is_contiguous() else g.contiguous() for g in grads]
    addresses, layout, chunks, aligned = tables(config["chunk"], grads)
    programs = max(1, min(chunks, resident(grads[0], config["per"])))
    partial, norm = layout.new_empty(programs, dtype=torch.float32), layout.new_empty((), dtype=torch.float32)
    launch(_squares, (programs,), grads[0], addresses, layout, partial, len(grads), chunks, ALIGNED=aligned, CHUNK=config["chunk"],
           num_warps=config["warps"])  # fmt: skip
    launch(_root, (1,), partial, norm, programs, PARTS=power_of_2(programs), num_warps=4)
    return norm


IDEA = "squares of all tensors on one persistent grid, then one sum"
FORWARD = (Kernel("triton", grad_norm, IDEA, lambda call: off_gpu(call["grads"][0]), CONFIGS),)
