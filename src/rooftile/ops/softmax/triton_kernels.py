"""Softmax over rows. Floor: 2 tensors through memory forward, 3 backward; about 5 operations an element, so bytes decide.

`triton` keeps the row in registers: one read. `triton.online` takes any length: it reads the row twice, the first time with
a running maximum and sum, and the second read of a row that fits the L2 comes from there. LOG makes them the logarithm's.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.few_rows import few, warps
from rooftile.ops._shared.launch import cdiv, dense_like, launch, off_gpu, power_of_2, rows
from rooftile.ops._shared.policy import evict_last

MAX_ROW = 65536  # at 32 warps a lane then holds 64 float32, the last size that does not spill; the backward holds two rows
TILE = 4096  # elements a program works on at once: several short rows, or a part of a long one


@triton.jit
def _forward(gX, gOut, M, N, stride_x, LOG: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (i_m < M) & (i_n < N)
    rX = tl.load(gX + i_m * stride_x + i_n, mask=mask, other=float("-inf")).to(tl.float32)
    rX -= tl.max(rX, 1)[:, None]
    rExp = tl.exp(rX)
    rSum = tl.sum(rExp, 1)
    rOut = rX - tl.log(rSum)[:, None] if LOG else rExp / rSum[:, None]
    tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=mask)


@triton.jit
def _forward_online(gX, gOut, N, stride_x, LOG: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    lane_max = tl.full([BLOCK_N], float("-inf"), tl.float32)  # statistics a lane; they meet once, after the row
    lane_sum = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=float("-inf")).to(tl.float32)
        new = tl.maximum(lane_max, rX, propagate_nan=tl.PropagateNan.ALL)
        base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf would poison a lane that has seen only masked columns
        lane_sum = lane_sum * tl.exp(lane_max - base) + tl.exp(rX - base)
        lane_max = new
    row_max = tl.max(lane_max, 0)
    base = tl.where(row_max == float("-inf"), 0.0, row_max)
    row_sum = tl.sum(lane_sum * tl.exp(lane_max - base), 0)
    row_log = tl.log(row_sum)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=float("-inf")).to(tl.float32)
        # NaN for a row of -inf, as PyTorch has it: -inf - -inf, or 0/0
        rOut = (rX - row_max) - row_log if LOG else tl.exp(rX - base) / row_sum
        tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=i_n < N)


@triton.jit
def _backward(gDout, gOut, gDx, M, N, stride_dout, stride_out, T, scale, LOG: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
              BLOCK_N: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (i_m < M) & (i_n < N)
    seen = mask & (i_n <= i_m % T + (N - T)) if CAUSAL else mask
    rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=seen, other=0.0, eviction_policy=POLICY).to(tl.float32)
    rOut = tl.load(gOut + i_m * stride_out + i_n, mask=seen, other=0.0, eviction_policy=POLICY).to(tl.float32)
    if LOG:
        rDx = rDout - tl.exp(rOut) * tl.sum(rDout, 1)[:, None]
    else:
        rDx = rOut * (rDout - tl.sum(rDout * rOut, 1)[:, None]) * scale
    tl.store(gDx + i_m * N + i_n, rDx.to(gDx.dtype.element_ty), mask=mask)


@triton.jit
def _backward_online(
    gDout, gOut, gDx, N, stride_dout, stride_out, T, scale, LOG: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr
):
    i_m = tl.program_id(0).to(tl.int64)
    end = tl.minimum(N, i_m % T + 1 + N - T) if CAUSAL else N
    lane_dot = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, end, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < end, other=0.0).to(tl.float32)
        if not LOG:
            rDout *= tl.load(gOut + i_m * stride_out + i_n, mask=i_n < end, other=0.0).to(tl.float32)
        lane_dot += rDout
    dot = tl.sum(lane_dot, 0)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < end, other=0.0).to(tl.float32)
        rOut = tl.load(gOut + i_m * stride_out + i_n, mask=i_n < end, other=0.0).to(tl.float32)
        rDx = rDout - tl.exp(rOut) * dot if LOG else rOut * (rDout - dot) * scale
        tl.store(gDx + i_m * N + i_n, rDx.to(gDx.dtype.element_ty), mask=i_n < N)


def _tile(x):
    """(rows a program, columns of a tile, warps): about TILE elements a program, so that short rows share one; of few rows a program each."""
    block = power_of_2(x.shape[-1])
    if few(x):
        return 1, block, max(warps(block), min(32, block // 1024))
    per = max(1, TILE // block)
    return per, block, min(32, max(4, per * block // 1024))


def softmax(x, log=False):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    per, block, count = _tile(x)
    launch(_forward, (cdiv(m, per),), x, out, m, n, stride, LOG=log, ROWS=per, BLOCK_N=block, num_warps=count)
    return out


def softmax_online(x, log=False):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(_forward_online, (m,), x, out, n, stride, LOG=log, BLOCK_N=TILE, num_warps=8)
    return out


def softmax_backward(dout, out, scale=1.0, causal=False, log=False):
    """Also of scores: times `scale`, and with rows that looked no further than their own column, [..., T, N]."""
    dx, t = dense_like(out), out.shape[-2] if causal else 1
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    per, block, count = _tile(out)
    launch(_backward, (cdiv(m, per),), dout, out, dx, m, n, stride_dout, stride_out, t, scale, LOG=log, CAUSAL=causal, ROWS=per, BLOCK_N=block,
           POLICY=evict_last(dout, out), num_warps=count)  # fmt: skip
    return dx


def softmax_backward_online(dout, out, scale=1.0, causal=False, log=False):
    dx, t = dense_like(out), out.shape[-2] if causal else 1
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    launch(_backward_online, (m,), dout, out, dx, n, stride_dout, stride_out, t, scale, LOG=log, CAUSAL=causal, BLOCK_N=TILE, num_warps=8)
    return dx


def _row(call):
    return call["x"] if "x" in call else call["out"]


def any_length(call):
    return off_gpu(_row(call))


def upto(longest):
    def refuse(call):
        n = _row(call).shape[-1]
        return any_length(call) or (None if n <= longest else f"N={n} is longer than the {longest} columns a program keeps in registers")

    return refuse


FORWARD = (
    Kernel("triton", softmax, "the row in registers: one read", upto(MAX_ROW)),
    Kernel("triton.online", softmax_online, "a running maximum and sum: any length, two reads", any_length),
)
BACKWARD = (
    Kernel("triton", softmax_backward, "both rows in registers: one read of each", upto(MAX_ROW // 4)),
    Kernel("triton.online", softmax_backward_online, "any length, two reads of each", any_length),
)
