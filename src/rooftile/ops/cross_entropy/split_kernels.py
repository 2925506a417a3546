"""Cross-entropy of long rows in parts, and the total without a launch of its own. Floor: one read, 4 operations an element.

Where a program takes a whole row, 528 rows of 100 KB are under way: at their share of the bandwidth each lasts 12.6 us, and so the first and the
last of a launch leave memory idle for a part of that, however many there are between them. Here a program takes 32 KB of a row and leaves two
numbers of it, the maximum and the sum of exponentials, both without the target. Which class that is it must know, for a row that does not count is
not read; the target's logit it need not, but to smooth: of the three latencies in a chain at a row's start two are left.

A second launch joins the parts of each row and brings the target in, apart from the sum it would drown in. Its programs leave a number each,
and the one that takes the last ticket adds them, always in the same order: two launches in all. The first launch sets the tickets to 0.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2, rows
from rooftile.ops.cross_entropy import reference
from rooftile.ops.cross_entropy.reference import check_target
from rooftile.ops.cross_entropy.triton_kernels import _capped, _exp, _finish, _save

JOINED = 2048  # numbers of parts that a program joins at once
SHORT = 32 * 1024  # bytes of a row


@triton.jit
def _known(gX, i_t, read, softcap, CAP: tl.constexpr):
    """The logit of the target of the row at gX."""
    return _capped(tl.load(gX + i_t, mask=read, other=0.0).to(tl.float32), softcap, CAP)


@triton.jit
def _by_lane(rX, LANES: tl.constexpr, GROUP: tl.constexpr):
    """All that a lane has loaded, GROUP at once, on axes 0 and 2: this moves nothing."""
    return tl.reshape(rX, [rX.shape[0] // (LANES * GROUP), LANES, GROUP])


@triton.jit
def _tile(gX, mask, near, softcap, SMOOTH: tl.constexpr, CAP: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr):
    """Logits, and with SMOOTH each lane's sum of their differences to the target's."""
    rX = tl.load(gX, mask=mask, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
    if CAP:
        rX = tl.where(mask, _capped(rX, softcap, CAP), float("-inf"))
    return rX, tl.sum(tl.sum(_by_lane(tl.where(mask, rX - near, 0.0), LANES, GROUP), 2), 0) if SMOOTH else 0.0


@triton.jit
def _below(rX, lane_max):
    """Each lane's sum of exponentials below its maximum."""
    base = tl.where(lane_max == float("-inf"), 0.0, lane_max)  # -inf - -inf would poison a lane of masked classes
    return tl.sum(tl.sum(_exp(rX - base[None, :, None]), 2), 0)


