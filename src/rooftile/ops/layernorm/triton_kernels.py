"""LayerNorm over rows. Floor: 2 tensors through memory forward, 3 backward; about 8 and 14 operations an element, so bytes decide.

`triton` keeps the row in registers: one read, and a variance taken from x - mean, not from E[x²] - E[x]². Backward it is persistent:
a program walks over many rows with the weight and its share of dweight and dbias in registers and writes one partial row;
a second kernel adds the partial rows in one fixed order. No atomics: two runs give the same bits.
add_layernorm is the same kernels with R set: they read a second tensor, work on the rounded sum and, backward, add dsum to dx.
`triton.online` takes any length: forward in two reads (Welford's statistics, one set a lane); `triton.columns` backward in two reads:
the row sums first, then strips of columns, where nothing crosses a lane before the last row.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, launch, power_of_2, resident, rows
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
def _forward(
    gX, gR, gW, gB, gSum, gOut, gMean, gRstd, M, N, stride_x, stride_r, eps,
    R: tl.constexpr, W: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
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
    mean = tl.sum(rX, 1) / N
    rX = tl.where(in_n[None, :], rX - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(rX * rX, 1) / N + eps)
    rX = rX * rstd[:, None]
    if W:
        rX *= tl.load(gW + i_n, mask=in_n, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :]
    if B:
        rX += tl.load(gB + i_n, mask=in_n, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :]
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rX.to(gOut.dtype.element_ty), mask=mask)
    tl.store(gMean + i_m, mean, mask=i_m < M)
    tl.store(gRstd + i_m, rstd, mask=i_m < M)


@triton.jit
def _forward_online(gX, gW, gB, gOut, gMean, gRstd, N, stride_x, eps, W: tl.constexpr, B: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    i_lane = tl.arange(0, BLOCK_N)
    lane_mean = tl.zeros([BLOCK_N], tl.float32)
    lane_square = tl.zeros([BLOCK_N], tl.float32)  # sum of (x - lane_mean)²
    full = N // BLOCK_N
    for i in range(full):
        rX = tl.load(gX + i_m * stride_x + i * BLOCK_N + i_lane).to(tl.float32)
        rDelta = rX - lane_mean
        lane_mean += rDelta * (1.0 / (i + 1))
        lane_square += rDelta * (rX - lane_mean)
    i_n = full * BLOCK_N + i_lane  # the last, ragged tile: its lanes have seen one element more
    rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
    rDelta = tl.where(i_n < N, rX - lane_mean, 0.0)
    lane_mean += rDelta / (full + 1)
    lane_square += rDelta * tl.where(i_n < N, rX - lane_mean, 0.0)
    lane_count = full + (i_n < N).to(tl.float32)
    mean = tl.sum(lane_mean * lane_count, 0) / N
    apart = lane_mean - mean
    rstd = tl.rsqrt(tl.sum(lane_square + lane_count * apart * apart, 0) / N + eps)
    for start in range(0, N, BLOCK_N):
        i_n = start + i_lane
        rX = (tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_first").to(tl.float32) - mean) * rstd
        if W:
            rX *= tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if B:
            rX += tl.load(gB + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(gOut + i_m * N + i_n, rX.to(gOut.dtype.element_ty), mask=i_n < N)
    tl.store(gMean + i_m, mean)
    tl.store(gRstd + i_m, rstd)


@triton.jit
def _backward(gDout, gDsum, gX, gW, gMean, gRstd, gDx, gPartial, M, N, stride_dout, stride_dsum, stride_x, R: tl.constexpr,
              W: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(0)
    programs = tl.num_programs(0)
    i_n = tl.arange(0, BLOCK_N)
    in_n = i_n < N
    rDw = tl.zeros([BLOCK_N], tl.float32)
    rDb = tl.zeros([BLOCK_N], tl.float32)
    if W:
        rW = tl.load(gW + i_n, mask=in_n, other=0.0).to(tl.float32)
    for i_tile in tl.range(i_p, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_m = i_m < M
        mask = in_m[:, None] & in_n[None, :]
        rDout = tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rMean = tl.load(gMean + i_m, mask=in_m, other=0.0)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        rX = (rX - rMean[:, None]) * rRstd[:, None]
        if W:
            rDw += tl.sum(rDout * rX, 0)
        if B:
            rDb += tl.sum(rDout, 0)
        if W:
            rDout = rDout * rW[None, :]
        along = tl.sum(rDout * rX, 1) / N
        level = tl.sum(rDout, 1) / N
        rDx = (rDout - level[:, None] - rX * along[:, None]) * rRstd[:, None]
        if R:
            rDx += tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    i_p = i_p.to(tl.int64)
    if W:
        tl.store(gPartial + i_p * N + i_n, rDw, mask=in_n)
    if B:
        tl.store(gPartial + (programs + i_p) * N + i_n, rDb, mask=in_n)


@triton.jit
def _row_sums(gDout, gX, gW, gMean, gRstd, gSums, M, N, stride_dout, stride_x, W: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    mean, rstd = tl.load(gMean + i_m), tl.load(gRstd + i_m)
    lane_along = tl.zeros([BLOCK_N], tl.float32)
    lane_level = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if W:
            rDout *= tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        lane_along += rDout * ((rX - mean) * rstd)
        lane_level += rDout
    tl.store(gSums + i_m, tl.sum(lane_along, 0) / N)
    tl.store(gSums + M + i_m, tl.sum(lane_level, 0) / N)


@triton.jit
def _strips(gDout, gDsum, gX, gW, gMean, gRstd, gSums, gDx, gPartial, M, N, stride_dout, stride_dsum, stride_x, R: tl.constexpr,
            W: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(1)
    programs = tl.num_programs(1)
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = i_n < N
    rDw = tl.zeros([BLOCK_N], tl.float32)
    rDb = tl.zeros([BLOCK_N], tl.float32)
    if W:
        rW = tl.load(gW + i_n, mask=in_n, other=0.0).to(tl.float32)
    for i_tile in range(i_p, tl.cdiv(M, ROWS), programs):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_m = i_m < M
        mask = in_m[:, None] & in_n[None, :]
        rDout = tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(
            tl.float32
        )
        rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        along = tl.load(gSums + i_m, mask=in_m, other=0.0)
        level = tl.load(gSums + M + i_m, mask=in_m, other=0.0)
        rX = (rX - tl.load(gMean + i_m, mask=in_m, other=0.0)[:, None]) * rRstd[:, None]
        if W:
            rDw += tl.sum(rDout * rX, 0)
        if B:
            rDb += tl.sum(rDout, 0)
        if W:
            rDout = rDout * rW[None, :]
        rDx = (rDout - level[:, None] - rX * along[:, None]) * rRstd[:, None]
        if R:
            rDx += tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    i_p = i_p.to(tl.int64)
    if W:
        tl.store(gPartial + i_p * N + i_n, rDw, mask=in_n)
    if B:
        tl.store(gPartial + (programs + i_p) * N + i_n, rDb, mask=in_n)


def _outputs(x):
    out = x.new_empty(x.shape)
    mean = x.new_empty(x.shape[:-1], dtype=torch.float32)
    return out, mean, torch.empty_like(mean)


def layernorm(x, weight, bias, eps, *, config):
    out, _, mean, rstd = _once(x, None, weight, bias, eps, config)
    return out, mean, rstd


def add_layernorm(x, residual, weight, bias, eps, *, config):
    return _once(x, residual, weight, bias, eps, config)


def _once(x, residual, weight, bias, eps, config):
    out, mean, rstd = _outputs(x)
    total = None if residual is None else out.new_empty(out.shape, dtype=residual.dtype)
    x, m, n, stride = rows(x)
    residual, _, _, stride_r = (None, m, n, 0) if residual is None else rows(residual)
    weight, bias = dense(weight), dense(bias)
    launch(_forward, (cdiv(m, config["rows"]),), x, residual, weight, bias, total, out, mean, rstd, m, n, stride, stride_r, eps,
           R=residual is not None, W=weight is not None, B=bias is not None, ROWS=config["rows"], BLOCK_N=power_of_2(n),
           num_warps=config["warps"])  # fmt: skip
    return out, total, mean, rstd


def layernorm_online(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    weight, bias = dense(weight), dense(bias)
    launch(_forward_online, (m,), x, weight, bias, out, mean, rstd, n, stride, eps, W=weight is not None, B=bias is not None,
           BLOCK_N=config["block"], num_warps=config["warps"])  # fmt: skip
    return out, mean, rstd


def add_layernorm_online(x, residual, weight, bias, eps, *, config):
    total = torch.add(x, residual, out=x.new_empty(x.shape, dtype=residual.dtype))
    out, mean, rstd = layernorm_online(total, weight, bias, eps, config=config)
    return out.to(x.dtype), total, mean, rstd


# One column is its own mean and has no gradient: dout w - mean(dout w) must be zero, and a fused multiply-add would leave its rounding
# times a rstd of 1/sqrt(eps). Hence enable_fp_fusion=n > 1 below.


def _grads(x, weight, bias):
    dx = x.new_empty(x.shape)
    dweight = x.new_empty(0) if weight is None else x.new_empty(weight.shape, dtype=weight.dtype)
    dbias = x.new_empty(0) if bias is None else x.new_empty(bias.shape, dtype=bias.dtype)
    return dx, dweight, dbias


def layernorm_backward(dout, x, weight, bias, mean, rstd, *, config):
    return _persistent(dout, None, x, weight, bias, mean, rstd, config)


def add_layernorm_backward(dout, dsum, sum, weight, bias, mean, rstd, *, config):
    return _persistent(dout, dsum, sum, weight, bias, mean, rstd, config)


def _persistent(dout, dsum, x, weight, bias, mean, rstd, config):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = (None, m, n, 0) if dsum is None else rows(dsum)
    x, _, _, stride_x = rows(x)
    weight = dense(weight)
    # every program writes its partial rows, also one with no row to read
    programs = max(1, min(cdiv(m, config["rows"]), resident(x, config["per_sm"])))
    partial = x.new_empty((2, programs, n), dtype=torch.float32)
    launch(_backward, (programs,), dout, dsum, x, weight, mean.contiguous(), rstd.contiguous(), dx, partial, m, n,
           stride_dout, stride_dsum, stride_x, R=dsum is not None, W=weight is not None, B=bias is not None,
           ROWS=config["rows"], BLOCK_N=power_of_2(n), STAGES=config["stages"],
           num_warps=config["warps"], enable_fp_fusion=n > 1)  # fmt: skip
    if weight is not None or bias is not None:
        add_rows(partial, dweight, dbias)
    return dx, dweight, dbias


def layernorm_backward_columns(dout, x, weight, bias, mean, rstd):
    return _columns(dout, None, x, weight, bias, mean, rstd)


def add_layernorm_backward_columns(dout, dsum, sum, weight, bias, mean, rstd):
    return _columns(dout, dsum, sum, weight, bias, mean, rstd)


def _columns(dout, dsum, x, weight, bias, mean, rstd):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = (None, m, n, 0) if dsum is None else rows(dsum)
    x, _, _, stride_x = rows(x)
    weight, mean, rstd = dense(weight), mean.contiguous(), rstd.contiguous()
    sums = x.new_empty((2, m), dtype=torch.float32)
    launch(_row_sums, (m,), dout, x, weight, mean, rstd, sums, m, n, stride_dout, stride_x, W=weight is not None, BLOCK_N=2048, num_warps=8)
    strips = cdiv(n, STRIP)
    programs = max(1, min(cdiv(m, 4), resident(x, 8) // strips))
    partial = x.new_empty((2, programs, n), dtype=torch.float32)
    launch(_strips, (strips, programs), dout, dsum, x, weight, mean, rstd, sums, dx, partial, m, n, stride_dout, stride_dsum, stride_x,
           R=dsum is not None, W=weight is not None, B=bias is not None, ROWS=4, BLOCK_N=STRIP, num_warps=4,
           enable_fp_fusion=n > 1)  # fmt: skip
    if weight is not None or bias is not None:
        add_rows(partial, dweight, dbias)
    return dx, dweight, dbias


def pick_backward(call):
    """8 columns a lane where the row is that wide: the rows of a tile then lie in one lane, and their share of dweight adds up there.
    Three stages: two tiles (32 KiB at N=1024) are on their way through shared memory while one is worked on; 16 warps of 128 registers."""
    block = power_of_2(row(call).shape[-1])
    if block <= 128:
        return {"rows": 1024 // block, "warps": 1, "per_sm": 16, "stages": 1}
    warps = min(16, max(1, block // 256))
    per = 4 if block <= 1024 else 2 if block <= 4096 else 1
    return {"rows": per, "warps": warps, "per_sm": max(1, 16 // warps), "stages": 3}


def pick_add_backward(call):
    """The same, but three tensors wait in shared memory: two tiles of the longest float32 rows would be 192 KiB, one is 96."""
    config = pick_backward(call)
    waiting = 2 * 3 * config["rows"] * power_of_2(row(call).shape[-1]) * row(call).itemsize
    return config if waiting <= 128 * 1024 else {**config, "stages": 2}


FORWARD = (
    Kernel("triton", layernorm, "the row in registers: one read", upto(MAX_ROW), ONCE, pick_forward),
    Kernel("triton.online", layernorm_online, "Welford's statistics a lane: any length, two reads", any_length, ONLINE),
)
BACKWARD = (
    Kernel(
        "triton",
        layernorm_backward,
        "persistent: weight and partial gradients in registers",
        upto(MAX_ROW_BACKWARD),
        PERSISTENT,
        pick_backward,
    ),
    Kernel("triton.columns", layernorm_backward_columns, "row sums, then strips of columns: any length, two reads", any_length),
)

ADD_FORWARD = (
    Kernel("triton", add_layernorm, "the sum stays in registers: two reads, two writes", upto(MAX_ROW), ONCE, pick_forward),
    Kernel("triton.online", add_layernorm_online, "the addition in a pass of its own, then layernorm's: any length", any_length, ONLINE),
)
ADD_BACKWARD = (
    Kernel(
        "triton",
        add_layernorm_backward,
        "dsum joins dx where it is written; else as layernorm's",
        upto(MAX_ROW_BACKWARD),
        PERSISTENT,
        pick_add_backward,
        Limits(spill_bytes_elsewhere=8),  # sm_100, 2 rows on 16 warps
    ),
    Kernel("triton.columns", add_layernorm_backward_columns, "row sums, then strips of columns with dsum added: any length", any_length),
)
