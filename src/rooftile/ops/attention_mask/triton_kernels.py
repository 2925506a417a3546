"""Padding and causal masks. Floor: the mask written once; two comparisons an element."""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2
from rooftile.ops.attention_mask.reference import check_lengths

TILE = 2048


@triton.jit
def _mask(gLengths, gMask, M, T, S, G, repeats, stride_b, stride_g, CAUSAL: tl.constexpr, BOOL: tl.constexpr, ROWS: tl.constexpr,
          BLOCK_S: tl.constexpr):  # fmt: skip
    """Rows are numbered (b, h, t); M = B H T of them."""
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_s = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    i_t, i_h = i_m % T, i_m // T % (G * repeats)
    i_b = i_m // T // (G * repeats)
    length = tl.load(gLengths + i_b * stride_b + i_h // repeats * stride_g, mask=i_m < M, other=0)
    if CAUSAL:
        length = tl.minimum(length, i_t + (S - T) + 1)
    allowed = i_s[None, :] < length[:, None]
    gTo = gMask + i_m[:, None] * S + i_s[None, :]
    inside = (i_m < M)[:, None] & (i_s < S)[None, :]
    if BOOL:
        tl.store(gTo, allowed.to(tl.uint8), mask=inside)
    else:
        tl.store(gTo, tl.where(allowed, 0.0, float("-inf")).to(gMask.dtype.element_ty), mask=inside)


def attention_mask(lengths, queries, keys, causal, repeats, to):
    check_lengths(lengths, keys)
    b, g = lengths.shape
    boolean = to == "bool"
    mask = lengths.new_empty((b, g * repeats, queries, keys), dtype=getattr(torch, to))
    m, block = b * g * repeats * queries, min(2048, power_of_2(keys))
    per = min(64, max(1, TILE // block))
    launch(_mask, (cdiv(m, per), cdiv(keys, block)), lengths, mask.view(torch.uint8) if boolean else mask, m, queries, keys, g, repeats,
           *lengths.stride(), CAUSAL=causal, BOOL=boolean, ROWS=per, BLOCK_S=block, num_warps=4)  # fmt: skip
    return mask


FORWARD = (Kernel("triton", attention_mask, "both masks as one bound a row", lambda call: off_gpu(call["lengths"])),)