@triton.jit
def _parts(gPart, gTicket, gX, gTarget, M, V, parts, share, stride_x, ignore, softcap, SMOOTH: tl.constexpr, CAP: tl.constexpr,
           LANES: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr):  # fmt: skip
    """Of a part of a row that counts: gPart[0] the maximum, gPart[1] the sum, both without the target; gPart[2] the sum of differences to it."""
    i_p = tl.program_id(0)
    if i_p == 0:
        tl.store(gTicket, 0)
    i_m = i_p // parts
    i_part = i_p - i_m * parts
    i_t = tl.load(gTarget + i_m)
    read = (i_t != ignore) & (i_t >= 0) & (i_t < V)
    n = tl.where(read, V, 0)  # a row that does not count is not read
    i_t = tl.where(read, i_t, 0).to(tl.int32)
    gX += i_m.to(tl.int64) * stride_x
    near = 0.0
    if SMOOTH:
        known = _known(gX, i_t, read, softcap, CAP)
        near = tl.where(tl.abs(known) < float("inf"), known, 0.0)
    begin = i_part * share
    here = (i_t >= begin) & (i_t < begin + share)
    head = tl.where(here, (i_t - begin) // BLOCK_V, 0)  # the target's tile comes first, so that the loop need not look for it
    i_v = begin + head * BLOCK_V + tl.arange(0, BLOCK_V)
    rX, lane_spread = _tile(gX + i_v, i_v < n, near, softcap, SMOOTH, CAP, LANES, GROUP)
    if here:
        rX = tl.where(i_v == i_t, float("-inf"), rX)
    rX = _by_lane(rX, LANES, GROUP)
    lane_max = tl.max(tl.max(rX, 2), 0)
    lane_sum = _below(rX, lane_max)
    for i in range(tl.cdiv(tl.minimum(share, n - begin), BLOCK_V) - 1):
        i_v = begin + (i + (i >= head).to(tl.int32)) * BLOCK_V + tl.arange(0, BLOCK_V)
        rX, rSpread = _tile(gX + i_v, i_v < n, near, softcap, SMOOTH, CAP, LANES, GROUP)
        if SMOOTH:
            lane_spread += rSpread
        rX = _by_lane(rX, LANES, GROUP)
        new = tl.maximum(lane_max, tl.max(tl.max(rX, 2), 0))
        lane_sum = lane_sum * _exp(lane_max - tl.where(new == float("-inf"), 0.0, new)) + _below(rX, new)
        lane_max = new
    top = tl.max(lane_max, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    gPart += i_part * M + i_m
    tl.store(gPart, top, mask=read)
    tl.store(gPart + parts * M, tl.sum(lane_sum * _exp(lane_max - base), 0), mask=read)
    if SMOOTH:
        tl.store(gPart + 2 * parts * M, tl.sum(lane_spread, 0), mask=read)


@triton.jit
def _join(gRow, gLoss, gCount, gPeak, gLogsum, gMiss, gPart, gBlock, gTicket, gX, gTarget, M, V, parts, stride_x, ignore, smoothing, z, softcap,
          SMOOTH: tl.constexpr, Z: tl.constexpr, CAP: tl.constexpr, NONE: tl.constexpr, MEAN: tl.constexpr, BLOCK_P: tl.constexpr,
          BLOCK_M: tl.constexpr):  # fmt: skip
    """From its parts all that is saved of a row; and of all rows the loss, gBlock[0] that of each program's and gBlock[1] how many count."""
    i_p = tl.program_id(0)
    i_m = (i_p * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    i_t = tl.load(gTarget + i_m, mask=i_m < M, other=ignore)
    counts = i_t != ignore
    inside = (i_t >= 0) & (i_t < V)
    read = counts & inside
    known = _known(gX + i_m * stride_x, i_t, read, softcap, CAP)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rest = tl.zeros([BLOCK_M], tl.float32)
    spread = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, parts, BLOCK_P):
        i_part = first + tl.arange(0, BLOCK_P)
        there = (i_part < parts)[:, None] & read[None, :]
        gIn = gPart + i_part[:, None] * M + i_m[None, :]
        rTop = tl.load(gIn, mask=there, other=float("-inf"))
        rSum = tl.load(gIn + parts * M, mask=there, other=0.0)
        new = tl.maximum(top, tl.max(rTop, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        rest = rest * _exp(top - base) + tl.sum(rSum * _exp(rTop - base[None, :]), 0)
        top = new
        if SMOOTH:
            spread += tl.sum(tl.load(gIn + 2 * parts * M, mask=there, other=0.0), 0)
    loss, peak, logsum, miss = _finish(top, rest, known)
    if SMOOTH:
        loss -= smoothing * (spread / V)
    if Z:
        loss += z * (peak + logsum) * (peak + logsum)
    _save(gRow, gPeak, gLogsum, gMiss, i_m, i_m < M, counts, inside, loss, peak, logsum, miss)
    if NONE:
        if i_p == 0:
            tl.store(gCount, 1.0)
    else:
        blocks = tl.num_programs(0)
        tl.store(gBlock + i_p, tl.sum(tl.where(counts, tl.where(inside, loss, float("nan")), 0.0), 0))
        tl.store(gBlock + blocks + i_p, tl.sum(counts.to(tl.float32), 0))
        if tl.atomic_add(gTicket, 1, sem="acq_rel") == blocks - 1:  # whoever is last sees what all have left
            lane_loss = tl.zeros([BLOCK_M], tl.float32)
            lane_count = tl.zeros([BLOCK_M], tl.float32)
            for first in range(0, blocks, BLOCK_M):
                i_b = first + tl.arange(0, BLOCK_M)
                lane_loss += tl.load(gBlock + i_b, mask=i_b < blocks, other=0.0, cache_modifier=".cg")
                lane_count += tl.load(gBlock + blocks + i_b, mask=i_b < blocks, other=0.0, cache_modifier=".cg")
            count = tl.sum(lane_count, 0) if MEAN else 1.0
            tl.store(gLoss, tl.sum(lane_loss, 0) / count)
            tl.store(gCount, count)


def cross_entropy_split(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction, *, config):
    check_target(target, logits.shape[1], ignore_index)
    x, m, v, stride = rows(logits)
    if m == 0:  # nothing to launch over, and the loss of nothing is still a number
        return reference.cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)
    target, none, smooth, warps = target.contiguous(), reduction == "none", label_smoothing != 0, config["warps"]
    row, peak, logsum, miss = (x.new_empty(m, dtype=torch.float32) for _ in range(4))
    count = x.new_empty((), dtype=torch.float32)
    loss = row if none else x.new_empty((), dtype=torch.float32)
    block = config["tile"] // x.itemsize
    tiles = cdiv(v, block)
    parts = cdiv(tiles, config["tiles"])
    share = block * cdiv(tiles, parts)
    # Triton loads 16 bytes at once where rows begin and end at multiples of 16 elements, else one element
    group = 1 if v % 16 or stride % 16 or x.data_ptr() % 16 else 16 // x.itemsize
    together = min(64, power_of_2(parts))
    per_program = JOINED // max(32, together)
    programs = cdiv(m, per_program)
    part = x.new_empty((3 if smooth else 2, parts, m), dtype=torch.float32)
    sums = x.new_empty((2, programs), dtype=torch.float32)
    ticket = x.new_empty((), dtype=torch.int32)
    launch(_parts, (m * parts,), part, ticket, x, target, m, v, parts, share, stride, ignore_index, softcap, SMOOTH=smooth, CAP=softcap != 0,
           LANES=min(32 * warps, block // group), GROUP=group, BLOCK_V=block, num_warps=warps)  # fmt: skip
    launch(_join, (programs,), row, loss, count, peak, logsum, miss, part, sums, ticket, x, target, m, v, parts, stride, ignore_index,
           label_smoothing, z_loss, softcap, SMOOTH=smooth, Z=z_loss != 0, CAP=softcap != 0, NONE=none, MEAN=reduction == "mean",
           BLOCK_P=together, BLOCK_M=per_program, num_warps=4)  # fmt: skip
    return loss, count, peak, logsum, miss


def _sooner(call):
    v, itemsize, cap = call["logits"].shape[1], call["logits"].itemsize, call["softcap"]
    if cap:
        return f"a soft cap of {cap:g}: its tanh is cheaper in CUDA C++"
    if v * itemsize < SHORT:
        return f"a row of {v * itemsize} bytes is no more than a program's share; from {SHORT} it is cut into parts"
    return None


def pick(call):
    """64 bytes a lane, of which a soft cap's tangent makes too many registers: of those half as many on twice the lanes."""
    return CAPPED if call["softcap"] else CONFIGS[0]


CONFIGS = tuple(
    {"tile": t * 1024, "tiles": n, "warps": w}
    for t, n, w in ((8, 4, 4), (8, 2, 4), (8, 3, 4), (8, 8, 4), (16, 1, 4), (16, 2, 4), (16, 1, 8), (16, 2, 8), (32, 1, 8), (8, 4, 8))
)
CAPPED = CONFIGS[-1]
FORWARD = (
    Kernel(
        "triton.split",
        cross_entropy_split,
        "parts of rows, joined by a launch whose last program adds the loss",
        lambda call: off_gpu(call["logits"]),
        CONFIGS,
        pick,
        declines=_sooner,
    ),
)
