"""Cross-entropy over rows of logits. Floor: one read forward, one read and one write backward; 4 operations an element.

The sum of exponentials is kept without the target's: 1 - p of a row the model is sure of is then a sum, not a difference of
two numbers near 1, in the loss (log1p) and in the gradient. The maximum is saved beside log(sum), not added to it: at logits of
1e4 their float32 sum would be off by 5e-4, and so would every probability.

`triton` keeps short rows in registers, several a program. `triton.online` walks over a row with a maximum and a sum for every group of
neighbours a lane loads at once (8 of 16 bits, 4 of 32): one rescaling a group instead of an element halves the exponentials, and no
lane waits for another before the row ends, so loads stay in flight.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2, rows
from rooftile.ops.cross_entropy import reference
from rooftile.ops.cross_entropy.reference import check_target

TILE = 2048  # logits a program holds at once where rows are short: 16 a lane; 32 spill where rows are misaligned
MAX_ROW = 2048
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp(x):
    """Through exp2, which flushes what lies below 2^-126; tl.exp keeps it for 3 more instructions of 9 an element."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def _log1p(x):
    """log(1 + x) for x >= 0; the rounding of 1 + x cancels between numerator and denominator."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / (u - 1.0)))


@triton.jit
def _capped(rX, softcap, CAP: tl.constexpr):
    """softcap tanh(x / softcap): no logit beyond +-softcap. A masked class becomes one of the least likely."""
    return softcap * libdevice.tanh(rX / softcap) if CAP else rX


@triton.jit
def _finish(top, rest, known):
    """From the other classes' maximum and sum and the target's logit: loss, maximum, log of the sum, 1 - p."""
    peak = tl.maximum(top, known)
    rest_at_peak = rest * _exp(top - peak)
    total = rest_at_peak + _exp(known - peak)
    logsum = tl.log(total)
    behind = peak - known  # of a target of infinity it is NaN, as the loss is, not 0
    loss = tl.where(behind == 0.0, _log1p(rest_at_peak), behind + logsum)
    strange = (known != known) | ((rest != rest) & (top != float("inf")))  # a NaN among the logits; maxima pass it over
    return loss, tl.where(strange, float("nan"), peak), logsum, rest_at_peak / total


@triton.jit
def _forward(gX, gTarget, gRow, gTotal, gCount, gPeak, gLogsum, gMiss, M, V, stride_x, ignore, smoothing, z, softcap, SMOOTH: tl.constexpr,
             Z: tl.constexpr, CAP: tl.constexpr, NONE: tl.constexpr, MEAN: tl.constexpr, ALONE: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr):  # fmt: skip
    i_m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    i_v = tl.arange(0, BLOCK_V)
    i_t = tl.load(gTarget + i_m, mask=i_m < M, other=0)
    counts = (i_m < M) & (i_t != ignore)
    inside = (i_t >= 0) & (i_t < V)
    mask = (counts & inside)[:, None] & (i_v < V)[None, :]
    known = _capped(tl.load(gX + i_m * stride_x + i_t, mask=counts & inside, other=0.0).to(tl.float32), softcap, CAP)
    rX = tl.load(gX + i_m[:, None] * stride_x + i_v[None, :], mask=mask, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
    if CAP:
        rX = tl.where(mask, _capped(rX, softcap, CAP), float("-inf"))
    rOther = tl.where(i_v[None, :] == i_t[:, None], float("-inf"), rX)
    top = tl.max(rOther, 1)
    base = tl.where(top == float("-inf"), 0.0, top)
    loss, peak, logsum, miss = _finish(top, tl.sum(_exp(rOther - base[:, None]), 1), known)
    if SMOOTH:
        near = tl.where(tl.abs(known) < float("inf"), known, 0.0)
        loss -= smoothing * (tl.sum(tl.where(mask, rX - near[:, None], 0.0), 1) / V)
    if Z:
        loss += z * (peak + logsum) * (peak + logsum)
    _save(gRow, gPeak, gLogsum, gMiss, i_m, i_m < M, counts, inside, loss, peak, logsum, miss)
    if ALONE:  # this program has seen every row: what would be _total's launch is one reduction here
        count = 1.0
        if MEAN:
            count = tl.sum(counts.to(tl.float32), 0)
        loss = tl.where(counts, tl.where(inside, loss, float("nan")), 0.0)
        tl.store(gTotal, tl.sum(loss, 0) / count)
        tl.store(gCount, count)
    elif NONE:
        if tl.program_id(0) == 0:
            tl.store(gCount, 1.0)


@triton.jit
def _save(gLoss, gPeak, gLogsum, gMiss, i_m, mask, counts, inside, loss, peak, logsum, miss):
    """0 where the row does not count, NaN where its target is no class."""
    tl.store(gLoss + i_m, tl.where(counts, tl.where(inside, loss, float("nan")), 0.0), mask=mask)
    tl.store(gPeak + i_m, tl.where(counts, tl.where(inside, peak, float("nan")), 0.0), mask=mask)
    tl.store(gLogsum + i_m, tl.where(counts, tl.where(inside, logsum, float("nan")), 0.0), mask=mask)
    tl.store(gMiss + i_m, tl.where(counts, tl.where(inside, miss, float("nan")), 0.0), mask=mask)


@triton.jit
def _take(rX, lane_max, lane_sum, GROUP: tl.constexpr):
    """One tile into the statistics of its groups."""
    rX = tl.reshape(rX, [rX.shape[0] // GROUP, GROUP])  # a group is what one lane loads at once: this moves nothing
    new = tl.maximum(lane_max, tl.max(rX, 1))
    base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf would poison a group of masked classes
    lane_sum = lane_sum * _exp(lane_max - base) + tl.sum(_exp(rX - base[:, None]), 1)
    return new, lane_sum


@triton.jit
def _forward_online(gX, gTarget, gLoss, gCount, gPeak, gLogsum, gMiss, V, stride_x, ignore, smoothing, z, softcap,
                    SMOOTH: tl.constexpr, Z: tl.constexpr, CAP: tl.constexpr, NONE: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr):  # fmt: skip
    i_m = tl.program_id(0).to(tl.int64)
    i_t = tl.load(gTarget + i_m)
    counts = i_t != ignore
    inside = (i_t >= 0) & (i_t < V)
    gX += i_m * stride_x
    known = _capped(tl.load(gX + i_t, mask=counts & inside, other=0.0).to(tl.float32), softcap, CAP)
    near = tl.where(tl.abs(known) < float("inf"), known, 0.0)
    n = tl.where(counts & inside, V, 0)  # a row that does not count is not read
    i_t = tl.where(inside, i_t, 0).to(tl.int32)
    full = n // BLOCK_V
    tile = i_t // BLOCK_V  # the target's own tile comes first, so that the loop need not look for it
    lane_max = tl.full([BLOCK_V // GROUP], float("-inf"), tl.float32)
    lane_sum = tl.zeros([BLOCK_V // GROUP], tl.float32)
    lane_spread = tl.zeros([BLOCK_V], tl.float32)
    i_v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    rX = tl.load(gX + i_v, mask=i_v < n, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
    if CAP:
        rX = tl.where(i_v < n, _capped(rX, softcap, CAP), float("-inf"))
    if SMOOTH:
        lane_spread += tl.where(i_v < n, rX - near, 0.0)
    lane_max, lane_sum = _take(tl.where(i_v == i_t, float("-inf"), rX), lane_max, lane_sum, GROUP)
    for i in range(full - (tile < full).to(tl.int32)):
        i_v = (i + (i >= tile)) * BLOCK_V + tl.arange(0, BLOCK_V)
        rX = _capped(tl.load(gX + i_v, eviction_policy="evict_first").to(tl.float32), softcap, CAP)
        if SMOOTH:
            lane_spread += rX - near
        lane_max, lane_sum = _take(rX, lane_max, lane_sum, GROUP)
    i_v = full * BLOCK_V + tl.arange(0, BLOCK_V)
    rest = (i_v < n) & (tile != full)
    rX = tl.load(gX + i_v, mask=rest, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
    if CAP:
        rX = tl.where(rest, _capped(rX, softcap, CAP), float("-inf"))
    if SMOOTH:
        lane_spread += tl.where(rest, rX - near, 0.0)
    lane_max, lane_sum = _take(rX, lane_max, lane_sum, GROUP)
    top = tl.max(lane_max, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    loss, peak, logsum, miss = _finish(top, tl.sum(lane_sum * _exp(lane_max - base), 0), known)
    if SMOOTH:
        loss -= smoothing * (tl.sum(lane_spread, 0) / V)
    if Z:
        loss += z * (peak + logsum) * (peak + logsum)
    _save(gLoss, gPeak, gLogsum, gMiss, i_m, True, counts, inside, loss, peak, logsum, miss)
    if NONE:
        if tl.program_id(0) == 0:
            tl.store(gCount, 1.0)


@triton.jit
def _total(gRow, gTarget, gLoss, gCount, M, ignore, MEAN: tl.constexpr, BLOCK_M: tl.constexpr):
    """One program, one order: the sum of the rows' losses, and for the mean how many count."""
    lane_loss = tl.zeros([BLOCK_M], tl.float32)
    lane_count = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, M, BLOCK_M):
        i_m = start + tl.arange(0, BLOCK_M)
        lane_loss += tl.load(gRow + i_m, mask=i_m < M, other=0.0)
        if MEAN:
            lane_count += (tl.load(gTarget + i_m, mask=i_m < M, other=ignore) != ignore).to(tl.float32)
    if MEAN:
        count = tl.sum(lane_count, 0)
    else:
        count = 1.0
    tl.store(gLoss, tl.sum(lane_loss, 0) / count)
    tl.store(gCount, count)


