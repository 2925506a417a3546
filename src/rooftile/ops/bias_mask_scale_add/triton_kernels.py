"""Bias, mask, scale and residual in one pass. Floor: 3 tensors and a mask of bytes through memory forward (7 bytes a bf16 element), 2 and the
mask backward (5 bytes); 4 and 3 operations. At 4274 GB/s a byte takes the time of 7 instructions of a lane: bytes decide.

A program takes a tile of rows, so that the bias is read once for all of them. Backward it walks down a strip of columns with its share of
dbias in registers and writes one partial row; a second kernel adds the partial rows in one fixed order. The residual's gradient is the
output's own: no kernel reads or writes it.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2, resident, rows
from rooftile.ops._shared.partials import add_rows
from rooftile.ops._shared.policy import evict_last


@triton.jit
def _forward(gX, gBias, gMask, gResidual, gOut, M, N, strips, scale, stride_x, stride_mask, stride_residual,
             ROWS: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    i_m = (tl.program_id(0) // strips).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.program_id(0) % strips * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, eviction_policy=POLICY).to(tl.float32)
    rMask = tl.load(gMask + i_m[:, None] * stride_mask + i_n[None, :], mask=mask, other=0, eviction_policy=POLICY)
    rR = tl.load(gResidual + i_m[:, None] * stride_residual + i_n[None, :], mask=mask, eviction_policy=POLICY).to(tl.float32)
    rBias = tl.load(gBias + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
    rOut = tl.where(rMask != 0, (rX + rBias[None, :]) * scale, 0.0) + rR
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rOut.to(gOut.dtype.element_ty), mask=mask)


@triton.jit
def _backward(gDout, gMask, gDx, gPartial, M, N, strips, scale, stride_dout, stride_mask,
              ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(0) // strips
    programs = tl.num_programs(0) // strips
    i_n = tl.program_id(0) % strips * BLOCK_N + tl.arange(0, BLOCK_N)
    rSum = tl.zeros([ROWS, BLOCK_N], tl.float32)  # a row of sums for each row of the tile: nothing crosses a lane before the last
    for i_tile in tl.range(i_p, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        mask = (i_m < M)[:, None] & (i_n < N)[None, :]
        rDout = tl.load(gDout + i_m[:, None] * stride_dout + i_n[None, :], mask=mask, other=0.0, eviction_policy=POLICY).to(tl.float32)
        rMask = tl.load(gMask + i_m[:, None] * stride_mask + i_n[None, :], mask=mask, other=0, eviction_policy=POLICY)
        rDx = tl.where(rMask != 0, rDout * scale, 0.0)
        rSum += rDx
        tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)
    tl.store(gPartial + i_p.to(tl.int64) * N + i_n, tl.sum(rSum, 0), mask=i_n < N)


def bias_mask_scale_add(x, bias, mask, scale, residual, *, config):
    out = x.new_empty(x.shape)
    x, m, n, stride_x = rows(x)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    residual, _, _, stride_residual = rows(residual)
    block = min(config["block"], max(16, power_of_2(n)))
    strips = cdiv(n, block)
    launch(_forward, (cdiv(m, config["rows"]) * strips,), x, bias.contiguous(), mask, residual, out, m, n, strips, scale, stride_x,
           stride_mask, stride_residual, ROWS=config["rows"], BLOCK_N=block, POLICY=evict_last(x, mask, residual),
           num_warps=config["warps"])  # fmt: skip
    return out


def bias_mask_scale_add_backward(dout, bias, mask, scale, *, config):
    dx, dbias = dout.new_empty(dout.shape), bias.new_empty(bias.shape)
    dout, m, n, stride_dout = rows(dout)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    block = min(config["block"], max(16, power_of_2(n)))
    strips = cdiv(n, block)
    # every program writes its partial row, also one with no row to read
    programs = max(1, min(cdiv(m, config["rows"]), resident(dout, config["per_sm"]) // max(1, strips)))
    partial = dout.new_empty((programs, n), dtype=torch.float32)
    launch(_backward, (programs * strips,), dout, mask, dx, partial, m, n, strips, scale, stride_dout, stride_mask,
           ROWS=config["rows"], BLOCK_N=block, STAGES=config["stages"], POLICY=evict_last(dout, mask),
           num_warps=config["warps"])  # fmt: skip
    add_rows(partial, dbias)
    return dx, dbias


def pick(call):
    """16 elements a lane: 2 loads of 16 bytes of x and the residual each, and the mask's, in flight. Few elements: one row a program."""
    if call["x"].numel() * call["x"].itemsize >= 2**24:
        return _TILES[0]
    return {"rows": 1, "block": 1024, "warps": 4}


# Strips of 1024 columns, 4 rows a tile: 8 elements a lane and row. 80 registers leave room for 6 programs of 4 warps a multiprocessor, and no
# more are started, as each has an equal share of the rows: 73 KB of their tiles in flight, with two stages the next tiles' as well
_TILES = tuple({"rows": r, "block": b, "warps": w} for r, b, w in ((4, 1024, 8), (2, 2048, 8), (2, 1024, 4), (1, 2048, 4), (1, 4096, 8), (8, 512, 8)))  # fmt: skip
_STRIPS = tuple(
    {"rows": r, "block": b, "warps": w, "per_sm": p, "stages": s}
    for r, b, w, p, s in (
        (4, 1024, 4, 6, 1), (4, 1024, 8, 4, 1), (8, 512, 4, 6, 1), (4, 1024, 4, 4, 2), (4, 1024, 4, 4, 3), (2, 2048, 4, 4, 1),
        (2, 1024, 4, 10, 1), (4, 1024, 8, 3, 2), (8, 1024, 8, 3, 1), (2, 1024, 4, 8, 2), (4, 512, 4, 10, 1), (2, 512, 2, 16, 3),
    )
)  # fmt: skip

FORWARD = (
    Kernel("triton", bias_mask_scale_add, "one pass, the bias read once for a tile of rows", lambda call: off_gpu(call["x"]), _TILES, pick),
)
BACKWARD = (
    Kernel("triton", bias_mask_scale_add_backward, "strips of columns, the bias's gradient in registers", lambda call: off_gpu(call["dout"]), _STRIPS),
)  # fmt: skip
