"""x added to the residual stream. Floor: 3 tensors through memory, 6 bytes a bf16 element and 10 with a float32 stream, for one addition;
at 4274 GB/s a byte takes the time of 7 instructions of a lane, so nothing but bytes. In place it is the same bytes and one tensor less of
memory. The gradient of both inputs is the output's own: no kernel runs.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops._shared.pointwise import no_rows, place, tile, together, warps
from rooftile.ops._shared.policy import evict_last


@triton.jit
def _add(
    gX, gResidual, gOut, N, tiles, stride_x, stride_residual, stride_out, SOLE: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr
):
    i_m, i_n = place(tiles, SOLE, BLOCK)
    rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    rSum = rX + tl.load(gResidual + i_m * stride_residual + i_n, mask=i_n < N, eviction_policy=POLICY).to(tl.float32)
    tl.store(gOut + i_m * stride_out + i_n, rSum.to(gOut.dtype.element_ty), mask=i_n < N)


@triton.jit
def _copy(gDout, gDx, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(gDx + i, tl.load(gDout + i, mask=i < N), mask=i < N)


def _sum(x, residual, out, config):
    """Where there is no `out` the sum takes the residual's place."""
    m, n, (x, residual), (stride_x, stride_residual) = together(x, residual)
    out, stride_out = (residual, stride_residual) if out is None else (out, n)
    block = tile(n, config["block"])
    tiles = cdiv(n, block)
    launch(_add, (m * tiles,), x, residual, out, n, tiles, stride_x, stride_residual, stride_out, SOLE=m == 1, BLOCK=block,
           POLICY=evict_last(x, residual), num_warps=warps(block, config))  # fmt: skip


def residual_add(x, residual, *, config):
    out = residual.new_empty(residual.shape)
    _sum(x, residual, out, config)
    return out


def overwrite(x, residual, *, config):
    _sum(x, residual, None, config)


def residual_add_backward(dout):
    dout = dout.contiguous()
    dx = torch.empty_like(dout)
    launch(_copy, (cdiv(dout.numel(), 4096),), dout, dx, dout.numel(), BLOCK=4096, num_warps=8)
    return dx


def pick(call):
    """16 elements a lane: two loads of 16 bytes from each of two bf16 tensors. Under 16 MB 4096 a program are too few programs to even out."""
    return _TILES[0] if call["residual"].numel() * call["residual"].itemsize >= 2**24 else {"block": 1024, "warps": 4}


_TILES = tuple({"block": b, "warps": w} for b, w in ((4096, 8), (2048, 4), (1024, 4), (2048, 8), (8192, 16), (4096, 4)))

FORWARD = (Kernel("triton", residual_add, "two reads, one write, any row strides", lambda call: off_gpu(call["x"]), _TILES, pick),)
BACKWARD = (Kernel("triton", residual_add_backward, "one read, one write", lambda call: off_gpu(call["dout"])),)
OVERWRITE = (
    Kernel("triton", overwrite, "the sum takes the residual's place", lambda call: off_gpu(call["x"]) or no_rows("residual", call["residual"]),
           _TILES, pick),
)  # fmt: skip
