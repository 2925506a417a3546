"""RMSNorm and SwiGLU whose results leave as 8-bit floats. Floor: rmsnorm x read and a byte an element written, 3 bytes an element of 16 bits, with
the residual and the sum 7; swiglu 5. The norm and then the quantisation are 7 and 11, swiglu and then the quantisation 9. 10 to 14 operations
an element: at 4274 GB/s a byte takes the time of about 7 issued instructions of a lane.

A row stays in registers as float32 from its arrival to its bytes. The norm's multiplications and additions are not fused: the reference says
every rounding. Squares of 4 neighbours meet by two splits, whatever lanes hold them, and their sums are float64.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2
from rooftile.ops._shared.triton_activations import activate
from rooftile.ops.quantize.reference import LARGEST, scale_shape
from rooftile.ops.quantize.triton_kernels import EXACT, GROUPS, MAX_ROW, counted, matrix, rounded, scale_of


@triton.jit
def _put(rY, gOut, gScale, i_m, in_m, N, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr, ROWS: tl.constexpr,
         BLOCK_N: tl.constexpr, SIDE: tl.constexpr):  # fmt: skip
    """Rows of float32 as bytes, with a scale for each SIDE columns of them: 128, or all."""
    i_g = tl.arange(0, BLOCK_N // SIDE)
    across = tl.maximum(tl.cdiv(N, SIDE), 1)  # a row of nothing has a scale too
    rY = tl.reshape(rY, [ROWS, BLOCK_N // SIDE, SIDE])
    scale = scale_of(tl.max(tl.abs(counted(rY)), 2), RECIPROCAL, POWER)
    tl.store(gScale + i_m[:, None] * across + i_g[None, :], scale, mask=in_m[:, None] & (i_g < across)[None, :])
    rOut = rounded(rY * tl.div_rn(tl.full([ROWS, BLOCK_N // SIDE], 1.0, tl.float32), scale)[:, :, None], gOut, LARGEST)
    i_n = tl.arange(0, BLOCK_N)
    mask = in_m[:, None] & (i_n < N)[None, :]
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], tl.reshape(rOut, [ROWS, BLOCK_N]), mask=mask)


@triton.jit
def _normed(gX, gR, gW, gSum, gOut, gScale, M, N, stride_x, stride_r, inverse_n, eps, R: tl.constexpr, W: tl.constexpr,
            LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
            SIDE: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.arange(0, BLOCK_N)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
    if R:
        rX += tl.load(gR + i_m[:, None] * stride_r + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
        rSum = rX.to(gSum.dtype.element_ty)
        tl.store(gSum + i_m[:, None] * N + i_n[None, :], rSum, mask=mask)
        rX = rSum.to(tl.float32)
    rA, rB = tl.split(tl.reshape(rX * rX, [ROWS, BLOCK_N // 4, 2, 2]))
    rA, rB = tl.split(rA + rB)
    mean = tl.sum((rA + rB).to(tl.float64), 1).to(tl.float32) * inverse_n
    rX = rX * tl.div_rn(tl.full([ROWS], 1.0, tl.float32), tl.sqrt_rn(mean + eps))[:, None]
    if W:
        rX = rX * tl.load(gW + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :]
    _put(rX, gOut, gScale, i_m, i_m < M, N, LARGEST, RECIPROCAL, POWER, ROWS, BLOCK_N, SIDE)


@triton.jit
def _gated(gGate, gUp, gOut, gScale, M, N, stride_gate, stride_up, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr, POWER: tl.constexpr,
           ROWS: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.arange(0, BLOCK_N)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rGate = tl.load(gGate + i_m[:, None] * stride_gate + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
    rUp = tl.load(gUp + i_m[:, None] * stride_up + i_n[None, :], mask=mask, other=0.0).to(tl.float32)
    _put(activate(rGate, "silu") * rUp, gOut, gScale, i_m, i_m < M, N, LARGEST, RECIPROCAL, POWER, ROWS, BLOCK_N, BLOCK_N)


@triton.jit
def _gated_groups(gGate, gUp, gOut, gScale, M, N, stride_gate, stride_up, LARGEST: tl.constexpr, RECIPROCAL: tl.constexpr,
                  POWER: tl.constexpr, GROUPS: tl.constexpr):  # fmt: skip
    """128 columns of a row need nothing of the others. Groups are numbered along the rows, as their scales lie."""
    across = tl.cdiv(N, 128)
    i_g = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    i_m, in_g = i_g // across, i_g < M * across
    i_n = ((i_g % across).to(tl.int32) * 128)[:, None] + tl.arange(0, 128)[None, :]
    mask = in_g[:, None] & (i_n < N)
    rGate = tl.load(gGate + (i_m * stride_gate)[:, None] + i_n, mask=mask, other=0.0).to(tl.float32)
    rUp = tl.load(gUp + (i_m * stride_up)[:, None] + i_n, mask=mask, other=0.0).to(tl.float32)
    rY = activate(rGate, "silu") * rUp
    scale = scale_of(tl.max(tl.abs(counted(rY)), 1), RECIPROCAL, POWER)
    tl.store(gScale + i_g, scale, mask=in_g)
    rOut = rounded(rY * tl.div_rn(tl.full([GROUPS], 1.0, tl.float32), scale)[:, None], gOut, LARGEST)
    tl.store(gOut + (i_m * N)[:, None] + i_n, rOut, mask=mask)


def outputs(x, n, to, block_n):
    m = x.shape[0]
    return x.new_empty((m, n), dtype=getattr(torch, to)), x.new_empty(scale_shape(m, n, 1, block_n), dtype=torch.float32)


def _code(to, power):
    return {"LARGEST": LARGEST[to], "RECIPROCAL": 1 / LARGEST[to], "POWER": power}


def _norm(x, residual, weight, eps, to, block_n, power, config):
    values, scale = outputs(x, x.shape[1], to, block_n)
    total = None if residual is None else x.new_empty(x.shape, dtype=residual.dtype)
    x, m, n, stride = matrix(x)
    residual, _, _, stride_r = (None, m, n, 0) if residual is None else matrix(residual)
    weight = weight if weight is None or weight.is_contiguous() else weight.contiguous()
    block = max(128, power_of_2(n))
    launch(_normed, (cdiv(m, config["rows"]),), x, residual, weight, total, values, scale, m, n, stride, stride_r, 1 / n, eps,
           R=residual is not None, W=weight is not None, **_code(to, power), ROWS=config["rows"], BLOCK_N=block, SIDE=block_n or block,
           num_warps=config["warps"], **EXACT)  # fmt: skip
    return values, scale, total


def rmsnorm_quantize(x, weight, eps, to, block_n, power, *, config):
    return _norm(x, None, weight, eps, to, block_n, power, config)[:2]


def add_rmsnorm_quantize(x, residual, weight, eps, to, block_n, power, *, config):
    return _norm(x, residual, weight, eps, to, block_n, power, config)


def halves(gate, up):
    """Without `up`, gate is both side by side: two views of it."""
    k = gate.shape[1] // 2
    return (gate, up) if up is not None else (gate[:, :k], gate[:, k:])


def swiglu_quantize(gate, up, to, block_n, power, *, config):
    g, u = halves(gate, up)
    values, scale = outputs(g, g.shape[1], to, block_n)
    g, m, n, stride_g = matrix(g)
    u, _, _, stride_u = matrix(u)
    if block_n:
        launch(_gated_groups, (cdiv(m * cdiv(n, 128), GROUPS),), g, u, values, scale, m, n, stride_g, stride_u, **_code(to, power),
               GROUPS=GROUPS, num_warps=8)  # fmt: skip
    else:
        launch(_gated, (cdiv(m, config["rows"]),), g, u, values, scale, m, n, stride_g, stride_u, **_code(to, power), ROWS=config["rows"],
               BLOCK_N=power_of_2(n), num_warps=config["warps"])  # fmt: skip
    return values, scale


def _norm_refuses(call):
    n = call["x"].shape[1]
    if n > MAX_ROW or not n:
        return off_gpu(call["x"]) or (f"N={n} is longer than the {MAX_ROW} columns of a row in registers" if n else no_mean(n))
    return off_gpu(call["x"])


def no_mean(n):
    return None if n else "N=0: a row without columns has no mean"


def _gated_refuses(call):
    k = halves(call["gate"], call["up"])[0].shape[1]
    why = f"K={k} is longer than the {MAX_ROW} columns of a row in registers" if not call["block_n"] and (k > MAX_ROW) else None
    return off_gpu(call["gate"]) or why


def _pick(n, each=16):
    """So many elements a lane where the row is that wide; warps lie along the row, short rows in one program."""
    block = max(128, power_of_2(n))
    per = max(1, min(128 * each // block, 16))
    return {"rows": per, "warps": min(16, max(4, per * block // (32 * each)))}


def pick_norm(call):
    return _pick(call["x"].shape[1], 8 if "residual" in call else 16)


def pick_gated(call):
    return _pick(halves(call["gate"], call["up"])[0].shape[1])


_ROWS = tuple({"rows": r, "warps": w} for r, w in ((1, 4), (1, 8), (1, 16), (2, 8)))
_WIDE = ({"rows": 1, "warps": 16}, {"rows": 1, "warps": 8})  # two inputs of 16384 columns spill in fewer
CONVERTING = (89, 90, 100, 103, 110, 120, 121)  # what has 8-bit floats in hardware; Triton makes none by hand
FROM_NORM, FROM_SUM, FROM_PRODUCT = (
    "the row in registers from its norm to its bytes",
    "the sum stays in registers",
    "products wait in registers",
)

NORM = (Kernel("triton", rmsnorm_quantize, FROM_NORM, _norm_refuses, _ROWS, pick_norm, architectures=CONVERTING),)
ADD_NORM = (Kernel("triton", add_rmsnorm_quantize, FROM_SUM, _norm_refuses, _ROWS, pick_norm, architectures=CONVERTING),)
GATED = (Kernel("triton", swiglu_quantize, FROM_PRODUCT, _gated_refuses, _WIDE, pick_gated, architectures=CONVERTING),)
