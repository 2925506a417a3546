"""What the forward made, scaled by one number and rounded once. Floor: gx read and written, the float32 gweight read and written in its own
dtype: 4 M K + 6 V K bytes beside 16-bit data, for one multiplication an element. The number, dloss / count, is made by every program for itself."""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu

BLOCK = 4096


@triton.jit
def _scale(gOut, gX, gDloss, gCount, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < N).to(tl.float32)
    rCount = tl.load(gCount)
    rScale = tl.where(rCount > 0, tl.load(gDloss) / rCount, 0.0)  # nothing but padding: no gradient, as PyTorch has it
    tl.store(gOut + i, (rX * rScale).to(gOut.dtype.element_ty), mask=i < N)


def ahead_backward(dloss, weight, bias, count, gx, gweight, gbias):
    def scaled(t, dtype):
        t = t.contiguous()
        out = t.new_empty(t.shape, dtype=dtype)
        if t.numel():
            launch(_scale, (cdiv(t.numel(), BLOCK),), out, t, dloss, count, t.numel(), BLOCK=BLOCK, num_warps=8)
        return out

    dbias = gx.new_empty(0) if bias is None else scaled(gbias, bias.dtype)
    return scaled(gx, gx.dtype), scaled(gweight, weight.dtype), dbias


AHEAD_BACKWARD = (Kernel("triton", ahead_backward, "one read, one write, rounded once", lambda call: off_gpu(call["gx"])),)
