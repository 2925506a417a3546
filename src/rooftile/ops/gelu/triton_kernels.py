"""GELU: 2 tensors through memory forward, 3 backward; 10 to 18 operations an element of which one or two exponentials, so bytes decide."""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops._shared.triton_activations import activate, activate_with_slope

BLOCK = 4096  # 8 warps: 16 elements a lane, two 16-byte loads in flight in bf16
ACT = {"tanh": "gelu_tanh", "none": "gelu"}


@triton.jit
def _forward(gX, gOut, N, ACT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < N).to(tl.float32)
    rOut = activate(rX, ACT)
    tl.store(gOut + i, rOut.to(gOut.dtype.element_ty), mask=i < N)


@triton.jit
def _backward(gDout, gX, gDx, N, ACT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < N).to(tl.float32)
    rDout = tl.load(gDout + i, mask=i < N).to(tl.float32)
    _, slope = activate_with_slope(rX, ACT)
    tl.store(gDx + i, (rDout * slope).to(gDx.dtype.element_ty), mask=i < N)


def gelu(x, approximate):
    x = x.contiguous()
    out = torch.empty_like(x)
    launch(_forward, (cdiv(x.numel(), BLOCK),), x, out, x.numel(), ACT=ACT[approximate], BLOCK=BLOCK, num_warps=8)
    return out


def gelu_backward(dout, x, approximate):
    dout, x = dout.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    launch(_backward, (cdiv(x.numel(), BLOCK),), dout, x, dx, x.numel(), ACT=ACT[approximate], BLOCK=BLOCK, num_warps=8)
    return dx


LIMITS = Limits(spill_bytes=8)  # ptxas gives sm_100 32 registers for full occupancy and parks two of them

FORWARD = (Kernel("triton", gelu, "one read, one write; tanh as one exponential", lambda call: off_gpu(call["x"]), limits=LIMITS),)
BACKWARD = (
    Kernel("triton", gelu_backward, "the slope recomputed from x, nothing else saved", lambda call: off_gpu(call["x"]), limits=LIMITS),
)
