"""LayerNorm and RMSNorm over rows, alone or of a sum: what layernorm, rmsnorm, their sums and dropout_add_norm launch in Triton.

Forward the row stays in registers: one read, and a variance taken from x - mean, not from E[x²] - E[x]². Backward is persistent: a program walks
over many rows with the weight and its share of dweight and dbias in registers and writes one partial row; a second kernel adds the partial
rows in one fixed order. No atomics: two runs give the same bits. Rows of any length are read twice: their sums first, then strips of columns,
where nothing crosses a lane before the last row.

A tensor that a norm does not have is None, and what is said about it is not compiled: gR and gSum (a sum), gMean (LayerNorm), both statistics
forward where no gradient will read them, gW, gB, offset, gDsum, gXb and gDxb (a bias that the branch lacks), and gSeed, gDx, threshold and
scale (dropout; LANE is then 0).
"""

import torch
import triton
import triton.language as tl

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftile.ops._shared.launch import cdiv, launch, parts, power_of_2, resident, rows
from rooftile.ops._shared.norms import dense, gradients, outputs
from rooftile.ops._shared.policy import evict_last
from rooftile.ops._shared.triton_philox import kept

STRIP = 1024  # columns of a strip: 2 KiB of bf16 a row, and 8 columns a lane for 4 warps


@triton.jit
def parameter(g, i_n, in_n):
    """A norm's weight or bias, which all rows read; 0 of one that is not there."""
    if g is None:
        r = 0.0
    else:
        r = tl.load(g + i_n, mask=in_n, other=0.0, eviction_policy="evict_last").to(tl.float32)
    return r


@triton.jit
def affine(rX, gW, gB, i_n, in_n, offset):
    """rX (w + offset) + b, for rows side by side or for one."""
    return applied(rX, gW, gB, parameter(gW, i_n, in_n), parameter(gB, i_n, in_n), offset)


@triton.jit
def applied(rX, gW, gB, rW, rB, offset):
    """The same with both in registers."""
    if gW is not None:
        if len(rX.shape) > len(rW.shape):
            rW = rW[None, :]
        if offset is not None:
            rW += offset
        rX *= rW
    if gB is not None:
        if len(rX.shape) > len(rB.shape):
            rB = rB[None, :]
        rX += rB
    return rX


@triton.jit
def _forward(gX, gXb, gR, gW, gB, gSeed, gSum, gOut, gMean, gRstd, M, N, stride_x, stride_r, threshold, scale, eps, offset,
             LAYER: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LANE: tl.constexpr, AHEAD: tl.constexpr,
             POLICY: tl.constexpr):  # fmt: skip
    """AHEAD: the parameters are asked for with the row, and not when its statistics are known."""
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.arange(0, BLOCK_N)
    in_n = i_n < N
    mask = (i_m < M)[:, None] & in_n[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0, eviction_policy=POLICY).to(tl.float32)
    if AHEAD:
        rW, rB = parameter(gW, i_n, in_n), parameter(gB, i_n, in_n)
    if gR is not None:
        rR = tl.load(gR + i_m[:, None] * stride_r + i_n[None, :], mask=mask, other=0.0, eviction_policy=POLICY).to(tl.float32)
        if LANE:
            rX = tl.where(kept(i_m * N, gSeed, threshold, ROWS, BLOCK_N, LANE), rX * scale, 0.0)
        if gXb is not None:
            rX += parameter(gXb, i_n, in_n)[None, :]
        rSum = (rX + rR).to(gSum.dtype.element_ty)
        tl.store(gSum + i_m[:, None] * N + i_n[None, :], rSum, mask=mask)
        rX = rSum.to(tl.float32)
    mean = tl.zeros([ROWS], tl.float32)
    if LAYER:
        mean = tl.sum(rX, 1) / N + 0.0  # or where it is not stored, the quotient's last product would be subtracted in one multiply-add
        rX = tl.where(in_n[None, :], rX - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(rX * rX, 1) / N + eps)
    if not AHEAD:
        rW, rB = parameter(gW, i_n, in_n), parameter(gB, i_n, in_n)
    rX = applied(rX * rstd[:, None], gW, gB, rW, rB, offset)
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rX.to(gOut.dtype.element_ty), mask=mask)
    if gMean is not None:
        tl.store(gMean + i_m, mean, mask=i_m < M)
    if gRstd is not None:
        tl.store(gRstd + i_m, rstd, mask=i_m < M)