@triton.jit
def _gradient(rX, hit, peak, logsum, miss, V, smoothing, z, softcap, Z: tl.constexpr, CAP: tl.constexpr, FULL: tl.constexpr):
    """Of a row's loss, where the logits are rX and the target is at `hit`; what the forward saved broadcasts to them. FULL: to the last bits of
    float32, of which x log2 e, rounded at -12, loses two."""
    if CAP:  # the slope 1 - tanh^2 would cancel
        beyond = -2.0 * tl.abs(rX / softcap)
        fall = libdevice.exp(beyond) if FULL else _exp(beyond)
        slope = 4.0 * fall / ((1.0 + fall) * (1.0 + fall))
        rX = _capped(rX, softcap, CAP)
    rP = libdevice.exp((rX - peak) - logsum) if FULL else _exp((rX - peak) - logsum)
    rG = tl.where(hit, smoothing - miss, rP) - smoothing / V
    if Z:
        rG += 2.0 * z * (peak + logsum) * tl.where(hit, 1.0 - miss, rP)
    if CAP:
        rG *= slope
    return rG


@triton.jit
def _ahead(gX, gTarget, gLoss, gCount, gPeak, gLogsum, gMiss, V, stride_x, ignore, smoothing, z, softcap, SMOOTH: tl.constexpr,
           Z: tl.constexpr, CAP: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr):  # fmt: skip
    """A row's sums, and then its gradient in its place, while most of it is still in L2."""
    _forward_online(
        gX, gTarget, gLoss, gCount, gPeak, gLogsum, gMiss, V, stride_x, ignore, smoothing, z, softcap, SMOOTH, Z, CAP, False, GROUP, BLOCK_V
    )
    tl.debug_barrier()  # all have read the row, and see what one of them has saved of it
    i_m = tl.program_id(0).to(tl.int64)
    i_t = tl.load(gTarget + i_m)
    counts = i_t != ignore
    peak, logsum, miss = tl.load(gPeak + i_m), tl.load(gLogsum + i_m), tl.load(gMiss + i_m)
    gX += i_m * stride_x
    for first in range(0, V, BLOCK_V):
        i_v = first + tl.arange(0, BLOCK_V)
        rX = tl.load(gX + i_v, mask=(i_v < V) & counts, other=0.0).to(tl.float32)
        rG = _gradient(rX, i_v == i_t, peak, logsum, miss, V, smoothing, z, softcap, Z, CAP, gX.dtype.element_ty == tl.float32)
        tl.store(gX + i_v, tl.where(counts, rG, 0.0).to(gX.dtype.element_ty), mask=i_v < V)


