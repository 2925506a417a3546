"""What attention's Triton kernels share: a tile of rows of one head, in and out of memory, and the sizes of tiles that configs name."""

import math

import triton
import triton.language as tl

from rooftile.ops._shared.launch import power_of_2

LOG2E = math.log2(math.e)  # exp(x) = exp2(x log2 e): one instruction, and the factor rides on the scale


@triton.jit
def head_row(gX, i_b, i_h, first, stride_b, stride_t, stride_h):
    """Row `first` of one head, in 64 bits: one tensor may hold more than 2^31 elements."""
    return gX + i_b.to(tl.int64) * stride_b + i_h.to(tl.int64) * stride_h + tl.cast(first, tl.int64) * stride_t


@triton.jit
def tile_at(gRow, stride_t, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Pointers to BLOCK rows from gRow on: one pointer in 64 bits and 32-bit offsets, so that loops carry no tensor of pointers."""
    return gRow + tl.arange(0, BLOCK)[:, None] * stride_t + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def load_tile(gRow, stride_t, i, N, MASKED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """The tile at gRow, whose rows are i: those below N, zeros elsewhere. A whole tile pays for no mask."""
    at = tile_at(gRow, stride_t, BLOCK, BLOCK_D)
    i_d = tl.arange(0, BLOCK_D)[None, :]
    if MASKED:
        if D == BLOCK_D:
            rX = tl.load(at, mask=i[:, None] < N, other=0.0)
        else:
            rX = tl.load(at, mask=(i[:, None] < N) & (i_d < D), other=0.0)
    else:
        if D == BLOCK_D:
            rX = tl.load(at)
        else:
            rX = tl.load(at, mask=i_d < D, other=0.0)
    return rX


@triton.jit
def store_tile(gX, rX, i_b, i_h, first, i, N, H, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """A tile into rows i, those below N, of one head of the dense tensor [B, N, H, D]."""
    at = tile_at(head_row(gX, i_b, i_h, first, tl.cast(N, tl.int64) * H * D, H * D, D), H * D, BLOCK, BLOCK_D)
    tl.store(at, rX.to(gX.dtype.element_ty), mask=(i[:, None] < N) & (tl.arange(0, BLOCK_D)[None, :] < D))


def dense(x):
    """Rows of D neighbouring elements, a tile of them within 32-bit offsets; anything else is copied."""
    return x if x.stride(-1) == 1 and x.stride(-3) < 2**24 else x.contiguous()


def widths(d, dv):
    """A tile's columns: the next power of two, 16 of them being the least that a product takes."""
    return {"D": d, "BLOCK_D": max(16, power_of_2(d)), "DV": dv, "BLOCK_DV": max(16, power_of_2(dv))}


def forward_tile(m, n, warps, stages):
    """A config of a forward: m queries, n keys a step."""
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def backward_tiles(dq, dkv):
    """A config of a backward: (queries, keys, warps, stages) of the kernel for dq and of the one for dk and dv."""
    return {f"{name}_{x}": value for name, tile in (("dq", dq), ("dkv", dkv)) for x, value in zip(("m", "n", "warps", "stages"), tile)}
