"""AdamW for a whole model in one launch. Floor: 7 tensors through memory (p, g, m, v in; p, m, v out), 12 operations an element; a float32
master is read and written beside p, which is then only written.

A program takes one chunk of one tensor. Which chunk is a table made once for a list of sizes; where the tensors lie is a table
of addresses, sent along where they have moved.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import launch, off_gpu
from rooftile.ops._shared.tables import chunk_of, pointer, tables
from rooftile.ops._shared.triton_philox import philox

# 8 elements a lane of 8 warps: two 16-byte loads in flight from each of four tensors
CONFIGS = tuple({"chunk": c, "warps": w} for c, w in ((2048, 8), (1024, 4), (2048, 4), (4096, 8), (4096, 16)))


@triton.jit
def _stochastic(rX, counter, seed, CHUNK: tl.constexpr):
    """16 random bits below the last one that bfloat16 keeps. One Philox call serves four neighbours."""
    a, b, c, d = philox(counter + tl.arange(0, CHUNK // 4), seed)
    word = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [CHUNK])
    noisy = ((rX.to(tl.uint32, bitcast=True) + (word & 0xFFFF)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(rX) < float("inf"), noisy, rX)


@triton.jit
def _step(gLikeP, gLikeG, gLikeM, gLikeF, gTable, gLayout, gHyper, gScale, gSeed, P, beta1, beta2, rest1, rest2, eps, ALIGNED: tl.constexpr,
          MASTER: tl.constexpr, SCALED: tl.constexpr, STOCHASTIC: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    t, first, size = chunk_of(gLayout, P, tl.program_id(0), CHUNK)
    i = first + tl.arange(0, CHUNK)
    mask = i < size
    gP = pointer(gTable, t, gLikeP, ALIGNED)
    gG = pointer(gTable + P, t, gLikeG, ALIGNED)
    gM = pointer(gTable + 2 * P, t, gLikeM, ALIGNED)
    gV = pointer(gTable + 3 * P, t, gLikeM, ALIGNED)
    lr = tl.load(gHyper + 4 * t)
    decay = tl.load(gHyper + 4 * t + 1)
    correction1 = tl.load(gHyper + 4 * t + 2)
    correction2 = tl.load(gHyper + 4 * t + 3)
    rG = tl.load(gG + i, mask=mask, other=0.0).to(tl.float32)
    rM = tl.load(gM + i, mask=mask, other=0.0).to(tl.float32)
    rV = tl.load(gV + i, mask=mask, other=0.0).to(tl.float32)
    if MASTER:
        gF = pointer(gTable + 4 * P, t, gLikeF, ALIGNED)
        rP = tl.load(gF + i, mask=mask, other=0.0)
    else:
        rP = tl.load(gP + i, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        rG *= tl.load(gScale)
    rM = beta1 * rM + rest1 * rG
    rV = beta2 * rV + rest2 * rG * rG
    rP = rP * (1.0 - lr * decay) - (lr / correction1) * rM / (tl.sqrt(rV / correction2) + eps)
    tl.store(gM + i, rM.to(gM.dtype.element_ty), mask=mask)
    tl.store(gV + i, rV.to(gV.dtype.element_ty), mask=mask)
    if MASTER:
        tl.store(gF + i, rP, mask=mask)
    if STOCHASTIC:
        rP = _stochastic(rP, t.to(tl.int64) * (1 << 38) + first // 4, tl.load(gSeed).to(tl.uint64), CHUNK)
    tl.store(gP + i, rP.to(gP.dtype.element_ty), mask=mask)


def adamw(params, grads, exp_avgs, exp_avg_sqs, masters, hyper, scale, seed, beta1, beta2, eps, *, config):
    hyper = hyper.contiguous()
    grads = [g if g.is_contiguous() else g.contiguous() for g in grads]
    lists = (params, grads, exp_avgs, exp_avg_sqs, *([masters] if masters else []))
    addresses, layout, chunks, aligned = tables(config["chunk"], *lists)
    launch(_step, (chunks,), params[0], grads[0], exp_avgs[0], hyper, addresses, layout, hyper, hyper if scale is None else scale,
           layout if seed is None else seed, len(params), beta1, beta2, 1 - beta1, 1 - beta2, eps, ALIGNED=aligned,
           MASTER=bool(masters), SCALED=scale is not None, STOCHASTIC=seed is not None and params[0].itemsize == 2, CHUNK=config["chunk"],
           num_warps=config["warps"])  # fmt: skip


def _refuse(call):
    if why := off_gpu(call["hyper"]):
        return why
    lists = ("params", "exp_avgs", "exp_avg_sqs", "masters")
    loose = [i for n in lists for i, t in enumerate(call[n]) if not t.is_contiguous()]
    return f"tensor {loose[0]} is not contiguous, and it is updated in place" if loose else None


FORWARD = (Kernel("triton", adamw, "one launch for all tensors, found through a table of addresses", _refuse, CONFIGS),)
