"""A bias's gradient: the columns of dout summed in two fixed stages, without atomics, so the same bits every time."""

import torch
import triton
import triton.language as tl

from rooftile.ops._shared.launch import cdiv, launch

SUM_CHUNKS = 64  # row chunks of the first stage of dbias: with N = 768 that is 12 x 64 programs, almost six a multiprocessor


@triton.jit
def _column_sum(gX, gOut, M, N, rows, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """gOut[chunk, :] = the sum of the chunk's `rows` rows of gX."""
    i_n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    first = tl.program_id(1).to(tl.int64) * rows
    rSum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, rows, BLOCK_M):
        i_m = first + start + tl.arange(0, BLOCK_M)[:, None]
        mask = (i_m < min(M, first + rows)) & (i_n < N)
        rSum += tl.load(gX + i_m * stride_m + i_n * stride_n, mask=mask, other=0.0).to(tl.float32)
    rOut = tl.sum(rSum, 0)[None, :]
    tl.store(gOut + tl.program_id(1).to(tl.int64) * N + i_n, rOut.to(gOut.dtype.element_ty), mask=i_n < N)


def column_sum(x):
    """The sum of each column in float32, in an order that depends on the shape only."""
    m, n = x.shape
    chunks = min(SUM_CHUNKS, max(1, cdiv(m, 64)))
    out = x.new_empty(n)
    part = x.new_empty(chunks, n, dtype=torch.float32)
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}  # 32 elements a lane: four 16-byte loads in flight
    launch(_column_sum, (cdiv(n, 64), chunks), x, part, m, n, cdiv(m, chunks), *x.stride(), **tile)
    launch(_column_sum, (cdiv(n, 64), 1), part, out, chunks, n, chunks, n, 1, **tile)
    return out