@triton.jit
def factor(gW, i_n, in_n, offset):
    """What a column is multiplied by."""
    rW = parameter(gW, i_n, in_n)
    if gW is not None and offset is not None:
        rW += offset
    return rW


@triton.jit
def _backward(gDout, gDsum, gX, gW, gMean, gRstd, gSums, gSeed, gDx, gDr, gDw, gDb, gDxb, M, N, stride_dout, stride_dsum, stride_x, threshold, scale,
              offset, LAYER: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
              ONE: tl.constexpr, LANE: tl.constexpr):  # fmt: skip
    """Whole rows, or strips of rows whose sums are known: this is then their second and last read. ONE: a program has one tile at most, and asks for
    the weight with it."""
    AXIS: tl.constexpr = 0 if gSums is None else 1
    gdc_launch_dependents()
    i_p = tl.program_id(AXIS)
    programs = tl.num_programs(AXIS)
    first = 0 if gSums is None else tl.program_id(0) * BLOCK_N
    i_n = first + tl.arange(0, BLOCK_N)
    in_n = i_n < N
    rDw = tl.zeros([BLOCK_N], tl.float32)
    rDb = tl.zeros([BLOCK_N], tl.float32)
    rDxb = tl.zeros([BLOCK_N], tl.float32)
    if not ONE:
        rW = factor(gW, i_n, in_n, offset)
    for i_tile in tl.range(i_p, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_m = i_m < M
        mask = in_m[:, None] & in_n[None, :]
        rDout = tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        if LAYER:
            mean = tl.load(gMean + i_m, mask=in_m, other=0.0)
        rRstd = tl.load(gRstd + i_m, mask=in_m, other=0.0)
        if ONE:
            rW = factor(gW, i_n, in_n, offset)
        if gSums is not None:
            along = tl.load(gSums + i_m, mask=in_m, other=0.0)
            if LAYER:
                level = tl.load(gSums + M + i_m, mask=in_m, other=0.0)
        if LAYER:
            rX -= mean[:, None]
        rX = rX * rRstd[:, None]
        if gW is not None:
            rDw += tl.sum(rDout * rX, 0)
        if B:
            rDb += tl.sum(rDout, 0)
        if gW is not None:
            rDout = rDout * rW[None, :]
        if gSums is None:
            along = tl.sum(rDout * rX, 1) / N
            if LAYER:
                level = tl.sum(rDout, 1) / N
        if LAYER:
            rDout -= level[:, None]
        rDr = (rDout - rX * along[:, None]) * rRstd[:, None]
        if gDsum is not None:
            rDr += tl.load(gDsum + i_m[:, None] * stride_dsum + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rWritten = rDr.to(gDr.dtype.element_ty)
        tl.store(gDr + i_m[:, None] * N + i_n[None, :], rWritten, mask=mask)
        if gDxb is not None:
            rDxb += tl.sum(rWritten.to(tl.float32), 0)
        if LANE:
            rDx = tl.where(kept(i_m * N + first, gSeed, threshold, ROWS, BLOCK_N, LANE), rDr * scale, 0.0)
            tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    i_p = i_p.to(tl.int64)
    if gW is not None:
        tl.store(gDw + i_p * N + i_n, rDw.to(gDw.dtype.element_ty), mask=in_n)
    if B:
        tl.store(gDb + i_p * N + i_n, rDb.to(gDb.dtype.element_ty), mask=in_n)
    if gDxb is not None:
        tl.store(gDxb + i_p * N + i_n, rDxb.to(gDxb.dtype.element_ty), mask=in_n)


@triton.jit
def _row_sums(gDout, gX, gW, gMean, gRstd, gSums, M, N, stride_dout, stride_x, offset, LAYER: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    mean = tl.load(gMean + i_m) if LAYER else 0.0
    rstd = tl.load(gRstd + i_m)
    lane_along = tl.zeros([BLOCK_N], tl.float32)
    lane_level = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rDout = tl.load(gDout + i_m * stride_dout + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if LAYER:
            rX -= mean
        rDout = affine(rDout, gW, None, i_n, i_n < N, offset)
        lane_along += rDout * (rX * rstd)
        lane_level += rDout
    tl.store(gSums + i_m, tl.sum(lane_along, 0) / N)
    if LAYER:
        tl.store(gSums + M + i_m, tl.sum(lane_level, 0) / N)


def drawn(norm, x, block):
    """Seed, threshold, scale, and how many neighbours one lane draws: those of a 16-byte load, where rows begin at whole counters. Where
    nothing is dropped, none."""
    if norm.seed is None:
        return None, None, None, 0
    lane = 16 // max(2, x.itemsize)
    return *norm.drawn(x), lane if x.shape[-1] % 4 == 0 and block >= lane else 1


def beside(x):
    """A second tensor's rows and their stride, or none."""
    if x is None:
        return None, 0
    x, _, _, stride = rows(x)
    return x, stride


def forward(x, residual, weight, bias, eps, norm, config, save):
    """out, sum, mean, rstd, as `outputs` has them: the same bits with statistics and without."""
    made = outputs(x, residual, norm, save)
    out, total, mean, rstd = made
    x, m, n, stride = rows(x)
    residual, stride_r = beside(residual)
    block = power_of_2(n)
    seed, least, factor, lane = drawn(norm, x, block)
    launch(_forward, (cdiv(m, config["rows"]),), x, dense(norm.x_bias), residual, dense(weight), dense(bias), seed, total, out, mean, rstd, m, n,
           stride, stride_r, least, factor, eps, norm.offset, LAYER=norm.layer, ROWS=config["rows"], BLOCK_N=block, LANE=lane,
           AHEAD=bool(config["ahead"]), POLICY=evict_last(x, residual), num_warps=config["warps"])  # fmt: skip
    return made


def backward(dout, dsum, x, weight, bias, mean, rstd, norm, config=None):
    """dx where something was dropped, the gradient of what was normalised, dweight, dbias, and dx_bias where the branch lacked one. Without a config
    row sums, then strips.

    One column is its own mean and has no gradient: dout w - mean(dout w) must be zero, and a fused multiply-add would leave its rounding
    times a rstd of 1/sqrt(eps). Hence enable_fp_fusion=n > 1."""
    made = dx, dr, dweight, dbias = gradients(dout, x, weight, bias, norm)
    dx_bias = None if norm.x_bias is None else norm.x_bias.new_empty(norm.x_bias.shape)
    columns = [g for g, p in ((dweight, weight), (dbias, bias), (dx_bias, norm.x_bias)) if p is not None]
    dout, m, n, stride_dout = rows(dout)
    dsum, stride_dsum = beside(dsum)
    x, _, _, stride_x = rows(x)
    weight, mean, rstd, offset, sums = dense(weight), dense(mean), dense(rstd), norm.offset, None
    if config is None:
        sums = x.new_empty((1 + norm.layer, m), dtype=torch.float32)
        launch(
            _row_sums,
            (m,),
            dout,
            x,
            weight,
            mean,
            rstd,
            sums,
            m,
            n,
            stride_dout,
            stride_x,
            offset,
            LAYER=norm.layer,
            BLOCK_N=2048,
            num_warps=8,
        )
        # of 2 rows 8 elements a lane for 8 warps where a mask is drawn, as its words want registers too
        block, per, warps, stages = STRIP, *((4, 4) if norm.seed is None else (2, 8)), None
        grid = cdiv(n, STRIP), max(1, min(cdiv(m, per), resident(x, 32 // warps) // cdiv(n, STRIP)))
    else:
        block, per, warps, stages = power_of_2(n), config["rows"], config["warps"], config["stages"]
        grid = (max(1, min(cdiv(m, per), resident(x, config["per_sm"]))),)
    # every program writes its partial rows, also one with no row to read; of one alone they are the sums
    programs, partial, dw, db, dxb = grid[-1], None, dweight, dbias, dx_bias
    if programs > 1:
        partial = x.new_empty((max(1, len(columns)) * programs, n), dtype=torch.float32)
        dw, db = partial, partial[programs if weight is not None else 0 :]
        dxb = None if dx_bias is None else partial[(len(columns) - 1) * programs :]
    seed, least, factor, lane = drawn(norm, dout, block)
    launch(_backward, grid, dout, dsum, x, weight, mean, rstd, sums, seed, dx, dr, dw, db, dxb, m, n, stride_dout, stride_dsum, stride_x, least,
           factor, offset, LAYER=norm.layer, B=bias is not None, ROWS=per, BLOCK_N=block, STAGES=stages, ONE=cdiv(m, per) <= grid[-1],
           LANE=lane, num_warps=warps, enable_fp_fusion=n > 1)  # fmt: skip
    if partial is not None and columns:
        _add_all(partial, columns)
    made = made if dx is not None else made[1:]
    return made if dx_bias is None else (*made, dx_bias)


@triton.jit
def _add_rows(gPartial, gFirst, gSecond, P, N, WHICH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    gdc_wait()
    which = tl.program_id(1) + WHICH
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rSum = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for start in range(0, P, BLOCK_P):
        i_p = start + tl.arange(0, BLOCK_P)
        mask = (i_p < P)[:, None] & (i_n < N)[None, :]
        rSum += tl.load(gPartial + (which * P + i_p).to(tl.int64)[:, None] * N + i_n[None, :], mask=mask, other=0.0)
    rTotal = tl.sum(rSum, 0)
    if which == 0:
        tl.store(gFirst + i_n, rTotal.to(gFirst.dtype.element_ty), mask=i_n < N)
    else:
        tl.store(gSecond + i_n, rTotal.to(gSecond.dtype.element_ty), mask=i_n < N)


def add_rows(partial, first, second=None):
    """first[N] = the sum over the rows of partial [P, N], float32; with a second, partial is [2 P, N], and of two an empty one is left out.
    16 columns a program: enough programs to fill the device, 64 bytes a row; up to 512 rows asked for at once, so that P = 528 is two rounds."""
    p, n, which, halves, other = parts(partial, first, second)
    block = min(512, max(64, power_of_2(p)))
    launch(
        _add_rows, (cdiv(n, 16), halves), partial, first, other, p, n, WHICH=which, BLOCK_P=block, BLOCK_N=16, num_warps=max(4, block // 32), launch_pdl=True
    )


@triton.jit
def _add_three(gPartial, gThirds, gFirst, gSecond, gThird, P, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    if tl.program_id(1) < 2:
        _add_rows(gPartial, gFirst, gSecond, P, N, 0, BLOCK_P, BLOCK_N)
    else:
        _add_rows(gThirds, gThird, gThird, P, N, -2, BLOCK_P, BLOCK_N)


def _add_all(partial, sums):
    """Each of `sums` from its share of the partial rows, in one launch."""
    if len(sums) < 3:
        add_rows(partial, *sums)
        return
    p, n = len(partial) // 3, partial.shape[-1]
    block = min(512, max(64, power_of_2(p)))  # as add_rows
    launch(_add_three, (cdiv(n, 16), 3), partial, partial[2 * p :], *sums, p, n, BLOCK_P=block, BLOCK_N=16, num_warps=max(4, block // 32))
