"""Vector addition: 3 tensors through memory, one addition an element; nothing but bytes."""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu

BLOCK = 4096  # 8 warps of 16 elements a lane: two 16-byte loads in flight from each operand in bf16, four in fp32


@triton.jit
def _add(gX, gY, gOut, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < N
    rX = tl.load(gX + i, mask=mask)
    rY = tl.load(gY + i, mask=mask)
    if gOut.dtype.element_ty == tl.int32:
        rOut = rX + rY
    else:
        rOut = (rX.to(tl.float32) + rY.to(tl.float32)).to(gOut.dtype.element_ty)
    tl.store(gOut + i, rOut, mask=mask)


@triton.jit
def _copy(gDout, gDx, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < N
    tl.store(gDx + i, tl.load(gDout + i, mask=mask), mask=mask)


def add(x, y):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    launch(_add, (cdiv(x.numel(), BLOCK),), x, y, out, x.numel(), BLOCK=BLOCK, num_warps=8)
    return out


def add_backward(dout):
    dout = dout.contiguous()
    dx = torch.empty_like(dout)
    launch(_copy, (cdiv(dout.numel(), BLOCK),), dout, dx, dout.numel(), BLOCK=BLOCK, num_warps=8)
    return dx


FORWARD = (Kernel("triton", add, "4096 elements a program, all loads in flight at once", lambda call: off_gpu(call["x"])),)
BACKWARD = (Kernel("triton", add_backward, "one read, one write", lambda call: off_gpu(call["dout"])),)
