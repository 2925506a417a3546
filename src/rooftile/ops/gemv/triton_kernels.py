"""Matrix times vector. Floor: the matrix through memory once at 4274 GB/s, 2 bytes (fp16) or 4 (fp32) an element, and 2 operations: tensor
cores have nothing to reuse. Backward reads the matrix and writes one of its size, 3 operations an element.

A program takes ROWS rows and a slice of the columns, keeps ROWS x BLOCK_K sums in registers and joins the lanes once. Matrices too flat to
give every multiprocessor its programs are cut into slices, whose partial sums are added in one order: no atomics. Backward, a program
walks down a strip of columns: dA is written as the matrix is read, and the strip's share of dx needs no exchange before the last row.
A matrix that is stored by columns is multiplied the same way, without the writing.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, dense_like, launch, off_gpu, power_of_2, resident, rows
from rooftile.ops._shared.partials import add_rows

PER_SM = 4  # programs a multiprocessor before a row is cut


@triton.jit
def _by_rows(gA, gX, gOut, M, K, stride_a, tiles, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr):
    """WHOLE: tiles cover the matrix exactly, and nobody asks where it ends."""
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_s = tl.program_id(1)
    in_m = i_m < M
    rSum = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for i_tile in range(i_s * tiles, i_s * tiles + tiles):
        i_k = i_tile * BLOCK_K + tl.arange(0, BLOCK_K)
        in_k = i_k < K
        if WHOLE:
            rX = tl.load(gX + i_k, eviction_policy="evict_last").to(tl.float32)
            rA = tl.load(gA + i_m[:, None] * stride_a + i_k[None, :], eviction_policy="evict_first").to(tl.float32)
        else:
            rX = tl.load(gX + i_k, mask=in_k, other=0.0, eviction_policy="evict_last").to(tl.float32)
            rA = tl.load(gA + i_m[:, None] * stride_a + i_k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0,
                         eviction_policy="evict_first").to(tl.float32)  # fmt: skip
        rSum += rA * rX[None, :]
    tl.store(gOut + i_s.to(tl.int64) * M + i_m, tl.sum(rSum, 1).to(gOut.dtype.element_ty), mask=in_m)


@triton.jit
def _by_columns(gA, gDout, gX, gDa, gPartial, M, K, stride_a, DA: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Partial sums of A^T dout down a strip of columns, and with DA the strip of dA = dout x^T."""
    i_p = tl.program_id(1)
    programs = tl.num_programs(1)
    i_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    in_k = i_k < K
    rSum = tl.zeros([ROWS, BLOCK_K], tl.float32)
    if DA:
        rX = tl.load(gX + i_k, mask=in_k, other=0.0).to(tl.float32)
    for i_tile in range(i_p, tl.cdiv(M, ROWS), programs):
        i_m = (i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        in_m = i_m < M
        mask = in_m[:, None] & in_k[None, :]
        rDout = tl.load(gDout + i_m, mask=in_m, other=0.0).to(tl.float32)
        rA = tl.load(gA + i_m[:, None] * stride_a + i_k[None, :], mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rSum += rA * rDout[:, None]
        if DA:
            tl.store(gDa + i_m[:, None] * K + i_k[None, :], (rDout[:, None] * rX[None, :]).to(gDa.dtype.element_ty), mask=mask)
    tl.store(gPartial + i_p.to(tl.int64) * K + i_k, tl.sum(rSum, 0), mask=in_k)


def gemv(a, x, *, config):
    x = x.contiguous()
    if a.stride(1) != 1 and a.stride(0) == 1:  # stored by columns: the rows of its transpose
        return _columns(a.t(), x, None, a.new_empty(a.shape[0]), False)
    out = a.new_empty(a.shape[0])
    a, m, k, stride = rows(a)
    m = out.numel()
    block = min(config["block"], max(16, power_of_2(k)))
    groups = cdiv(m, config["rows"])
    tiles = cdiv(k, block)
    slices = max(1, min(tiles // 4, resident(a, PER_SM) // max(1, groups)))  # a slice of under 4 tiles is mostly start and end
    tiles = cdiv(tiles, slices)
    slices = max(1, cdiv(cdiv(k, block), max(1, tiles)))
    partial = out if slices == 1 else out.new_empty((slices, m), dtype=torch.float32)
    whole = m % config["rows"] == 0 and k == slices * tiles * block
    launch(_by_rows, (groups, slices), a, x, partial, m, k, stride, tiles, ROWS=config["rows"], BLOCK_K=block, WHOLE=whole, num_warps=config["warps"])
    if slices > 1:
        add_rows(partial, out)
    return out


def _columns(a, dout, x, dx, wanted):
    """dx = A^T dout for a matrix of rows, and dA where it is wanted."""
    da = dense_like(a) if wanted else None
    m = a.shape[0]
    a, _, k, stride = rows(a)
    block = min(256 if a.itemsize == 4 else 512, max(16, power_of_2(k)))
    per = max(8, 2048 // block)  # a narrow matrix: more rows side by side, and so shorter chains of additions
    strips = cdiv(k, block)
    programs = max(1, min(cdiv(m, 4 * per), resident(a, 8) // max(1, strips)))
    partial = a.new_empty((programs, k), dtype=torch.float32)
    launch(_by_columns, (strips, programs), a, dout, x, da, partial, m, k, stride, DA=wanted, ROWS=per, BLOCK_K=block, num_warps=4)
    add_rows(partial, dx)
    return (da, dx) if wanted else dx


def gemv_backward(dout, a, x):
    return _columns(a, dout.contiguous(), x.contiguous(), dense_like(x), True)


# 4096 sums on 4 warps: 32 a lane, 8 loads of 16 bytes in flight in float32; 4 rows share one read of the vector from the L2
_CONFIGS = tuple({"rows": r, "block": b, "warps": w} for r, b, w in ((4, 1024, 4), (8, 512, 4), (2, 1024, 4), (4, 512, 4), (8, 1024, 8), (1, 2048, 4), (2, 2048, 8), (1, 4096, 8), (1, 4096, 16), (2, 4096, 16)))  # fmt: skip


def one_row(call):
    """A row a program, all of it in flight at once: rows of 8 to 16 KB, enough of them for every multiprocessor."""
    m, k = call["a"].shape
    return 2048 < k <= 4096 and m >= 1024


def pick(call):
    return _CONFIGS[-3 if call["a"].itemsize == 2 else -2] if one_row(call) else _CONFIGS[0]


LIMITS = Limits(spill_bytes_elsewhere=8)  # triton 3.6 on sm_80: 56 registers for 9 programs a multiprocessor, and two are parked

FORWARD = (
    Kernel(
        "triton",
        gemv,
        "a few rows a program, flat matrices cut into slices",
        lambda call: off_gpu(call["a"]),
        _CONFIGS,
        pick,
        limits=LIMITS,
    ),
)
BACKWARD = (
    Kernel("triton", gemv_backward, "strips of columns: both gradients in one read of the matrix", lambda call: off_gpu(call["a"])),
)
