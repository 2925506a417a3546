"""Sums over ragged segments of rows. Floor: x read once and out written once at 4274 GB/s, 4 bytes a float32 element of x for one addition;
backward reads dout and writes dx.

No atomics: a program owns a segment and adds its rows in one order. So that one long segment does not keep one program busy while the
others are done, x is cut at the multiples of CHUNK: a first kernel adds every chunk that lies in one segment, on as many programs as there
are chunks, and the second adds head, chunks and tail. CHUNK is near the root of M: a segment of all M rows is then about as many partial
rows as a chunk has rows.
"""

import math

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, dense_like, launch, off_gpu, power_of_2, rows
from rooftile.ops.segment_sum.reference import check_offsets


@triton.jit
def _tile(gX, i_m, in_m, i_n, in_n, stride_x):
    """Rows i_m, zero where there is none."""
    return tl.load(gX + i_m.to(tl.int64)[:, None] * stride_x + i_n[None, :], mask=in_m[:, None] & in_n[None, :], other=0.0).to(tl.float32)


@triton.jit
def _chunk_sums(gX, gOffsets, gPartial, E, N, stride_x, steps, CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    i_c = tl.program_id(0).to(tl.int64)
    i_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = i_n < N
    low = i_c * 0  # how many offsets are not beyond the chunk's first row
    high = low + E + 1
    for _ in range(steps):
        open_ = low < high
        middle = (low + high) // 2
        passed = tl.load(gOffsets + middle, mask=open_, other=0) <= i_c * CHUNK
        low = tl.where(open_ & passed, middle + 1, low)
        high = tl.where(open_ & (passed == 0), middle, high)
    inside = (low > 0) & (low <= E)
    if tl.load(gOffsets + low, mask=inside, other=0) >= i_c * CHUNK + CHUNK:
        rSum = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for start in range(0, CHUNK, ROWS):
            i_r = start + tl.arange(0, ROWS)
            rSum += _tile(gX, i_c * CHUNK + i_r, i_r < CHUNK, i_n, in_n, stride_x)
        tl.store(gPartial + i_c * N + i_n, tl.sum(rSum, 0), mask=in_n)


@triton.jit
def _segments(gX, gOffsets, gPartial, gOut, M, N, stride_x, CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    i_e = tl.program_id(0).to(tl.int64)
    i_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = i_n < N
    i_r = tl.arange(0, ROWS)
    begin, end = tl.load(gOffsets + i_e).to(tl.int64), tl.load(gOffsets + i_e + 1).to(tl.int64)
    right = (begin >= 0) & (begin <= end) & (end <= M)
    begin, end = tl.where(right, begin, 0), tl.where(right, end, 0)
    first, last = tl.cdiv(begin, CHUNK), end // CHUNK
    whole = last > first
    rSum = tl.zeros([ROWS, BLOCK_N], tl.float32)
    head = tl.where(whole, first * CHUNK, end)
    for start in range(begin, head, ROWS):
        rSum += _tile(gX, start + i_r, start + i_r < head, i_n, in_n, stride_x)
    if whole:
        for start in range(first, last, ROWS):
            rSum += _tile(gPartial, start + i_r, start + i_r < last, i_n, in_n, N)
        for start in range(last * CHUNK, end, ROWS):
            rSum += _tile(gX, start + i_r, start + i_r < end, i_n, in_n, stride_x)
    rOut = tl.where(right, tl.sum(rSum, 0), float("nan"))
    tl.store(gOut + i_e * N + i_n, rOut.to(gOut.dtype.element_ty), mask=in_n)


@triton.jit
def _numbers(gX, i_m, end, stride_x):
    """Numbers i_m of several segments, a row of the tile each; zero from `end` on."""
    return tl.load(gX + i_m * stride_x, mask=i_m < end[:, None], other=0.0).to(tl.float32)


@triton.jit
def _narrow_segments(gX, gOffsets, gPartial, gOut, M, E, stride_x, CHUNK: tl.constexpr, SEGMENTS: tl.constexpr, ROWS: tl.constexpr):
    """Where a row is one number: several segments a program, lanes along their rows."""
    i_e = tl.program_id(0).to(tl.int64) * SEGMENTS + tl.arange(0, SEGMENTS)
    in_e = i_e < E
    i_r = tl.arange(0, ROWS)[None, :]
    begin, end = tl.load(gOffsets + i_e, mask=in_e, other=0).to(tl.int64), tl.load(gOffsets + i_e + 1, mask=in_e, other=0).to(tl.int64)
    right = (begin >= 0) & (begin <= end) & (end <= M)
    begin, end = tl.where(right, begin, 0), tl.where(right, end, 0)
    first, last = tl.cdiv(begin, CHUNK), end // CHUNK
    whole = last > first
    head = tl.where(whole, first * CHUNK, end)
    last, tail = tl.where(whole, last, first), tl.where(whole, last * CHUNK, end)
    rSum = tl.zeros([SEGMENTS, ROWS], tl.float32)
    for start in range(0, tl.max(head - begin, 0), ROWS):
        rSum += _numbers(gX, begin[:, None] + start + i_r, head, stride_x)
    for start in range(0, tl.max(last - first, 0), ROWS):
        rSum += _numbers(gPartial, first[:, None] + start + i_r, last, 1)
    for start in range(0, tl.max(end - tail, 0), ROWS):
        rSum += _numbers(gX, tail[:, None] + start + i_r, end, stride_x)
    rOut = tl.where(right, tl.sum(rSum, 1), float("nan"))
    tl.store(gOut + i_e, rOut.to(gOut.dtype.element_ty), mask=in_e)


@triton.jit
def _spread(gDout, gOffsets, gDx, M, E, N, stride_dout, steps, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    low = tl.zeros([ROWS], tl.int32)
    high = tl.zeros([ROWS], tl.int32) + E + 1
    for _ in range(steps):
        open_ = low < high
        middle = (low + high) // 2
        passed = tl.load(gOffsets + middle, mask=open_, other=0) <= i_m
        low = tl.where(open_ & passed, middle + 1, low)
        high = tl.where(open_ & (passed == 0), middle, high)
    inside = (low > 0) & (low <= E)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    gRow = gDout + (low - 1).to(tl.int64)[:, None] * stride_dout
    rDx = tl.load(gRow + i_n[None, :], mask=mask & inside[:, None], other=0.0)
    tl.store(gDx + i_m[:, None] * N + i_n[None, :], rDx, mask=mask)


def _shape(n, itemsize, tile):
    """(rows, columns) of a tile: 512 bytes of a row or the whole of it, and `tile` elements in all."""
    block = min(512 // itemsize, power_of_2(n))
    return max(1, min(1024, tile // block)), block


def segment_sum(x, offsets, *, config):
    check_offsets(offsets, x.shape[0])
    segments = offsets.numel() - 1
    out = x.new_empty((segments, x.shape[1]))
    if not out.numel():
        return out
    offsets = offsets.contiguous()
    m = x.shape[0]
    x, _, n, stride = rows(x)
    per, block = _shape(n, x.itemsize, config["tile"])
    chunk = min(1024, max(64, power_of_2(math.isqrt(m))))
    strips = cdiv(n, block)
    partial = x.new_empty((m // chunk, n), dtype=torch.float32)
    launch(_chunk_sums, (m // chunk, strips), x, offsets, partial, segments, n, stride, (segments + 1).bit_length(), CHUNK=chunk,
           ROWS=per, BLOCK_N=block, num_warps=config["warps"])  # fmt: skip
    if n == 1:
        # 2 segments a warp: a lane keeps six 64-bit numbers of each. Of 8 segments of 64 rows on average the longest has 174: two steps of 128
        several = 2 * config["warps"]
        launch(_narrow_segments, (cdiv(segments, several),), x, offsets, partial, out, m, segments, stride, CHUNK=chunk, SEGMENTS=several,
               ROWS=config["tile"] // 32, num_warps=config["warps"])  # fmt: skip
        return out
    launch(_segments, (segments, strips), x, offsets, partial, out, m, n, stride, CHUNK=chunk, ROWS=per, BLOCK_N=block,
           num_warps=config["warps"])  # fmt: skip
    return out


def segment_sum_backward(dout, x, offsets):
    dx = dense_like(x)
    segments = offsets.numel() - 1
    if not dout.numel():
        return dx.zero_()
    offsets = offsets.contiguous()
    dout, _, n, stride = rows(dout)
    per, block = _shape(n, dout.itemsize, 4096)
    launch(_spread, (cdiv(x.shape[0], per), cdiv(n, block)), dout, offsets, dx, x.shape[0], segments, n, stride,
           (segments + 1).bit_length(), ROWS=per, BLOCK_N=block, num_warps=4)  # fmt: skip
    return dx


# 4096 elements on 4 warps: 8 loads of 16 bytes a lane in float32; a segment of the anchor (64 rows of 128) is two of them
_CONFIGS = tuple({"tile": t, "warps": w} for t, w in ((4096, 4), (2048, 2), (2048, 4), (4096, 2), (8192, 4), (1024, 1), (1024, 4)))

FORWARD = (Kernel("triton", segment_sum, "a program a segment, long ones in chunks", lambda call: off_gpu(call["x"]), _CONFIGS),)
BACKWARD = (Kernel("triton", segment_sum_backward, "each row looks up its segment", lambda call: off_gpu(call["dout"])),)
