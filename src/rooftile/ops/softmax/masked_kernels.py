"""Softmax of scaled scores under a boolean mask, a causal one, or both. Floor: scores in and probabilities out, and the mask, a byte an element,
once; of causal rows only what they may look at is read, half of a square. 7 operations an element.

Rows are numbered (b, h, t). Masks may be expanded over any axis: their strides are taken as they are, so a mask for all heads is read
from the caches.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, dense_like, launch, power_of_2, rows
from rooftile.ops.softmax.triton_kernels import TILE, any_length, softmax_backward, softmax_backward_online, upto

MAX_ROW = 16384  # 32 float32 a lane of 16 warps beside as many masks


@triton.jit
def _allowed(gMask, i_m, i_n, inside, T, H, N, mask_b, mask_h, mask_t, MASK: tl.constexpr, CAUSAL: tl.constexpr):
    """Of the elements inside, those that their row may look at."""
    if CAUSAL:
        inside = inside & (i_n <= i_m % T + (N - T))
    if MASK:
        at = i_m // (T * H) * mask_b + i_m // T % H * mask_h + i_m % T * mask_t + i_n
        inside = inside & (tl.load(gMask + at, mask=inside, other=0) != 0)
    return inside


@triton.jit
def _forward(gX, gMask, gOut, M, T, H, N, stride_x, mask_b, mask_h, mask_t, scale, MASK: tl.constexpr, CAUSAL: tl.constexpr,
             ROWS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_n = tl.arange(0, BLOCK_N)[None, :]
    inside = (i_m < M) & (i_n < N)
    may = _allowed(gMask, i_m, i_n, inside, T, H, N, mask_b, mask_h, mask_t, MASK, CAUSAL)
    rX = tl.load(gX + i_m * stride_x + i_n, mask=may, other=float("-inf")).to(tl.float32)
    rX = tl.where(may, rX * scale, float("-inf"))
    peak = tl.max(rX, 1)[:, None]
    rX = tl.exp(rX - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(rX, 1)[:, None]
    rOut = tl.where(total == 0.0, 0.0, rX / total)
    tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=inside)


@triton.jit
def _forward_online(gX, gMask, gOut, T, H, N, stride_x, mask_b, mask_h, mask_t, scale, MASK: tl.constexpr, CAUSAL: tl.constexpr,
                    BLOCK_N: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64)
    lane_max = tl.full([BLOCK_N], float("-inf"), tl.float32)
    lane_sum = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        may = _allowed(gMask, i_m, i_n, i_n < N, T, H, N, mask_b, mask_h, mask_t, MASK, CAUSAL)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=may, other=float("-inf")).to(tl.float32)
        rX = tl.where(may, rX * scale, float("-inf"))
        new = tl.maximum(lane_max, rX, propagate_nan=tl.PropagateNan.ALL)
        base = tl.where(new == float("-inf"), 0.0, new)
        lane_sum = lane_sum * tl.exp(lane_max - base) + tl.exp(rX - base)
        lane_max = new
    peak = tl.max(lane_max, 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(lane_sum * tl.exp(lane_max - base), 0)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        may = _allowed(gMask, i_m, i_n, i_n < N, T, H, N, mask_b, mask_h, mask_t, MASK, CAUSAL)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=may, other=float("-inf")).to(tl.float32)
        rX = tl.exp(tl.where(may, rX * scale, float("-inf")) - base)
        tl.store(gOut + i_m * N + i_n, tl.where(total == 0.0, 0.0, rX / total).to(gOut.dtype.element_ty), mask=i_n < N)


def mask_bytes(mask, x):
    """A mask as bytes with its strides, the last of them 1; the tensor itself where there is none."""
    if mask is None:
        return x, (0, 0, 0)
    mask = mask if mask.stride(-1) == 1 or mask.shape[-1] == 1 else mask.contiguous()
    return mask.view(torch.uint8), mask.stride()[:3]


def _tile(n):
    """(rows a program, columns of a tile, warps): half of softmax's elements a lane, as many are masks."""
    block = power_of_2(n)
    per = max(1, TILE // 2 // block)
    return per, block, min(16, max(4, per * block // 512))


def masked_softmax(x, mask, scale, causal):
    out, (_, h, t, n) = dense_like(x), x.shape
    x, m, _, stride = rows(x)
    mask_tensor, strides = mask_bytes(mask, x)
    per, block, warps = _tile(n)
    launch(_forward, (cdiv(m, per),), x, mask_tensor, out, m, t, h, n, stride, *strides, scale, MASK=mask is not None, CAUSAL=causal,
           ROWS=per, BLOCK_N=block, num_warps=warps)  # fmt: skip
    return out


def masked_softmax_online(x, mask, scale, causal):
    out, (_, h, t, n) = dense_like(x), x.shape
    x, m, _, stride = rows(x)
    mask_tensor, strides = mask_bytes(mask, x)
    launch(_forward_online, (m,), x, mask_tensor, out, t, h, n, stride, *strides, scale, MASK=mask is not None, CAUSAL=causal,
           BLOCK_N=TILE // 2, num_warps=4)  # fmt: skip
    return out


def masked_softmax_backward(dout, out, scale, causal):
    return softmax_backward(dout, out, scale, causal)


def masked_softmax_backward_online(dout, out, scale, causal):
    return softmax_backward_online(dout, out, scale, causal)


LIMITS = Limits(spill_bytes=16)  # ptxas parks two to four registers of short or misaligned rows, with room for many more

FORWARD = (
    Kernel("triton", masked_softmax, "the row in registers: one read of what it may look at", upto(MAX_ROW), limits=LIMITS),
    Kernel("triton.online", masked_softmax_online, "any length, two reads", any_length, limits=LIMITS),
)
BACKWARD = (
    Kernel("triton", masked_softmax_backward, "both rows in registers: one read of each", upto(MAX_ROW), limits=LIMITS),
    Kernel("triton.online", masked_softmax_backward_online, "any length, two reads of each", any_length, limits=LIMITS),
)