@triton.jit
def _backward(gDloss, gX, gTarget, gCount, gPeak, gLogsum, gMiss, gDx, M, V, stride_dloss, stride_x, stride_dx, ignore, smoothing, z,
              softcap, Z: tl.constexpr, CAP: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr):  # fmt: skip
    """Tiles of one row, or of several short ones: these are whole, need no division, and are asked for beside their targets, which takes as long."""
    SHORT: tl.constexpr = ROWS > 1
    i_p = tl.program_id(0)
    tiles = 1 if SHORT else tl.cdiv(V, BLOCK_V)
    i_m = ((i_p if SHORT else i_p // tiles) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    i_v = (0 if SHORT else i_p % tiles * BLOCK_V) + tl.arange(0, BLOCK_V)
    i_t = tl.load(gTarget + i_m, mask=i_m < M, other=0)
    counts = (i_m < M) & (i_t != ignore)
    mask = (i_m < M)[:, None] & (i_v < V)[None, :]
    asked = i_m < M if SHORT else counts  # padding is read for nothing, or not at all
    rX = tl.load(gX + i_m[:, None] * stride_x + i_v[None, :], mask=mask & asked[:, None], other=0.0, eviction_policy="evict_first").to(
        tl.float32
    )
    peak = tl.load(gPeak + i_m, mask=asked, other=0.0)
    logsum = tl.load(gLogsum + i_m, mask=asked, other=0.0)
    miss = tl.load(gMiss + i_m, mask=asked, other=0.0)
    scale = tl.load(gDloss + i_m * stride_dloss, mask=asked, other=0.0) / tl.load(gCount)
    rG = _gradient(
        rX,
        i_v[None, :] == i_t[:, None],
        peak[:, None],
        logsum[:, None],
        miss[:, None],
        V,
        smoothing,
        z,
        softcap,
        Z,
        CAP,
        gX.dtype.element_ty == tl.float32,
    )
    rDx = tl.where(counts[:, None], rG * scale[:, None], 0.0)
    tl.store(gDx + i_m[:, None] * stride_dx + i_v[None, :], rDx.to(gDx.dtype.element_ty), mask=mask)


def _statistics(x, m):
    """What both forwards write for each row: loss, maximum, log of the sum, 1 - p; and the count. Results may not share memory."""
    row, peak, logsum, miss = (x.new_empty(m, dtype=torch.float32) for _ in range(4))
    return row, x.new_empty((), dtype=torch.float32), peak, logsum, miss


def _reduce(row, target, count, ignore_index, reduction):
    """One program adds up the rows' losses, and divides by how many count."""
    m, loss = row.numel(), row.new_empty(())
    launch(_total, (1,), row, target, loss, count, m, ignore_index, MEAN=reduction == "mean", BLOCK_M=min(8192, power_of_2(m)),
           num_warps=16)  # fmt: skip
    return loss


def cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction):
    check_target(target, logits.shape[1], ignore_index)
    x, m, v, stride = rows(logits)
    if m == 0:  # nothing to launch over, and the loss of nothing is still a number
        return reference.cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)
    target = target.contiguous()
    per, block = _tile(v)
    row, count, peak, logsum, miss = _statistics(x, m)
    alone = m <= per and reduction != "none"
    loss = x.new_empty((), dtype=torch.float32) if alone else row
    launch(_forward, (cdiv(m, per),), x, target, row, loss, count, peak, logsum, miss, m, v, stride, ignore_index, label_smoothing,
           z_loss, softcap, SMOOTH=label_smoothing != 0, Z=z_loss != 0, CAP=softcap != 0, NONE=reduction == "none", MEAN=reduction == "mean", ALONE=alone, ROWS=per, BLOCK_V=block,
           num_warps=4)  # fmt: skip
    if not alone and reduction != "none":
        loss = _reduce(row, target, count, ignore_index, reduction)
    return loss, count, peak, logsum, miss


