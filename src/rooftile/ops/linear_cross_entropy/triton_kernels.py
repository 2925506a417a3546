"""The gradients that the forward pass made ahead, times dloss / count. Floor: each read once and written once; at GPT-2's head, 32768 rows of 768
and a weight of 50304, 100 MB of gx and 232 MB of the weight's, float32 in and 16 bits out.

PyTorch's multiplication of 16 bits by a float32 number takes no wide loads where dtypes differ, and dloss / count with its guard against no
rows at all is 8 launches more; here every program computes that number for itself.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu


@triton.jit
def _scale(gX, gDloss, gCount, gOut, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < N).to(tl.float32)
    count = tl.load(gCount)
    # nothing but padding: no gradient, as PyTorch has it
    scale = tl.where(count > 0, tl.div_rn(tl.load(gDloss), tl.where(count > 0, count, 1.0)), 0.0)
    tl.store(gOut + i, (rX * scale).to(gOut.dtype.element_ty), mask=i < N)


def _scaled(made, like, dloss, count, config):
    made = made.contiguous()
    out = made.new_empty(made.shape, dtype=like.dtype)
    launch(
        _scale,
        (cdiv(made.numel(), config["block"]),),
        made,
        dloss,
        count,
        out,
        made.numel(),
        BLOCK=config["block"],
        num_warps=config["warps"],
    )
    return out


def ahead_backward(dloss, weight, bias, count, gx, gweight, gbias, *, config):
    return (
        _scaled(gx, gx, dloss, count, config),
        _scaled(gweight, weight, dloss, count, config),
        gx.new_empty(0) if bias is None else _scaled(gbias, bias, dloss, count, config),
    )


def frozen_backward(dloss, count, gx, *, config):
    return _scaled(gx, gx, dloss, count, config)


CONFIGS = tuple({"block": b, "warps": w} for b, w in ((4096, 8), (2048, 4), (1024, 4), (8192, 8)))
AHEAD_BACKWARD, FROZEN_BACKWARD = (
    (Kernel("triton", run, "one read and one write each, the number in every program", lambda call: off_gpu(call["gx"]), CONFIGS),)
    for run in (ahead_backward, frozen_backward)
)
