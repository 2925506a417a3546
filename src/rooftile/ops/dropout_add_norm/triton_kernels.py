"""Dropout, residual and norm in one pass. Floor: 4 tensors through memory forward (8 bytes a bf16 element), 5 backward (10 bytes), and no mask;
10 and 16 operations an element and 15 of integers for the mask. At 4274 GB/s a byte takes the time of 7 instructions of a lane: bytes decide,
if one Philox call serves four neighbours. Rows whose length is no multiple of 4 draw a call for each element, 60 operations, and pay for it.

`triton` and `triton.columns` are those of `_shared/triton_norms.py`, with the mask drawn again backward. `triton.online` takes any length: the
sum is written with Welford's statistics, one set a lane, and read again from the L2. RMSNorm is LayerNorm with a mean of zero.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import launch, power_of_2, row, rows
from rooftile.ops._shared.norms import MAX_ROW, MAX_ROW_BACKWARD, TILE, Norm, any_length, dense, outputs, pick_persistent, upto
from rooftile.ops._shared.sum_norms import whole_rows
from rooftile.ops._shared.triton_norms import affine, backward, beside, drawn, forward
from rooftile.ops._shared.triton_philox import kept


@triton.jit
def _forward_online(gX, gR, gW, gB, gSeed, gSum, gOut, gMean, gRstd, N, stride_x, stride_r, threshold, scale, eps, LAYER: tl.constexpr,
                    BLOCK_N: tl.constexpr, LANE: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    i_lane = tl.arange(0, BLOCK_N)[None, :]
    lane_mean = tl.zeros([1, BLOCK_N], tl.float32)
    lane_square = tl.zeros([1, BLOCK_N], tl.float32)  # sum of (x - lane_mean)²
    for i in range(tl.cdiv(N, BLOCK_N)):
        i_n = i * BLOCK_N + i_lane
        rX = tl.load(gX + i_m[:, None] * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rR = tl.load(gR + i_m[:, None] * stride_r + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        rKept = kept(i_m * N + i * BLOCK_N, gSeed, threshold, 1, BLOCK_N, LANE)
        rSum = (tl.where(rKept, rX * scale, 0.0) + rR).to(gSum.dtype.element_ty)
        tl.store(gSum + i_m[:, None] * N + i_n, rSum, mask=i_n < N)
        rX = rSum.to(tl.float32)
        rDelta = tl.where(i_n < N, rX - lane_mean, 0.0)
        if LAYER:
            lane_mean += rDelta * (1.0 / (i + 1))
        lane_square += rDelta * tl.where(i_n < N, rX - lane_mean, 0.0)
    mean = tl.zeros([1], tl.float32)
    if LAYER:
        lane_count = (N // BLOCK_N + (i_lane < N % BLOCK_N)).to(tl.float32)  # the lanes of the last, ragged tile have seen one more
        mean = tl.sum(lane_mean * lane_count, 1) / N
        apart = lane_mean - mean[:, None]
        lane_square += lane_count * apart * apart
    rstd = tl.rsqrt(tl.sum(lane_square, 1) / N + eps)
    tl.debug_barrier()  # the sum that one thread wrote may be read by another
    for start in range(0, N, BLOCK_N):
        i_n = start + i_lane
        rX = (tl.load(gSum + i_m[:, None] * N + i_n, mask=i_n < N, other=0.0).to(tl.float32) - mean[:, None]) * rstd[:, None]
        rX = affine(rX, gW, gB, i_n, i_n < N, None)
        tl.store(gOut + i_m[:, None] * N + i_n, rX.to(gOut.dtype.element_ty), mask=i_n < N)
    if gRstd is not None:
        tl.store(gMean + i_m, mean)
        tl.store(gRstd + i_m, rstd)


def dropout_add_norm(x, residual, weight, bias, seed, p, eps, norm, *, config, save=True):
    return forward(x, residual, weight, bias, eps, Norm(norm == "layer", seed=seed, p=p), config, save)


def online(x, residual, weight, bias, seed, p, eps, norm, *, config, save=True):
    norm = Norm(norm == "layer", seed=seed, p=p)
    made = outputs(x, residual, norm, save)
    out, total, mean, rstd = made
    x, m, n, stride = rows(x)
    residual, stride_r = beside(residual)
    block = min(config["block"], power_of_2(n))
    seed, least, factor, lane = drawn(norm, x, block)
    launch(_forward_online, (m,), x, residual, dense(weight), dense(bias), seed, total, out, mean, rstd, n, stride, stride_r, least, factor, eps,
           LAYER=norm.layer, BLOCK_N=block, LANE=lane, num_warps=config["warps"])  # fmt: skip
    return made


def dropout_add_norm_backward(dout, dsum, sum, weight, bias, mean, rstd, seed, p, norm, *, config=None):
    return backward(dout, dsum, sum, weight, bias, mean, rstd, Norm(norm == "layer", seed=seed, p=p), config)


def padded(call):
    """Why whole rows in registers do sooner, or None: a tile is a power of two wide, and lanes without a column draw and add like the others."""
    n = row(call).shape[-1]
    tile = power_of_2(n)
    if 8 * n > 7 * tile or whole_rows(call) is not None:
        return None
    return f"a row of {n} columns leaves {tile - n} of its tile's {tile} empty, and cuda.v2_rows none"


def pick_forward(call):
    """16 elements a lane, half of add_layernorm's: the words of the mask want registers too. Warps lie along the row, rows in the lane."""
    block = power_of_2(row(call).shape[-1])
    per = max(1, min(TILE // block, 16)) if block >= 512 else 8
    return {"rows": per, "warps": min(16, max(1, per * block // 512)), "ahead": 1}


def pick_backward(call):
    """16 elements a lane of short rows, two long ones a tile: the words of the mask want registers too."""
    return pick_persistent(call, short=512, most=2)


_ONCE = tuple(
    {"rows": r, "warps": w, "ahead": a}
    for a in (0, 1)
    for r, warps in ((1, (2, 4, 8, 16)), (2, (4, 8, 16)), (4, (4, 8, 16)))
    for w in warps
)
_ONLINE = tuple({"block": b, "warps": w} for b, w in ((4096, 8), (8192, 16), (4096, 16), (2048, 8)))
_PERSISTENT = tuple(
    {"rows": r, "warps": w, "per_sm": p, "stages": s}
    for r, warps, per_sm, stages in ((1, (4, 8, 16), (1, 2, 4), (1, 3)), (2, (8, 16), (1, 2), (1, 2, 3)), (4, (4, 8), (2,), (1, 2)))
    for w in warps
    for p in per_sm
    for s in stages
)

FORWARD = (
    Kernel(
        "triton",
        dropout_add_norm,
        "the row in registers, four neighbours a Philox call",
        upto(MAX_ROW),
        _ONCE,
        pick_forward,
        declines=padded,
    ),
    Kernel(
        "triton.online",
        online,
        "the sum written with its statistics and read again: any length",
        any_length,
        _ONLINE,
        limits=Limits(spill_bytes=8),
    ),  # two registers of 4096 columns in 8 warps
)
BACKWARD = (
    Kernel("triton", dropout_add_norm_backward, "persistent: weight and partial gradients in registers, the mask drawn again",
           upto(MAX_ROW_BACKWARD), _PERSISTENT, pick_backward, limits=Limits(spill_bytes_elsewhere=8)),
    Kernel("triton.columns", dropout_add_norm_backward, "row sums, then strips of columns: any length, two reads", any_length,
           limits=Limits(spill_bytes_elsewhere=8)),  # sm_80 keeps to 128 registers, or 80, and parks two
)  # fmt: skip
