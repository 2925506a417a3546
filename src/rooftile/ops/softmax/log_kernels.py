"""Logarithm of softmax. Floor: 2 tensors through memory forward, 3 backward; 5 operations an element and one exponential.

Two kernels each way, as in triton_kernels.py: rows in registers, and rows of any length that are read twice.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, dense_like, launch, rows
from rooftile.ops.softmax.triton_kernels import MAX_ROW, TILE, _tile, any_length, upto


@triton.jit
def _forward(gX, gOut, M, N, stride_x, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (i_m < M) & (i_n < N)
    rX = tl.load(gX + i_m * stride_x + i_n, mask=mask, other=float("-inf")).to(tl.float32)
    rX -= tl.max(rX, 1)[:, None]
    rOut = rX - tl.log(tl.sum(tl.exp(rX), 1))[:, None]
    tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=mask)


@triton.jit
def _forward_online(gX, gOut, N, stride_x, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    lane_max = tl.full([BLOCK_N], float("-inf"), tl.float32)
    lane_sum = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=float("-inf")).to(tl.float32)
        new = tl.maximum(lane_max, rX, propagate_nan=tl.PropagateNan.ALL)
        base = tl.where(new == float("-inf"), 0.0, new)
        lane_sum = lane_sum * tl.exp(lane_max - base) + tl.exp(rX - base)
        lane_max = new
    row_max = tl.max(lane_max, 0)
    base = tl.where(row_max == float("-inf"), 0.0, row_max)
    row_log = tl.log(tl.sum(lane_sum * tl.exp(lane_max - base), 0))
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=float("-inf")).to(tl.float32)
        rOut = (rX - row_max) - row_log  # of a row of -inf -inf - -inf = NaN, as PyTorch has it
        tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=i_n < N)


@triton.jit
def _backward(gDout, gOut, gDx, M, N, stride_dout, stride_out, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (i_m < M) & (i_n < N)
    rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=mask, other=0.0).to(tl.float32)
    rOut = tl.load(gOut + i_m * stride_out + i_n, mask=mask, other=0.0).to(tl.float32)
    rDx = rDout - tl.exp(rOut) * tl.sum(rDout, 1)[:, None]
    tl.store(gDx + i_m * N + i_n, rDx.to(gDx.dtype.element_ty), mask=mask)


@triton.jit
def _backward_online(gDout, gOut, gDx, N, stride_dout, stride_out, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    lane_sum = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        lane_sum += tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, other=0.0).to(tl.float32)
    total = tl.sum(lane_sum, 0)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rOut = tl.load(gOut + i_m * stride_out + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        tl.store(gDx + i_m * N + i_n, (rDout - tl.exp(rOut) * total).to(gDx.dtype.element_ty), mask=i_n < N)


def log_softmax(x):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    per, block, warps = _tile(n)
    launch(_forward, (cdiv(m, per),), x, out, m, n, stride, ROWS=per, BLOCK_N=block, num_warps=warps)
    return out


def log_softmax_online(x):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(_forward_online, (m,), x, out, n, stride, BLOCK_N=TILE, num_warps=8)
    return out


def log_softmax_backward(dout, out):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    per, block, warps = _tile(n)
    launch(_backward, (cdiv(m, per),), dout, out, dx, m, n, stride_dout, stride_out, ROWS=per, BLOCK_N=block, num_warps=warps)
    return dx


def log_softmax_backward_online(dout, out):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    launch(_backward_online, (m,), dout, out, dx, n, stride_dout, stride_out, BLOCK_N=TILE, num_warps=8)
    return dx


LIMITS = Limits(spill_bytes=16)  # ptxas parks two to four registers of short or misaligned rows, with room for many more

FORWARD = (
    Kernel("triton", log_softmax, "the row in registers: one read", upto(MAX_ROW), limits=LIMITS),
    Kernel(
        "triton.online",
        log_softmax_online,
        "a running maximum and sum: any length, two reads",
        any_length,
        limits=LIMITS,
    ),
)
BACKWARD = (
    Kernel("triton", log_softmax_backward, "both rows in registers: one read of each", upto(MAX_ROW // 4), limits=LIMITS),
    Kernel("triton.online", log_softmax_backward_online, "any length, dout twice", any_length, limits=LIMITS),
)
