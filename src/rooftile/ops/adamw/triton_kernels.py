"""AdamW for a whole model in one launch. Floor: 7 tensors through memory (p, g, m, v in; p, m, v out), 12 operations an element.

A program takes one chunk of one tensor. Which chunk is a table made once for a list of sizes; where the tensors lie is a table
of addresses, sent along where they have moved.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, constant, launch, off_gpu

CHUNK = 2048  # 8 elements a lane of 8 warps: two 16-byte loads in flight from each of four tensors


@triton.jit
def _pointer(gTable, t, like, ALIGNED: tl.constexpr):
    address = tl.load(gTable + t)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(like.dtype, bitcast=True) if address.dtype == like.dtype else address.to(like.dtype)


@triton.jit
def _step(gLike, gTable, gLayout, gHyper, P, beta1, beta2, rest1, rest2, eps, ALIGNED: tl.constexpr, CHUNK: tl.constexpr):
    chunk = tl.load(gLayout + P + tl.program_id(0))  # tensor in the high word, chunk of it in the low
    t = (chunk >> 32).to(tl.int32)
    i = (chunk & 0xFFFFFFFF) * CHUNK + tl.arange(0, CHUNK)
    mask = i < tl.load(gLayout + t)
    gP = _pointer(gTable, t, gLike, ALIGNED)
    gG = _pointer(gTable + P, t, gLike, ALIGNED)
    gM = _pointer(gTable + 2 * P, t, gLike, ALIGNED)
    gV = _pointer(gTable + 3 * P, t, gLike, ALIGNED)
    lr = tl.load(gHyper + 4 * t)
    decay = tl.load(gHyper + 4 * t + 1)
    correction1 = tl.load(gHyper + 4 * t + 2)
    correction2 = tl.load(gHyper + 4 * t + 3)
    rG = tl.load(gG + i, mask=mask, other=0.0).to(tl.float32)
    rM = tl.load(gM + i, mask=mask, other=0.0).to(tl.float32)
    rV = tl.load(gV + i, mask=mask, other=0.0).to(tl.float32)
    rP = tl.load(gP + i, mask=mask, other=0.0).to(tl.float32)
    rM = beta1 * rM + rest1 * rG
    rV = beta2 * rV + rest2 * rG * rG
    rP = rP * (1.0 - lr * decay) - (lr / correction1) * rM / (tl.sqrt(rV / correction2) + eps)
    tl.store(gM + i, rM.to(gLike.dtype.element_ty), mask=mask)
    tl.store(gV + i, rV.to(gLike.dtype.element_ty), mask=mask)
    tl.store(gP + i, rP.to(gLike.dtype.element_ty), mask=mask)


def _whole(*numbers):
    return numbers


def _layout(*sizes):
    """The sizes of the tensors; then, for every chunk of them, its tensor in the high word and its number in the low."""
    return (*sizes, *((t << 32) | c for t, n in enumerate(sizes) for c in range(cdiv(n, CHUNK))))


def adamw(params, grads, exp_avgs, exp_avg_sqs, hyper, beta1, beta2, eps):
    device, hyper = hyper.device, hyper.contiguous()
    grads = [g if g.is_contiguous() else g.contiguous() for g in grads]
    sizes = tuple(p.numel() for p in params)
    addresses = tuple(t.data_ptr() for t in (*params, *grads, *exp_avgs, *exp_avg_sqs))
    tables = (constant(_whole, addresses, device), constant(_layout, sizes, device))
    numbers = (len(params), beta1, beta2, 1 - beta1, 1 - beta2, eps)
    aligned = all(a % 16 == 0 for a in addresses)
    launch(_step, (sum(cdiv(n, CHUNK) for n in sizes),), params[0], *tables, hyper, *numbers, ALIGNED=aligned, CHUNK=CHUNK, num_warps=8)


def _refuse(call):
    if why := off_gpu(call["hyper"]):
        return why
    loose = [i for n in ("params", "exp_avgs", "exp_avg_sqs") for i, t in enumerate(call[n]) if not t.is_contiguous()]
    return f"tensor {loose[0]} is not contiguous, and it is updated in place" if loose else None


FORWARD = (Kernel("triton", adamw, "one launch for all tensors, found through a table of addresses", _refuse),)
