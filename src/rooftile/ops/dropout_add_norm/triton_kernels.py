"""Dropout, residual and norm in one pass. Floor: 4 tensors through memory forward (8 bytes a bf16 element), 5 backward (10 bytes), and no mask;
10 and 16 operations an element and 15 of integers for the mask. At 4274 GB/s a byte takes the time of 7 instructions of a lane: bytes decide,
if one Philox call serves four neighbours. Rows whose length is no multiple of 4 draw a call for each element, 60 operations, and pay for it.

`triton` keeps the row in registers: one read. Backward it is persistent: a program walks over many rows with the weight and its share of
dweight and dbias in registers and writes one partial row; a second kernel adds the partial rows in one fixed order.
`triton.online` takes any length: the sum is written with Welford's statistics, one set a lane, and read again from the L2;
`triton.columns` backward in two reads: the row sums first, then strips of columns. RMSNorm is LayerNorm with a mean of zero.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, launch, power_of_2, resident, rows
from rooftile.ops._shared.norms import MAX_ROW, MAX_ROW_BACKWARD, TILE, any_length, dense, row, upto
from rooftile.ops._shared.partials import add_rows
from rooftile.ops._shared.philox import scale, threshold
from rooftile.ops._shared.triton_philox import kept

STRIP = 1024  # columns of a strip: 2 KiB of bf16 a row; of 2 rows 8 elements a lane for 8 warps, as the mask's words want registers too


@triton.jit
def _forward(gX, gR, gW, gB, gSeed, gSum, gOut, gMean, gRstd, M, N, stride_x, stride_r, threshold, scale, eps, LAYER: tl.constexpr,
             W: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LANE: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.arange(0, BLOCK_N)
    in_n = i_n < N
    mask = (i_m < M)[:, None] & in_n[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    rR = tl.load(gR + i_m[:, None] * stride_r + i_n[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    rSum = (tl.where(kept(i_m * N, gSeed, threshold, ROWS, BLOCK_N, LANE), rX * scale, 0.0) + rR).to(gSum.dtype.element_ty)
    tl.store(gSum + i_m[:, None] * N + i_n[None, :], rSum, mask=mask)
    rX = rSum.to(tl.float32)
    mean = tl.zeros([ROWS], tl.float32)
    if LAYER:
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
def _forward_online(gX, gR, gW, gB, gSeed, gSum, gOut, gMean, gRstd, N, stride_x, stride_r, threshold, scale, eps, LAYER: tl.constexpr,
                    W: tl.constexpr, B: tl.constexpr, BLOCK_N: tl.constexpr, LANE: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    i_lane = tl.arange(0, BLOCK_N)[None, :]
    lane_mean = tl.zeros([1, BLOCK_N], tl.float32)
    lane_square = tl.zeros([1, BLOCK_N], tl.float32)  # sum of (x - lane_mean)²
    for i in range(tl.cdiv(N, BLOCK_N)):
        i_n = i * BLOCK_N + i_lane
        rX = tl.load(gX + i_m[:, None] * stride_x + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rR = tl.load(gR + i_m[:, None] * stride_r + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rKept = kept(i_m * N + i * BLOCK_N, gSeed, threshold, 1, BLOCK_N, LANE)
        rSum = (tl.where(rKept, rX * scale, 0.0) + rR).to(gSum.dtype.element_ty)
        tl.store(gSum + i_m[:, None] * N + i_n, rSum, mask=i_n < N)
        rX = rSum.to(tl.float32)
        rDelta = tl.where(i_n < N, rX - lane_mean, 0.0)
        if LAYER:
            lane_mean += rDelta * (1.0 / (i + 1))
        lane_square += rDelta * tl.where(i_n < N, rX - lane_mean, 0.0)
    mean = tl.zeros([1], tl.float32)
    if LAYER:
        lane_count = (N // BLOCK_N + (i_lane < N % BLOCK_N)).to(tl.float32)  # the lanes of the last, ragged tile have seen one more
        mean = tl.sum(lane_mean * lane_count, 1) / N
        apart = lane_mean - mean[:, None]
        lane_square += lane_count * apart * apart
    rstd = tl.rsqrt(tl.sum(lane_square, 1) / N + eps)
    tl.debug_barrier()  # the sum that one thread wrote may be read by another
    for start in range(0, N, BLOCK_N):
        i_n = start + i_lane
        rX = (tl.load(gSum + i_m[:, None] * N + i_n, mask=i_n < N, other=0.0).to(tl.float32) - mean[:, None]) * rstd[:, None]
        if W:
            rX *= tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if B:
            rX += tl.load(gB + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(gOut + i_m[:, None] * N + i_n, rX.to(gOut.dtype.element_ty), mask=i_n < N)
    tl.store(gMean + i_m, mean)
    tl.store(gRstd + i_m, rstd)


@triton.jit
def _backward(gDout, gDsum, gS, gW, gMean, gRstd, gSeed, gDx, gDr, gPartial, M, N, stride_dout, stride_dsum, stride_s, threshold, scale,
              LAYER: tl.constexpr, W: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
              LANE: tl.constexpr):  # fmt: skip
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
        rS = tl.load(gS + i_m[:, None] * stride_s + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rDsum = tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        if LAYER:
            rS -= tl.load(gMean + i_m, mask=in_m, other=0.0)[:, None]
        rS *= rRstd[:, None]
        if W:
            rDw += tl.sum(rDout * rS, 0)
        if B:
            rDb += tl.sum(rDout, 0)
        if W:
            rDout = rDout * rW[None, :]
        along = tl.sum(rDout * rS, 1) / N
        if LAYER:
            rDout -= (tl.sum(rDout, 1) / N)[:, None]
        rDr = (rDout - rS * along[:, None]) * rRstd[:, None] + rDsum
        rDx = tl.where(kept(i_m * N, gSeed, threshold, ROWS, BLOCK_N, LANE), rDr * scale, 0.0)
        tl.store(gDr + i_m[:, None] * N + i_n[None, :], rDr.to(gDr.dtype.element_ty), mask=mask)
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    i_p = i_p.to(tl.int64)
    if W:
        tl.store(gPartial + i_p * N + i_n, rDw, mask=in_n)
    if B:
        tl.store(gPartial + (programs + i_p) * N + i_n, rDb, mask=in_n)


@triton.jit
def _row_sums(gDout, gS, gW, gMean, gRstd, gSums, M, N, stride_dout, stride_s, W: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    mean, rstd = tl.load(gMean + i_m), tl.load(gRstd + i_m)
    lane_along = tl.zeros([BLOCK_N], tl.float32)
    lane_level = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rS = tl.load(gS + i_m * stride_s + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if W:
            rDout *= tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        lane_along += rDout * ((rS - mean) * rstd)
        lane_level += rDout
    tl.store(gSums + i_m, tl.sum(lane_along, 0) / N)
    tl.store(gSums + M + i_m, tl.sum(lane_level, 0) / N)


@triton.jit
def _strips(gDout, gDsum, gS, gW, gMean, gRstd, gSeed, gSums, gDx, gDr, gPartial, M, N, stride_dout, stride_dsum, stride_s, threshold, scale,
            LAYER: tl.constexpr, W: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LANE: tl.constexpr):  # fmt: skip
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
        rDout = tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rS = tl.load(gS + i_m[:, None] * stride_s + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rDsum = tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        rS = (rS - tl.load(gMean + i_m, mask=in_m, other=0.0)[:, None]) * rRstd[:, None]
        if W:
            rDw += tl.sum(rDout * rS, 0)
        if B:
            rDb += tl.sum(rDout, 0)
        if W:
            rDout = rDout * rW[None, :]
        if LAYER:
            rDout -= tl.load(gSums + M + i_m, mask=in_m, other=0.0)[:, None]
        rDr = (rDout - rS * tl.load(gSums + i_m, mask=in_m, other=0.0)[:, None]) * rRstd[:, None] + rDsum
        rDx = tl.where(kept(i_m * N + tl.program_id(0) * BLOCK_N, gSeed, threshold, ROWS, BLOCK_N, LANE), rDr * scale, 0.0)
        tl.store(gDr + i_m[:, None] * N + i_n[None, :], rDr.to(gDr.dtype.element_ty), mask=mask)
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    i_p = i_p.to(tl.int64)
    if W:
        tl.store(gPartial + i_p * N + i_n, rDw, mask=in_n)
    if B:
        tl.store(gPartial + (programs + i_p) * N + i_n, rDb, mask=in_n)


def _lane(x, n, block):
    """Neighbours that one lane draws: those of a 16-byte load, where rows begin at whole counters."""
    lane = 16 // max(2, x.itemsize)
    return lane if n % 4 == 0 and block >= lane else 1


def outputs(x, residual):
    """out, sum, mean, rstd"""
    return (
        x.new_empty(x.shape),
        residual.new_empty(residual.shape),
        x.new_empty(x.shape[:-1], dtype=torch.float32),
        x.new_empty(x.shape[:-1], dtype=torch.float32),
    )


def gradients(dout, sum, weight, bias):
    """dx, dresidual, dweight, dbias"""
    return (
        dout.new_empty(dout.shape),
        sum.new_empty(sum.shape),
        *(sum.new_empty(0) if t is None else t.new_empty(t.shape) for t in (weight, bias)),
    )


def dropout_add_norm(x, residual, weight, bias, seed, p, eps, norm, *, config):
    made = outputs(x, residual)
    out, total, mean, rstd = made
    x, m, n, stride = rows(x)
    residual, _, _, stride_r = rows(residual)
    block = power_of_2(n)
    launch(_forward, (cdiv(m, config["rows"]),), x, residual, dense(weight), dense(bias), seed, total, out, mean, rstd, m, n, stride, stride_r,
           threshold(p), scale(p), eps, LAYER=norm == "layer", W=weight is not None, B=bias is not None, ROWS=config["rows"], BLOCK_N=block,
           LANE=_lane(x, n, block), num_warps=config["warps"])  # fmt: skip
    return made


def online(x, residual, weight, bias, seed, p, eps, norm, *, config):
    made = outputs(x, residual)
    out, total, mean, rstd = made
    x, m, n, stride = rows(x)
    residual, _, _, stride_r = rows(residual)
    block = min(config["block"], power_of_2(n))
    launch(_forward_online, (m,), x, residual, dense(weight), dense(bias), seed, total, out, mean, rstd, n, stride, stride_r, threshold(p),
           scale(p), eps, LAYER=norm == "layer", W=weight is not None, B=bias is not None, BLOCK_N=block, LANE=_lane(x, n, block),
           num_warps=config["warps"])  # fmt: skip
    return made


def dropout_add_norm_backward(dout, dsum, sum, weight, bias, mean, rstd, seed, p, norm, *, config):
    made = gradients(dout, sum, weight, bias)
    dx, dr = made[:2]
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = rows(dsum)
    sum, _, _, stride_s = rows(sum)
    # every program writes its partial rows, also one with no row to read
    programs = max(1, min(cdiv(m, config["rows"]), resident(sum, config["per_sm"])))
    partial = sum.new_empty((2 * programs, n), dtype=torch.float32)
    block = power_of_2(n)
    launch(_backward, (programs,), dout, dsum, sum, dense(weight), mean.contiguous(), rstd.contiguous(), seed, dx, dr, partial, m, n,
           stride_dout, stride_dsum, stride_s, threshold(p), scale(p), LAYER=norm == "layer", W=weight is not None, B=bias is not None,
           ROWS=config["rows"], BLOCK_N=block, STAGES=config["stages"], LANE=_lane(dout, n, block), num_warps=config["warps"],
           enable_fp_fusion=n > 1)  # fmt: skip
    return _reduced(made, partial)


def columns(dout, dsum, sum, weight, bias, mean, rstd, seed, p, norm):
    made = gradients(dout, sum, weight, bias)
    dx, dr = made[:2]
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = rows(dsum)
    sum, _, _, stride_s = rows(sum)
    weight, mean, rstd = dense(weight), mean.contiguous(), rstd.contiguous()
    sums = sum.new_empty((2, m), dtype=torch.float32)
    launch(
        _row_sums, (m,), dout, sum, weight, mean, rstd, sums, m, n, stride_dout, stride_s, W=weight is not None, BLOCK_N=2048, num_warps=8
    )
    strips = cdiv(n, STRIP)
    programs = max(1, min(cdiv(m, 2), resident(sum, 4) // strips))
    partial = sum.new_empty((2 * programs, n), dtype=torch.float32)
    launch(_strips, (strips, programs), dout, dsum, sum, weight, mean, rstd, seed, sums, dx, dr, partial, m, n, stride_dout, stride_dsum, stride_s,
           threshold(p), scale(p), LAYER=norm == "layer", W=weight is not None, B=bias is not None, ROWS=2, BLOCK_N=STRIP,
           LANE=_lane(dout, n, STRIP), num_warps=8, enable_fp_fusion=n > 1)  # fmt: skip
    return _reduced(made, partial)


def _reduced(made, partial):
    """dweight and dbias from the partial rows. One column is its own mean and has no gradient: a fused multiply-add would leave its rounding
    times a rstd of 1/sqrt(eps), hence enable_fp_fusion=n > 1 above."""
    if made[2].numel() or made[3].numel():
        add_rows(partial, *made[2:])
    return made


def pick_forward(call):
    """16 elements a lane, half of add_layernorm's: the words of the mask want registers too. Warps lie along the row, rows in the lane."""
    block = power_of_2(row(call).shape[-1])
    per = max(1, min(TILE // block, 16)) if block >= 512 else 8
    return {"rows": per, "warps": min(16, max(1, per * block // 512))}


def pick_backward(call):
    """8 columns a lane where the row is that wide, so that a tile's rows lie in one lane; three stages where two tiles of three tensors leave
    room in shared memory, and 16 warps of 128 registers."""
    block = power_of_2(row(call).shape[-1])
    if block <= 128:
        return {"rows": 512 // block, "warps": 1, "per_sm": 16, "stages": 1}
    warps = min(16, max(1, block // 256))
    per = 2 if block <= 4096 else 1
    waiting = 2 * 3 * per * block * row(call).itemsize
    return {"rows": per, "warps": warps, "per_sm": max(1, 16 // warps), "stages": 3 if waiting <= 128 * 1024 else 2}


_ONCE = tuple({"rows": r, "warps": w} for r, warps in ((1, (2, 4, 8, 16)), (2, (4, 8, 16)), (4, (4, 8, 16))) for w in warps)
_ONLINE = tuple({"block": b, "warps": w} for b, w in ((4096, 8), (8192, 16), (4096, 16), (2048, 8)))
_PERSISTENT = tuple(
    {"rows": r, "warps": w, "per_sm": p, "stages": s}
    for r, warps, per_sm, stages in ((1, (4, 8, 16), (1, 2, 4), (1, 3)), (2, (8, 16), (1, 2), (1, 2, 3)), (4, (4, 8), (2,), (1, 2)))
    for w in warps
    for p in per_sm
    for s in stages
)

FORWARD = (
    Kernel("triton", dropout_add_norm, "the row in registers, four neighbours a Philox call", upto(MAX_ROW), _ONCE, pick_forward),
    Kernel("triton.online", online, "the sum written with its statistics and read again: any length", any_length, _ONLINE),
)
BACKWARD = (
    Kernel("triton", dropout_add_norm_backward, "persistent: weight and partial gradients in registers, the mask drawn again",
           upto(MAX_ROW_BACKWARD), _PERSISTENT, pick_backward),
    Kernel("triton.columns", columns, "row sums, then strips of columns: any length, two reads", any_length,
           limits=Limits(spill_bytes_elsewhere=8)),  # sm_80 keeps to 128 registers, or 80, and parks two
)  # fmt: skip
