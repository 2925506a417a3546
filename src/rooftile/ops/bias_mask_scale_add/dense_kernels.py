"""Few elements: dense tensors as one row. What a call waits for there is a launch, code that no cache holds yet and one trip to the memory, so that code
is short and its loads come early: no rows to be found by a division, and an element's column by a constant."""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu

FEW = 2**24  # bytes of x: from there on a tile of rows, which reads the bias once for all of them, is as fast


@triton.jit
def _forward(gX, gBias, gMask, gResidual, gOut, elements, scale, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < elements
    rX = tl.load(gX + i, mask=mask).to(tl.float32)
    rMask = tl.load(gMask + i, mask=mask, other=0)
    rR = tl.load(gResidual + i, mask=mask).to(tl.float32)
    rBias = tl.load(gBias + i % N, mask=mask).to(tl.float32)
    rOut = tl.where(rMask != 0, (rX + rBias) * scale, 0.0) + rR
    tl.store(gOut + i, rOut.to(gOut.dtype.element_ty), mask=mask)


def bias_mask_scale_add(x, bias, mask, scale, residual, *, config):
    out = x.new_empty(x.shape)
    launch(_forward, (cdiv(x.numel(), config["block"]),), x, bias.contiguous(), mask.view(torch.uint8), residual, out, x.numel(), scale,
           N=x.shape[-1], BLOCK=config["block"], num_warps=config["warps"])  # fmt: skip
    return out


def refuse(call):
    apart = [n for n in ("x", "mask", "residual") if not call[n].is_contiguous()]
    if apart:
        return f"the rows of {apart[0]} do not lie one behind another"
    most = 2**31 - max(c["block"] for c in CONFIGS)
    return off_gpu(call["x"]) or (None if call["x"].numel() < most else f"{call['x'].numel()} elements are counted in 32 bits")


def declines(call):
    moved = call["x"].nbytes
    return None if moved < FEW else f"x has {moved} bytes, from {FEW} on what is read of the bias weighs as much as a division"


CONFIGS = ({"block": 1024, "warps": 4}, {"block": 512, "warps": 2}, {"block": 512, "warps": 4})
FORWARD = (
    Kernel("triton.dense", bias_mask_scale_add, "few elements, dense, as one row: the column by a constant", refuse, CONFIGS, declines=declines),
)  # fmt: skip
