"""Adding a number to an array: 2 tensors through memory, one addition an element. The first kernel anyone writes."""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu

BLOCK = 4096  # 8 warps of 16 elements a lane: two 16-byte loads in flight in bf16, four in fp32


@triton.jit
def _increment(gX, gOut, value, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < N)
    if gOut.dtype.element_ty == tl.int32:
        rOut = rX + value
    else:
        rOut = (rX.to(tl.float32) + value).to(gOut.dtype.element_ty)
    tl.store(gOut + i, rOut, mask=i < N)


@triton.jit
def _copy(gDout, gDx, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(gDx + i, tl.load(gDout + i, mask=i < N), mask=i < N)


def increment(x, value):
    x = x.contiguous()
    out = torch.empty_like(x)
    number = float(value) if x.is_floating_point() else int(value)
    launch(_increment, (cdiv(x.numel(), BLOCK),), x, out, number, x.numel(), BLOCK=BLOCK, num_warps=8)
    return out


def increment_backward(dout):
    dout = dout.contiguous()
    dx = torch.empty_like(dout)
    launch(_copy, (cdiv(dout.numel(), BLOCK),), dout, dx, dout.numel(), BLOCK=BLOCK, num_warps=8)
    return dx


FORWARD = (Kernel("triton", increment, "4096 elements a program, all loads in flight at once", lambda call: off_gpu(call["x"])),)
BACKWARD = (Kernel("triton", increment_backward, "one read, one write", lambda call: off_gpu(call["dout"])),)
