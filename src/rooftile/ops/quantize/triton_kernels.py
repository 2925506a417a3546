"""Quantisation to 8 bits. Floor: x read once and a byte an element written, 3 bytes an element of 16 bits; with one scale for the whole
tensor x is read twice, 5 bytes. 4 operations an element: magnitude, maximum, multiplication, conversion.

Multiplications and additions are not fused: the reference says every rounding, and all kernels give its bits.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import driver

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import DRY, cdiv, launch, off_gpu, power_of_2, resident, rows
from rooftile.ops.quantize.reference import LARGEST, scale_shape

TILE = 4096
MAX_ROW = 16384
GROUPS = 16  # of 128 columns a program of 4 warps: 16 elements a lane; with 32 the addresses of a ragged row spill
EXACT = {"enable_fp_fusion": False}


@triton.jit
def counted(rX):
    """What counts for an extremum: a NaN as nothing, infinity as the largest float32."""
    rX = tl.where(rX == rX, rX, 0.0)
    return tl.minimum(tl.maximum(rX, -3.4028234663852886e38), 3.4028234663852886e38)


@triton.jit
def scale_of(amax, RECIPROCAL: tl.constexpr, POWER: tl.constexpr):
    scale = tl.maximum(amax * RECIPROCAL, 1.1754943508222875e-38)
    if POWER:
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return scale


@triton.jit
def rounded(rX, gOut, LARGEST: tl.constexpr):
    """To the dtype that is pointed to: nearest, ties to even, saturating."""
    if gOut.dtype.element_ty == tl.int8:
        rX = libdevice.rint(tl.where(rX == rX, rX, 0.0))
    rX = tl.where(rX > LARGEST, LARGEST, tl.where(rX < -LARGEST, -LARGEST, rX))  # a NaN stays
    return rX.to(gOut.dtype.element_ty)


@triton.jit
def _rows(gX, gOut, gScale, M, N, stride, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr, ROWS: tl.constexpr,
          BLOCK_N: tl.constexpr):  # fmt: skip
    """A scale a row: the row stays in registers."""
    i_m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    i_n = tl.arange(0, BLOCK_N)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rX = tl.load(gX + i_m[:, None] * stride + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(tl.abs(counted(rX)), 1), RECIPROCAL, POWER)
    tl.store(gScale + i_m, scale, mask=i_m < M)
    rOut = rounded(rX * tl.div_rn(tl.full([ROWS], 1.0, tl.float32), scale)[:, None], gOut, LARGEST)
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rOut, mask=mask)


@triton.jit
def _long_rows(gX, gOut, gScale, N, stride, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr, BLOCK_N: tl.constexpr):
    """A scale a row that is read twice, the second time from its end: that part is still in the caches."""
    i_m = tl.program_id(0).to(tl.int64)
    rMax = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rMax = tl.maximum(rMax, tl.abs(counted(rX)))
    scale = scale_of(tl.max(rMax, 0), RECIPROCAL, POWER)
    tl.store(gScale + i_m, scale)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, N, BLOCK_N):
        i_n = (tl.cdiv(N, BLOCK_N) - 1) * BLOCK_N - start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        tl.store(gOut + i_m * N + i_n, rounded(rX * inverse, gOut, LARGEST), mask=i_n < N)


@triton.jit
def _groups(gX, gOut, gScale, M, N, stride, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr, GROUPS: tl.constexpr):
    """A scale for 128 columns of a row. Groups are numbered along the rows, as their scales lie."""
    across = tl.cdiv(N, 128)
    i_g = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    i_m, in_g = i_g // across, i_g < M * across
    i_n = ((i_g % across).to(tl.int32) * 128)[:, None] + tl.arange(0, 128)[None, :]
    mask = in_g[:, None] & (i_n < N)
    rX = tl.load(gX + (i_m * stride)[:, None] + i_n, mask=mask, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(tl.abs(counted(rX)), 1), RECIPROCAL, POWER)
    tl.store(gScale + i_g, scale, mask=in_g)
    rOut = rounded(rX * tl.div_rn(tl.full([GROUPS], 1.0, tl.float32), scale)[:, None], gOut, LARGEST)
    tl.store(gOut + (i_m * N)[:, None] + i_n, rOut, mask=mask)


@triton.jit
def _tiles(gX, gOut, gScale, M, N, stride, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr):
    """A scale for 128 rows by 128 columns: a program each."""
    across = tl.cdiv(N, 128)
    i_p = tl.program_id(0).to(tl.int64)
    i_m = (i_p // across * 128 + tl.arange(0, 128))[:, None]
    i_n = (i_p % across * 128 + tl.arange(0, 128))[None, :]
    mask = (i_m < M) & (i_n < N)
    rX = tl.load(gX + i_m * stride + i_n, mask=mask, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(tl.max(tl.abs(counted(rX)), 1), 0), RECIPROCAL, POWER)
    tl.store(gScale + i_p, scale)
    tl.store(gOut + i_m * N + i_n, rounded(rX * tl.div_rn(1.0, scale), gOut, LARGEST), mask=mask)


@triton.jit
def _extremes(gX, gLow, gHigh, total, BLOCK: tl.constexpr):
    """The smallest and the largest element that each program of a persistent grid sees, 0 among them."""
    rLow = tl.zeros([BLOCK], tl.float32)
    rHigh = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, total, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        rX = counted(tl.load(gX + i, mask=i < total, other=0.0).to(tl.float32))
        rLow, rHigh = tl.minimum(rLow, rX), tl.maximum(rHigh, rX)
    tl.store(gLow + tl.program_id(0), tl.min(rLow, 0))
    tl.store(gHigh + tl.program_id(0), tl.max(rHigh, 0))


@triton.jit
def _whole(gX, gOut, gScale, gZero, gLow, gHigh, total, parts, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr,
           AFFINE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One scale for all. It begins where the first pass ended, which is still in the L2."""
    i_p = tl.arange(0, PARTS)
    low = tl.min(tl.load(gLow + i_p, mask=i_p < parts, other=0.0), 0)
    high = tl.max(tl.load(gHigh + i_p, mask=i_p < parts, other=0.0), 0)
    if AFFINE:
        scale = tl.maximum((0.5 * high - 0.5 * low) * RECIPROCAL, 1.1754943508222875e-38)
    else:
        scale = scale_of(tl.maximum(high, -low), RECIPROCAL, POWER)
    inverse = tl.div_rn(1.0, scale)
    zero = 0.0
    if AFFINE:
        zero = tl.minimum(tl.maximum(libdevice.rint(-128.0 - low * inverse), -128.0), 127.0)
    if tl.program_id(0) == 0:
        tl.store(gScale, scale)
        if AFFINE:
            tl.store(gZero, zero.to(tl.int32))
    i = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < total, other=0.0).to(tl.float32) * inverse
    if AFFINE:
        rX = libdevice.rint(tl.where(rX == rX, rX, 0.0)) + zero
        rOut = tl.minimum(tl.maximum(rX, -128.0), 127.0).to(tl.int8)
    else:
        rOut = rounded(rX, gOut, LARGEST)
    tl.store(gOut + i, rOut, mask=i < total)


