"""RMSNorm over rows. Floor: 2 tensors through memory forward (4 bytes a bf16 element), 3 backward (6 bytes); 4 and 9 operations an
element. At 4274 GB/s a byte takes the time of about 15 float32 operations: bytes decide, by a factor of 10.

`triton` keeps the row in registers: one read. Backward it is persistent: a program walks over many rows with the weight and its share
of dweight in registers and writes one partial row; a second kernel adds the partial rows in one fixed order. No atomics: two runs give
the same bits. add_rmsnorm is the same kernels with R set: they read a second tensor, work on the rounded sum and, backward, add dsum.
`triton.online` takes any length in two reads, with a sum of squares a lane; `triton.columns` backward in two reads: the row sums first,
then strips of columns, where nothing crosses a lane before the last row.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, dense_like, launch, power_of_2, resident, rows
from rooftile.ops._shared.norms import (
    MAX_ROW,
    MAX_ROW_BACKWARD,
    ONCE,
    ONLINE,
    PERSISTENT,
    STRIP,
    any_length,
    dense,
    pick_forward,
    row,
    upto,
)
from rooftile.ops._shared.partials import add_rows


@triton.jit
def _forward(gX, gR, gW, gSum, gOut, gRstd, M, N, stride_x, stride_r, eps, offset,
             R: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.arange(0, BLOCK_N)
    in_n = i_n < N
    mask = (i_m < M)[:, None] & in_n[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    if R:
        rX += tl.load(gR + i_m[:, None] * stride_r + i_n[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rSum = rX.to(gSum.dtype.element_ty)
        tl.store(gSum + i_m[:, None] * N + i_n[None, :], rSum, mask=mask)
        rX = rSum.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(rX * rX, 1) / N + eps)
    rX = rX * rstd[:, None]
    if W:
        rX *= tl.load(gW + i_n, mask=in_n, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :] + offset
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rX.to(gOut.dtype.element_ty), mask=mask)
    tl.store(gRstd + i_m, rstd, mask=i_m < M)


@triton.jit
def _forward_online(gX, gR, gW, gSum, gOut, gRstd, N, stride_x, stride_r, eps, offset,
                    R: tl.constexpr, W: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64)
    lane_square = tl.zeros([BLOCK_N], tl.float32)  # the lanes meet once, after the row
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if R:
            rX += tl.load(gR + i_m * stride_r + i_n, mask=i_n < N, other=0.0).to(tl.float32)
            rX = rX.to(gSum.dtype.element_ty).to(tl.float32)
        lane_square += rX * rX
    rstd = tl.rsqrt(tl.sum(lane_square, 0) / N + eps)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if R:
            rX += tl.load(gR + i_m * stride_r + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_first").to(tl.float32)
            rSum = rX.to(gSum.dtype.element_ty)
            tl.store(gSum + i_m * N + i_n, rSum, mask=i_n < N)
            rX = rSum.to(tl.float32)
        rX = rX * rstd
        if W:
            rX *= tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32) + offset
        tl.store(gOut + i_m * N + i_n, rX.to(gOut.dtype.element_ty), mask=i_n < N)
    tl.store(gRstd + i_m, rstd)


@triton.jit
def _backward(gDout, gDsum, gX, gW, gRstd, gDx, gPartial, M, N, stride_dout, stride_dsum, stride_x, offset, R: tl.constexpr,
              W: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(0)
    programs = tl.num_programs(0)
    i_n = tl.arange(0, BLOCK_N)
    in_n = i_n < N
    rDw = tl.zeros([BLOCK_N], tl.float32)
    if W:
        rW = tl.load(gW + i_n, mask=in_n, other=0.0).to(tl.float32) + offset
    for i_tile in tl.range(i_p, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_m = i_m < M
        mask = in_m[:, None] & in_n[None, :]
        rDout = tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        rX = rX * rRstd[:, None]
        if W:
            rDw += tl.sum(rDout * rX, 0)
            rDout = rDout * rW[None, :]
        along = tl.sum(rDout * rX, 1) / N
        rDx = (rDout - rX * along[:, None]) * rRstd[:, None]
        if R:
            rDx += tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    if W:
        tl.store(gPartial + i_p.to(tl.int64) * N + i_n, rDw, mask=in_n)


@triton.jit
def _row_sums(gDout, gX, gW, gRstd, gAlong, N, stride_dout, stride_x, offset, W: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    rstd = tl.load(gRstd + i_m)
    lane_along = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if W:
            rDout *= tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32) + offset
        lane_along += rDout * (rX * rstd)
    tl.store(gAlong + i_m, tl.sum(lane_along, 0) / N)


@triton.jit
def _strips(gDout, gDsum, gX, gW, gRstd, gAlong, gDx, gPartial, M, N, stride_dout, stride_dsum, stride_x, offset, R: tl.constexpr,
            W: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(1)
    programs = tl.num_programs(1)
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = i_n < N
    rDw = tl.zeros([BLOCK_N], tl.float32)
    if W:
        rW = tl.load(gW + i_n, mask=in_n, other=0.0).to(tl.float32) + offset
    for i_tile in range(i_p, tl.cdiv(M, ROWS), programs):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_m = i_m < M
        mask = in_m[:, None] & in_n[None, :]
        gDout_tile, gX_tile = gDout + i_m[:, None] * stride_dout + i_n[None, :], gX + i_m[:, None] * stride_x + i_n[None, :]
        rDout = tl.load(gDout_tile, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rX = tl.load(gX_tile, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        along = tl.load(gAlong + i_m, mask=in_m, other=0.0)
        rX = rX * rRstd[:, None]
        if W:
            rDw += tl.sum(rDout * rX, 0)
            rDout = rDout * rW[None, :]
        rDx = (rDout - rX * along[:, None]) * rRstd[:, None]
        if R:
            rDx += tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    if W:
        tl.store(gPartial + i_p.to(tl.int64) * N + i_n, rDw, mask=in_n)


def _forward_outputs(x, residual):
    total = None if residual is None else x.new_empty(x.shape, dtype=residual.dtype)
    return dense_like(x), total, x.new_empty(x.shape[:-1], dtype=torch.float32)


def _once(x, residual, weight, eps, offset, config):
    out, total, rstd = _forward_outputs(x, residual)
    x, m, n, stride = rows(x)
    residual, _, _, stride_r = (None, m, n, 0) if residual is None else rows(residual)
    launch(_forward, (cdiv(m, config["rows"]),), x, residual, dense(weight), total, out, rstd, m, n, stride, stride_r, eps, offset,
           R=residual is not None, W=weight is not None, ROWS=config["rows"], BLOCK_N=power_of_2(n), num_warps=config["warps"])  # fmt: skip
    return out, total, rstd


def _twice(x, residual, weight, eps, offset, config):
    out, total, rstd = _forward_outputs(x, residual)
    x, m, n, stride = rows(x)
    residual, _, _, stride_r = (None, m, n, 0) if residual is None else rows(residual)
    launch(_forward_online, (m,), x, residual, dense(weight), total, out, rstd, n, stride, stride_r, eps, offset,
           R=residual is not None, W=weight is not None, BLOCK_N=config["block"], num_warps=config["warps"])  # fmt: skip
    return out, total, rstd


def rmsnorm(x, weight, eps, offset, *, config):
    out, _, rstd = _once(x, None, weight, eps, offset, config)
    return out, rstd


def rmsnorm_online(x, weight, eps, offset, *, config):
    out, _, rstd = _twice(x, None, weight, eps, offset, config)
    return out, rstd


def add_rmsnorm(x, residual, weight, eps, offset, *, config):
    return _once(x, residual, weight, eps, offset, config)


def add_rmsnorm_online(x, residual, weight, eps, offset, *, config):
    return _twice(x, residual, weight, eps, offset, config)


def _grads(x, weight):
    return dense_like(x), x.new_empty(0) if weight is None else weight.new_empty(weight.shape)


def _persistent(dout, dsum, x, weight, rstd, offset, config):
    dx, dweight = _grads(x, weight)
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = (None, m, n, 0) if dsum is None else rows(dsum)
    x, _, _, stride_x = rows(x)
    # every program writes its partial row, also one with no row to read
    programs = max(1, min(cdiv(m, config["rows"]), resident(x, config["per_sm"])))
    partial = x.new_empty((programs, n), dtype=torch.float32)
    launch(_backward, (programs,), dout, dsum, x, dense(weight), rstd.contiguous(), dx, partial, m, n,
           stride_dout, stride_dsum, stride_x, offset, R=dsum is not None, W=weight is not None, ROWS=config["rows"],
           BLOCK_N=power_of_2(n), STAGES=config["stages"], num_warps=config["warps"])  # fmt: skip
    if weight is not None:
        add_rows(partial, dweight)
    return dx, dweight


def _columns(dout, dsum, x, weight, rstd, offset):
    dx, dweight = _grads(x, weight)
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = (None, m, n, 0) if dsum is None else rows(dsum)
    x, _, _, stride_x = rows(x)
    w, rstd = dense(weight), rstd.contiguous()
    along = x.new_empty(m, dtype=torch.float32)
    launch(_row_sums, (m,), dout, x, w, rstd, along, n, stride_dout, stride_x, offset, W=weight is not None, BLOCK_N=2048, num_warps=8)
    strips = cdiv(n, STRIP)
    programs = max(1, min(cdiv(m, 4), resident(x, 8) // strips))
    partial = x.new_empty((programs, n), dtype=torch.float32)
    launch(_strips, (strips, programs), dout, dsum, x, w, rstd, along, dx, partial, m, n, stride_dout, stride_dsum, stride_x,
           offset, R=dsum is not None, W=weight is not None, ROWS=4, BLOCK_N=STRIP, num_warps=4)  # fmt: skip
    if weight is not None:
        add_rows(partial, dweight)
    return dx, dweight


def rmsnorm_backward(dout, x, weight, rstd, offset, *, config):
    return _persistent(dout, None, x, weight, rstd, offset, config)


def rmsnorm_backward_columns(dout, x, weight, rstd, offset):
    return _columns(dout, None, x, weight, rstd, offset)


def add_rmsnorm_backward(dout, dsum, sum, weight, rstd, offset, *, config):
    return _persistent(dout, dsum, sum, weight, rstd, offset, config)


def add_rmsnorm_backward_columns(dout, dsum, sum, weight, rstd, offset):
    return _columns(dout, dsum, sum, weight, rstd, offset)


def pick_backward(call):
    """8 columns a lane where the row is that wide, so that a tile's rows lie in one lane, and three stages: two tiles are on their way
    through shared memory while one is worked on. Two stages where those two would fill it: dsum waits there too."""
    block = power_of_2(row(call).shape[-1])
    if block <= 128:  # 32 elements a lane; 16 where dsum is a third tensor, which else spills on sm_80
        return {"rows": (512 if "dsum" in call else 1024) // block, "warps": 1, "per_sm": 16, "stages": 1}
    warps = min(16, max(1, block // 256))
    per = 4 if block <= 1024 else 2 if block <= 4096 else 1
    waiting = 2 * (3 if "dsum" in call else 2) * per * block * row(call).itemsize
    return {"rows": per, "warps": warps, "per_sm": max(1, 16 // warps), "stages": 3 if waiting <= 128 * 1024 else 2}


FORWARD = (
    Kernel("triton", rmsnorm, "the row in registers: one read", upto(MAX_ROW), ONCE, pick_forward),
    Kernel("triton.online", rmsnorm_online, "a sum of squares a lane: any length, two reads", any_length, ONLINE),
)
BACKWARD = (
    Kernel("triton", rmsnorm_backward, "persistent: weight and partial gradient in registers", upto(MAX_ROW_BACKWARD), PERSISTENT,
           pick_backward),
    Kernel("triton.columns", rmsnorm_backward_columns, "row sums, then strips of columns: any length, two reads", any_length),
)  # fmt: skip

ADD_FORWARD = (
    Kernel("triton", add_rmsnorm, "the sum stays in registers: two reads, two writes", upto(MAX_ROW), ONCE, pick_forward),
    Kernel(
        "triton.online",
        add_rmsnorm_online,
        "the addition done in both reads: any length, four reads",
        any_length,
        ONLINE,
        limits=Limits(spill_bytes_elsewhere=8),
    ),  # sm_100 wants 40 registers for 3 blocks of 16 warps, and parks two
)
ADD_BACKWARD = (
    Kernel("triton", add_rmsnorm_backward, "dsum joins dx where it is written; else as rmsnorm's", upto(MAX_ROW_BACKWARD), PERSISTENT,
           pick_backward),
    Kernel("triton.columns", add_rmsnorm_backward_columns, "row sums, then strips of columns with dsum added: any length", any_length),
)  # fmt: skip
