"""The gradient of attention with heads of 192 and values of 128 for Hopper in CUDA C++."""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.attention.refusals import for_the_copy_engine, too_small

V7 = Source.beside(__file__, "v7_hopper_latent_backward.cu")
LOG2E = 1.4426950408889634
D, DV = 192, 128
BLOCK, KEYS = 64, 128  # queries of a step, keys of a block
SHARED = 2 * ((KEYS + 3 * BLOCK) * D + (KEYS + 2 * BLOCK) * DV + 2 * KEYS * BLOCK) + 5 * BLOCK * 4  # bytes: AT_K and what follows


def hopper_latent(dout, q, k, v, out, lse, causal, scale):
    (b, t, h, _), (s, g) = q.shape, k.shape[1:3]
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    kind, blocks = CTYPE[q.dtype], cdiv(t, BLOCK) * b * h
    sums = q.new_empty(blocks, BLOCK * D, dtype=torch.float32)
    rows = q.new_empty(blocks, 2, BLOCK, dtype=torch.float32)  # lse to base 2 and delta
    launch(V7, f"prepare<{kind}>", blocks * BLOCK // 16, 256, sums, rows, dout, out, lse.contiguous(), h, t, *dout.stride()[:3],
           *out.stride()[:3])  # fmt: skip
    boxes = ((dk, 64, 64), (dv, 64, 64), (q, BLOCK, 64), (k, KEYS, 32), (v, KEYS, 64), (dout, BLOCK, 64))  # rows and columns
    launch(V7, f"attention_backward<{kind}, {str(causal).lower()}>", cdiv(s, KEYS) * b * g, 256,
           *(TensorMap(x, (1, n, 1, columns), 2 * columns) for x, n, columns in boxes), sums, rows, g, h // g, t, s, scale, scale * LOG2E,
           shared=SHARED)  # fmt: skip
    launch(V7, f"finish<{kind}>", blocks * 2, 384, dq, sums, h, t, *dq.stride()[:3], scale)
    return dq, dk, dv


def _refuse(call):
    d, dv = call["q"].shape[-1], call["v"].shape[-1]
    if (d, dv) != (D, DV):
        return f"D={d} and values of {dv}: it is written for {D} and {DV}"
    return for_the_copy_engine(call) or off_gpu(call["q"])


BACKWARD = (
    Kernel(
        "cuda.v7_hopper_latent",
        hopper_latent,
        "five products by wgmma, dq added from registers; D = 192 with values of 128",
        _refuse,
        limits=Limits(registers=255, shared_bytes=227 * 1024),
        architectures=(90,),
        sources=(V7,),
        varies="dq is summed by atomics",
        declines=too_small,
    ),
)