@triton.jit
def _dequantize(gX, gScale, gZero, gOut, M, N, stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SHIFTED: tl.constexpr,
                GROUPS: tl.constexpr):  # fmt: skip
    """Groups of 128 columns of a row: each has one scale, whatever the blocks are."""
    across = tl.cdiv(N, 128)
    i_g = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    i_m, in_g = i_g // across, i_g < M * across
    i_s = i_m // BLOCK_M if BLOCK_M else tl.zeros([GROUPS], tl.int64)
    if BLOCK_N:
        i_s = i_s * across + i_g % across
    scale = tl.load(gScale + i_s, mask=in_g, other=0.0)
    i_n = ((i_g % across).to(tl.int32) * 128)[:, None] + tl.arange(0, 128)[None, :]
    mask = in_g[:, None] & (i_n < N)
    rX = tl.load(gX + (i_m * stride)[:, None] + i_n, mask=mask).to(tl.float32)
    if SHIFTED:
        rX -= tl.load(gZero).to(tl.float32)
    tl.store(gOut + (i_m * N)[:, None] + i_n, (rX * scale[:, None]).to(gOut.dtype.element_ty), mask=mask)


def matrix(x):
    """`rows`, which counts none where there are no columns: they have scales all the same."""
    m = len(x)
    x, _, n, stride = rows(x)
    return x, m, n, stride


