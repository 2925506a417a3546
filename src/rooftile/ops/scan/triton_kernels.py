"""Cumulative sums along rows. Floor: 2 tensors through memory at 4274 GB/s (8 bytes a float32 element) and one addition an element.

Everything is an inclusive sum: an exclusive one is the inclusive sum of the row moved by one place, so it is read moved and nothing is
subtracted. From the end, tiles are taken last to first and each is summed from its end.

`triton` has a row in registers. `triton.walk` goes along a row tile by tile with the sum so far: any length, one read. `triton.segments`
cuts few long rows into as many segments as programs are resident: their sums (one read), the sums of those sums, then each segment
walked from its own start (a second read): 3 tensors through memory, so two thirds of the floor's speed at best.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, dense_like, launch, off_gpu, power_of_2, resident, rows

MAX_ROW = 8192  # 16 warps hold 16 float32 a lane
TILE = 4096
FEW = 64  # rows: fewer programs than half the multiprocessors of an H200


@triton.jit
def _read(gRow, i_n, mask, N, EXCLUSIVE: tl.constexpr, REVERSE: tl.constexpr, INTEGER: tl.constexpr):
    """What the sums at i_n have in addition to the sums one place before."""
    if EXCLUSIVE:
        if REVERSE:
            rX = tl.load(gRow + i_n + 1, mask=mask & (i_n + 1 < N), other=0)
        else:
            rX = tl.load(gRow + i_n - 1, mask=mask & (i_n > 0), other=0)
    else:
        rX = tl.load(gRow + i_n, mask=mask, other=0)
    return rX.to(tl.int32) if INTEGER else rX.to(tl.float32)


@triton.jit
def _rows(gX, gOut, M, N, stride_x, EXCLUSIVE: tl.constexpr, REVERSE: tl.constexpr, INTEGER: tl.constexpr,
          ROWS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (i_m < M) & (i_n < N)
    rX = _read(gX + i_m * stride_x, i_n, mask, N, EXCLUSIVE, REVERSE, INTEGER)
    rOut = tl.cumsum(rX, 1, reverse=REVERSE)
    tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=mask)


@triton.jit
def _segment_sums(gX, gSums, N, stride_x, segments, tiles, EXCLUSIVE: tl.constexpr, REVERSE: tl.constexpr, INTEGER: tl.constexpr,
                  BLOCK_N: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(0).to(tl.int64)
    gRow = gX + i_p // segments * stride_x
    first = i_p % segments * tiles
    rSum = tl.zeros([BLOCK_N], tl.int32 if INTEGER else tl.float32)
    for i_tile in range(tiles):
        i_n = (first + i_tile) * BLOCK_N + tl.arange(0, BLOCK_N)
        rSum += _read(gRow, i_n, i_n < N, N, EXCLUSIVE, REVERSE, INTEGER)
    tl.store(gSums + i_p, tl.sum(rSum, 0))


@triton.jit
def _walk(gX, gBefore, gOut, N, stride_x, segments, tiles, EXCLUSIVE: tl.constexpr, REVERSE: tl.constexpr, INTEGER: tl.constexpr,
          CUT: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_p = tl.program_id(0).to(tl.int64)
    i_m = i_p // segments
    first = i_p % segments * tiles
    if CUT:
        before = tl.load(gBefore + i_p)
    else:
        before = tl.zeros([], tl.int32 if INTEGER else tl.float32)
    for i in range(tiles):
        i_tile = first + (tiles - 1 - i if REVERSE else i)
        i_n = i_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        rX = _read(gX + i_m * stride_x, i_n, i_n < N, N, EXCLUSIVE, REVERSE, INTEGER)
        rOut = tl.cumsum(rX, 0, reverse=REVERSE) + before
        before += tl.sum(rX, 0)
        tl.store(gOut + i_m * N + i_n, rOut.to(gOut.dtype.element_ty), mask=i_n < N)


def _switches(x, exclusive, reverse):
    return {"EXCLUSIVE": bool(exclusive), "REVERSE": bool(reverse), "INTEGER": not x.is_floating_point()}


def scan(x, exclusive, reverse):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    block = power_of_2(n)
    per = max(1, TILE // block)
    launch(_rows, (cdiv(m, per),), x, out, m, n, stride, **_switches(x, exclusive, reverse), ROWS=per, BLOCK_N=block,
           num_warps=max(4, min(16, per * block // 512)))  # fmt: skip
    return out


def scan_walk(x, exclusive, reverse, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(_walk, (m,), x, None, out, n, stride, 1, cdiv(n, config["block"]), **_switches(x, exclusive, reverse), CUT=False,
           BLOCK_N=config["block"], num_warps=config["warps"])  # fmt: skip
    return out


def scan_segments(x, exclusive, reverse, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    if not out.numel():
        return out
    block, warps, switches = config["block"], config["warps"], _switches(x, exclusive, reverse)
    tiles = cdiv(cdiv(n, block), max(2, min(MAX_ROW, resident(x, config["per_sm"]) // m)))
    segments = cdiv(n, block * tiles)
    sums = x.new_empty((m, segments), dtype=torch.float32 if x.is_floating_point() else torch.int32)
    launch(_segment_sums, (m * segments,), x, sums, n, stride, segments, tiles, **switches, BLOCK_N=block, num_warps=warps)
    launch(_walk, (m * segments,), x, scan(sums, True, reverse), out, n, stride, segments, tiles, **switches, CUT=True,
           BLOCK_N=block, num_warps=warps)  # fmt: skip
    return out


def scan_backward(dout, exclusive, reverse):
    return scan(dout, exclusive, not reverse)


def scan_walk_backward(dout, exclusive, reverse, *, config):
    return scan_walk(dout, exclusive, not reverse, config=config)


def scan_segments_backward(dout, exclusive, reverse, *, config):
    return scan_segments(dout, exclusive, not reverse, config=config)


def _tensor(call):
    return call["x"] if "x" in call else call["dout"]


def _short(call):
    n = _tensor(call).shape[-1]
    return off_gpu(_tensor(call)) or (None if n <= MAX_ROW else f"N={n} is longer than the {MAX_ROW} columns a program keeps in registers")


def _many(call):
    x = _tensor(call)
    m, n = x.shape[:-1].numel(), x.shape[-1]
    return off_gpu(x) or (f"M={m} rows of N={n}: under {FEW} programs would leave the device idle" if m < FEW and n > 16 * TILE else None)


def _any(call):
    return off_gpu(_tensor(call))


def pick_walk(call):
    """4096 elements on 8 warps: 16 a lane; short rows in 5 to 8 tiles, or a walk would be one step."""
    block = min(TILE, max(16, power_of_2(cdiv(_tensor(call).shape[-1], 8))))
    return {"block": block, "warps": max(1, min(8, block // 512))}


def pick_segments(call):
    return {**pick_walk(call), "per_sm": 4}


_WALK = tuple({"block": b, "warps": w} for b, w in ((4096, 8), (2048, 4), (4096, 4), (8192, 8), (8192, 16), (2048, 8)))
_SEGMENTS = tuple({**c, "per_sm": p} for p in (4, 8) for c in _WALK)

IDEAS = ("the row in registers", "tile by tile with the sum so far: any length, one read", "sums of segments, then each walked: two reads")
FORWARD = (
    Kernel("triton", scan, IDEAS[0], _short),
    Kernel("triton.walk", scan_walk, IDEAS[1], _many, _WALK, pick_walk),
    Kernel("triton.segments", scan_segments, IDEAS[2], _any, _SEGMENTS, pick_segments),
)
BACKWARD = (
    Kernel("triton", scan_backward, IDEAS[0], _short),
    Kernel("triton.walk", scan_walk_backward, IDEAS[1], _many, _WALK, pick_walk),
    Kernel("triton.segments", scan_segments_backward, IDEAS[2], _any, _SEGMENTS, pick_segments),
)