def cross_entropy_online(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction, *, config):
    check_target(target, logits.shape[1], ignore_index)
    x, m, v, stride = rows(logits)
    if m == 0:
        return reference.cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)
    target = target.contiguous()
    row, count, peak, logsum, miss = _statistics(x, m)
    launch(_forward_online, (m,), x, target, row, count, peak, logsum, miss, v, stride, ignore_index, label_smoothing,
           z_loss, softcap, SMOOTH=label_smoothing != 0, Z=z_loss != 0, CAP=softcap != 0, NONE=reduction == "none", GROUP=16 // logits.itemsize, BLOCK_V=config["block"],
           num_warps=config["warps"])  # fmt: skip
    loss = row if reduction == "none" else _reduce(row, target, count, ignore_index, reduction)
    return loss, count, peak, logsum, miss


def _tile(v):
    block = min(TILE, power_of_2(v))
    return min(TILE // block, 32), block


def cross_entropy_backward(dloss, logits, target, count, peak, logsum, miss, ignore_index, label_smoothing, z_loss, softcap, *, config):
    dx = logits.new_empty(logits.shape)
    _differentiate(dloss, rows(logits)[0], target, count, peak, logsum, miss, ignore_index, label_smoothing, z_loss, softcap, dx, config)
    return dx


def cross_entropy_overwrite(dloss, logits, target, count, peak, logsum, miss, ignore_index, label_smoothing, z_loss, softcap, *, config):
    _differentiate(dloss, logits, target, count, peak, logsum, miss, ignore_index, label_smoothing, z_loss, softcap, logits, config)


def _differentiate(dloss, x, target, count, peak, logsum, miss, ignore_index, label_smoothing, z_loss, softcap, dx, config):
    m, v = x.shape
    block = min(config["block"], power_of_2(v))
    per = min(config["block"] // block, 32)
    stride_dloss = dloss.stride(0) if dloss.dim() else 0
    launch(_backward, (cdiv(m, per) * cdiv(v, block),), dloss, x, target.contiguous(), count, peak.contiguous(), logsum.contiguous(),
           miss.contiguous(), dx, m, v, stride_dloss, x.stride(0), dx.stride(0), ignore_index, label_smoothing,
           z_loss, softcap, Z=z_loss != 0, CAP=softcap != 0, ROWS=per, BLOCK_V=block, num_warps=config["warps"])  # fmt: skip


def cross_entropy_ahead(logits, target, ignore_index, label_smoothing, z_loss, softcap, *, config):
    check_target(target, logits.shape[1], ignore_index)
    m, v = logits.shape
    row, count, peak, logsum, miss = _statistics(logits, m)
    launch(_ahead, (m,), logits, target.contiguous(), row, count, peak, logsum, miss, v, logits.stride(0), ignore_index, label_smoothing,
           z_loss, softcap, SMOOTH=label_smoothing != 0, Z=z_loss != 0, CAP=softcap != 0, GROUP=16 // logits.itemsize,
           BLOCK_V=config["block"], num_warps=config["warps"])  # fmt: skip
    return row


def _short(call):
    v = call["logits"].shape[1]
    return off_gpu(call["logits"]) or (None if v <= MAX_ROW else f"V={v} is longer than the {MAX_ROW} classes a program keeps in registers")


def _writable(call):
    x = call["logits"]
    rows_apart = x.stride(1) == 1 and x.stride(0) >= x.shape[1]
    return off_gpu(x) or (None if rows_apart or x.numel() == 0 else f"logits with strides {list(x.stride())} are no rows to write into")


_WALK = tuple({"block": b, "warps": w} for b, w in ((8192, 8), (4096, 4), (4096, 8), (8192, 16), (16384, 16), (8192, 4)))
_TILES = tuple({"block": b, "warps": w} for b, w in ((4096, 4), (2048, 4), (4096, 8), (8192, 8), (2048, 2)))


def _roomy(configs):
    """The first, but for a soft cap: a hyperbolic tangent of 32 elements a lane does not fit the registers, of 16 it does."""
    return lambda call: {"block": 4096, "warps": 8} if call["softcap"] else configs[0]


def _pick_tile(call):
    """Short rows, which wait for nothing, take 16 bytes a lane, and many programs."""
    return {"block": 1024, "warps": 4} if call["logits"].shape[1] <= 512 else _roomy(_TILES)(call)


def _sooner(most):
    """CUDA C++ takes tanh in two instructions where Triton's takes many, and keeps more of a very long row in flight."""

    def declines(call):
        v = call["logits"].shape[1]
        if call["softcap"]:
            return f"a soft cap of {call['softcap']:g}: its tanh is cheaper in CUDA C++"
        return f"V={v}: rows of more than {most} classes are sooner read in CUDA C++" if v > most else None

    return declines


FORWARD = (
    Kernel("triton", cross_entropy, "short rows in registers, several a program: one read", _short),
    Kernel(
        "triton.online",
        cross_entropy_online,
        "a maximum and a sum a lane: any length, one read",
        lambda call: off_gpu(call["logits"]),
        _WALK,
        _roomy(_WALK),
        declines=_sooner(100_000),
    ),
)
BACKWARD = (
    Kernel(
        "triton",
        cross_entropy_backward,
        "tiles that know their row's sums: one read, one write",
        lambda call: off_gpu(call["logits"]),
        _TILES,
        _pick_tile,
        declines=_sooner(200_000),
    ),
)
OVERWRITE = (
    Kernel(
        "triton",
        cross_entropy_overwrite,
        "the same, into the logits' own memory",
        _writable,
        _TILES,
        _pick_tile,
        declines=_sooner(200_000),
    ),
)
# 32 warps a row: 264 rows at most are under way, 27 MB of 50304 classes in 16 bits
_AGAIN = tuple({"block": b, "warps": w} for b, w in ((8192, 32), (16384, 32), (8192, 16)))
AHEAD = (Kernel("triton", cross_entropy_ahead, "a row's sums, then its gradient in its place, read again from L2", _writable, _AGAIN),)