def quantize(x, to, block_m, block_n, power):
    x, m, n, stride = matrix(x)
    values = x.new_empty((m, n), dtype=getattr(torch, to))
    scale = x.new_empty(scale_shape(m, n, block_m, block_n), dtype=torch.float32)
    code = {"LARGEST": LARGEST[to], "RECIPROCAL": 1 / LARGEST[to], "POWER": power, **EXACT}
    if block_m == 0:
        _in_one(x if stride == n else x.contiguous(), values, scale, None, code)
    elif block_m == 128:
        launch(_tiles, (cdiv(m, 128) * cdiv(n, 128),), x, values, scale, m, n, stride, **_first(code), num_warps=8)
    elif block_n == 128:
        launch(_groups, (cdiv(m * cdiv(n, 128), GROUPS),), x, values, scale, m, n, stride, **_first(code, GROUPS=GROUPS), num_warps=4)
    elif n <= MAX_ROW:
        block = power_of_2(n)
        per = min(32, max(1, TILE // block))
        launch(_rows, (cdiv(m, per),), x, values, scale, m, n, stride, **_first(code, ROWS=per, BLOCK_N=block),
               num_warps=min(16, max(4, block // 512)))  # fmt: skip
    else:
        launch(_long_rows, (m,), x, values, scale, n, stride, **_first(code, BLOCK_N=8192), num_warps=8)
    return values, scale


def _first(code, **more):
    """Constants in the order of the kernels' parameters; what is for the compiler comes last."""
    return {**{n: v for n, v in code.items() if n not in EXACT}, **more, **EXACT}


def _in_one(x, values, scale, zero, code):
    total = x.numel()
    programs = max(1, min(cdiv(total, 4 * TILE), resident(x, 2)))
    extremes = x.new_empty((2, programs), dtype=torch.float32)
    launch(_extremes, (programs,), x, extremes[0], extremes[1], total, BLOCK=4 * TILE, num_warps=16)
    affine = zero is not None
    launch(_whole, (max(1, cdiv(total, 2 * TILE)),), x, values, scale, zero if affine else scale, extremes[0], extremes[1], total, programs,
           **_first(code, AFFINE=affine, PARTS=power_of_2(programs), BLOCK=2 * TILE), num_warps=8)  # fmt: skip


def quantize_affine(x):
    x = x.contiguous()
    values = torch.empty_like(x, dtype=torch.int8)
    scale, zero = x.new_empty((), dtype=torch.float32), x.new_empty((), dtype=torch.int32)
    _in_one(x, values, scale, zero, {"LARGEST": 127.0, "RECIPROCAL": 2 / 255, "POWER": False})
    return values, scale, zero


def dequantize(values, scale, zero, block_m, block_n, to):
    values, m, n, stride = matrix(values)
    out = values.new_empty((m, n), dtype=getattr(torch, to))
    scale = scale.contiguous()
    launch(_dequantize, (cdiv(m * cdiv(n, 128), GROUPS),), values, scale, scale if zero is None else zero, out, m, n, stride,
           BLOCK_M=block_m, BLOCK_N=block_n, SHIFTED=zero is not None, GROUPS=GROUPS, num_warps=4, **EXACT)  # fmt: skip
    return out


def unknown(x, narrow):
    """Why 8-bit floats cannot be made or read on this device, or None."""
    if not narrow.startswith("float8") or not (x.is_cuda or DRY):
        return None
    arch = driver.active.get_current_target().arch
    return None if arch >= 89 else f"{narrow} needs sm_89 or later, this device is sm_{arch}"


FORWARD = (
    Kernel("triton", quantize, "each block in registers: one read; the whole tensor in two",
           lambda call: off_gpu(call["x"]) or unknown(call["x"], call["to"])),
)  # fmt: skip
AFFINE = (Kernel("triton", quantize_affine, "the extremes first, then from the end", lambda call: off_gpu(call["x"])),)
DEQUANTIZE = (
    Kernel("triton", dequantize, "a scale for 128 columns at a time",
           lambda call: off_gpu(call["values"]) or unknown(call["values"], str(call["values"].dtype).removeprefix("torch."))),
)  # fmt: skip
