"""Attention with every option, in Triton: what triton_kernels.py does, with a score that passes through `_score` on its way.

Why these are other kernels than the plain ones: a launch of those has 20 arguments and their loops nothing to skip, which most calls want.
Each option is a constexpr, so a call pays for what it asks for. Keys (or queries) are walked in three ranges: those at the left edge of the window
with masks, those that everyone sees without, those at the right edge with masks again; where there is no left edge that range is not compiled.

Dropout's mask is a function of (seed, row, key), drawn where it is wanted, forward and backward, four neighbouring keys a Philox call. The gradient
of a bias is made by a program a tile of the bias, which walks the batches and heads that share it: no atomics, the same bits every time.
Sequences of ragged lengths lie one behind another: a program looks up where its own begins, and one past its end leaves.

Two things in the loops are for ptxas, which else takes the ranges' accumulators for overwritten (C7515) and waits after every single wgmma of the
kernel: pointers are carried on from range to range, not made of `start`, and a range's end is not the same value as the next one's start.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from rooftile.ops._shared.triton_philox import kept
from rooftile.ops.attention.triton_tiles import head_row, load_tile, store_tile, tile_at


@triton.jit
def _span(gCu, i_b, N, total, RAGGED: tl.constexpr):
    """(where sequence i_b begins in its tensor, its length). Beyond the tensor there is nothing, whatever the offsets say."""
    if RAGGED:
        first = tl.minimum(tl.maximum(tl.load(gCu + i_b).to(tl.int32), 0), total)
        return first, tl.minimum(tl.maximum(tl.load(gCu + i_b + 1).to(tl.int32), first), total) - first
    return 0, N


@triton.jit
def _not_computed(gX, first, last, i_h, H, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """NaN in rows first to last of a head: a sequence is longer than the longest there was said to be, and nobody could wait to be told."""
    for start in range(first, last, BLOCK):
        at = tile_at(head_row(gX, i_h * 0, i_h, start, 0, H * D, D), H * D, BLOCK, BLOCK_D)
        rows = start + tl.arange(0, BLOCK)[:, None]
        tl.store(
            at, tl.full([BLOCK, BLOCK_D], float("nan"), gX.dtype.element_ty), mask=(rows < last) & (tl.arange(0, BLOCK_D)[None, :] < D)
        )


@triton.jit
def _corner(gX, low_m, low_n, stride_t, stride_s):
    return gX + tl.cast(low_m, tl.int64) * stride_t + tl.cast(low_n, tl.int64) * stride_s


@triton.jit
def _further(gX, places: tl.constexpr, stride):
    """A pointer so many places on, in 64 bits."""
    return gX + tl.full([], places, tl.int64) * stride


@triton.jit
def _fall(rS, scale_in):
    """exp(-2 |x|) of the scaled product x, and 1 / (1 + it): both tanh and its slope are made of these."""
    fall = tl.exp2(-2.8853900817779268 * tl.abs(rS * scale_in))
    return fall, 1.0 / (1.0 + fall)


@triton.jit
def _tanh(rS, scale_in):
    """Of the scaled product, to some 2^-22 absolutely: softcap 50's scores to 1.2e-5, where float32's spacing at them is 3.8e-6."""
    fall, part = _fall(rS, scale_in)
    rT = (1.0 - fall) * part
    return tl.where(rS * scale_in < 0.0, -rT, rT)


@triton.jit
def _slope(rS, scale_in):
    """1 - tanh^2 of the scaled product, without its cancellation."""
    fall, part = _fall(rS, scale_in)
    return 4.0 * fall * part * part


@triton.jit
def _score(rS, gAdded, gMask, m, n, low_m, low_n, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s, EDGE: tl.constexpr, LEFT: tl.constexpr,
           RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, LATE: tl.constexpr):  # fmt: skip
    """Products to scores to base 2, -inf where a key is not seen; LATE: all but the factor scale_out. m and n are the queries and keys of the tile,
    along either axis, from low_m and low_n on, gAdded and gMask the tile's corner in 64 bits: offsets from it have 32."""
    if CAPPED == 2:  # a cap so wide that what _tanh is off by would be seen
        rS = libdevice.tanh(rS * scale_in)
    elif CAPPED:
        rS = _tanh(rS, scale_in)
    if not LATE:
        rS = rS * scale_out
    there = (m < T) & (n < S)
    if ADDED:
        rS += tl.load(gAdded + (m - low_m) * a_t + (n - low_n) * a_s, mask=there, other=0.0).to(tl.float32) * 1.4426950408889634
    if MASK:
        rMask = tl.load(gMask + (m - low_m) * m_t + (n - low_n) * m_s, mask=there, other=0)
        rS = tl.where(rMask != 0, rS, float("-inf"))
    if EDGE:
        seen = n < S
        if LEFT:
            seen = seen & (n >= m + (S - T) - left)
        if RIGHT:
            seen = seen & (n <= m + (S - T) + right)
        rS = tl.where(seen, rS, float("-inf"))
    return rS


@triton.jit
def _ranges(low, last, N, below, above, length, BELOW: tl.constexpr, ABOVE: tl.constexpr, BLOCK: tl.constexpr):
    """Of the other side's `length` places, those that rows low..last meet, row i meeting i - below .. i + above: (start, a, b, end). Tiles from start
    to a are met by some of the rows, from a to b by all, from b to end by some."""
    start = 0
    a = 0
    if BELOW:
        start = min(max(low - below, 0), length) // BLOCK * BLOCK
        a = tl.cdiv(min(max(last - below, 0), length), BLOCK) * BLOCK
    end = length
    b = length
    if ABOVE:
        end = min(max(last + above + 1, 0), length)
        b = min(max(low + above + 1, 0), length)
    a = min(a, tl.cdiv(end, BLOCK) * BLOCK)
    return start, a, max(b // BLOCK * BLOCK, a), end


@triton.jit
def _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out, threshold, stride_ks,
            stride_vs, a_t, a_s, m_t, m_s, first, last, EDGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAPPED: tl.constexpr,
            ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, LATE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
            DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    factor = scale_out if LATE else 1.0  # after the maximum it costs nothing: exp2(s factor - base) is one multiply-add
    for start in range(first, min(last, S), BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rK = load_tile(gK, stride_ks, i_n, S, EDGE, D, BLOCK_N, BLOCK_D)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        rS = _score(rS, gAdded, gMask, i_m[:, None], i_n[None, :], low, start, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s,
                    EDGE, LEFT, RIGHT, CAPPED, ADDED, MASK, LATE)  # fmt: skip
        new = tl.maximum(rMax, tl.max(rS, 1) * factor)
        base = new
        if EDGE or ADDED or MASK:
            base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf: a row that has seen nothing yet
        rP = tl.exp2(rS * factor - base[:, None])
        shrink = tl.exp2(rMax - base)
        rSum = rSum * shrink + tl.sum(rP, 1)
        if DROP:
            rP = tl.where(kept(rows + start, gSeed, threshold, BLOCK_M, BLOCK_N, 4), rP, 0.0)
        rV = load_tile(gV, stride_vs, i_n, S, EDGE, DV, BLOCK_N, BLOCK_DV)
        rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc * shrink[:, None], input_precision="ieee")
        rMax = new
        gK = _further(gK, BLOCK_N, stride_ks)
        gV = _further(gV, BLOCK_N, stride_vs)
        if ADDED:
            gAdded = _further(gAdded, BLOCK_N, a_s)
        if MASK:
            gMask = _further(gMask, BLOCK_N, m_s)
    return rAcc, rSum, rMax, gK, gV, gAdded, gMask


@triton.jit
def forward(gQ, gK, gV, gOut, gLse, gSinks, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
             stride_sink, gAdded, gMask, gSeed, gCuQ, gCuK, B, H, T_, S_, total_q, total_k, left, right, scale_in, scale_out, threshold, keep,
             counts, a_b, a_h, a_t, a_s, m_b, m_h, m_t, m_s, SINKS: tl.constexpr, LATE: tl.constexpr, LEFT: tl.constexpr,
             RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, RAGGED: tl.constexpr,
             GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    """Rows of a tile are queries, and of each its HEADS neighbouring heads, which read one key head."""
    ROWS: tl.constexpr = BLOCK_M // HEADS
    tiles = tl.cdiv(T_, ROWS)
    i_tile = tl.program_id(0) % tiles
    if RIGHT and not LEFT:
        i_tile = tiles - 1 - i_tile
    i_b, i_h = tl.program_id(0) // tiles // (H // HEADS), tl.program_id(0) // tiles % (H // HEADS) * HEADS
    at_q, T = _span(gCuQ, i_b, T_, total_q, RAGGED)
    at_k, S = _span(gCuK, i_b, S_, total_k, RAGGED)
    low = i_tile * ROWS
    if RAGGED:
        if low >= T:
            return
    i_m = low + tl.arange(0, BLOCK_M) // HEADS
    i_head = i_h + tl.arange(0, BLOCK_M) % HEADS if HEADS > 1 else i_h
    row = i_h.to(tl.int64) * total_q + at_q if RAGGED else (i_b.to(tl.int64) * H + i_head) * T
    gQ = head_row(gQ, i_b, i_h, at_q + low, stride_qb, stride_qt, stride_qh)
    gK = head_row(gK, i_b, i_h // GROUP, at_k, stride_kb, stride_ks, stride_kh)
    gV = head_row(gV, i_b, i_h // GROUP, at_k, stride_vb, stride_vs, stride_vh)
    if HEADS > 1:
        i_d = tl.arange(0, BLOCK_D)[None, :]
        at = gQ + ((i_m - low) * stride_qt + (i_head - i_h) * stride_qh)[:, None] + i_d
        rQ = tl.load(at, mask=(i_m[:, None] < T) & (i_d < D), other=0.0)
    else:
        rQ = load_tile(gQ, stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
    rMax = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rSum = tl.zeros([BLOCK_M], tl.float32)
    rAcc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    rows = (row + i_m) * counts
    shift = S - T
    start, a, b, end = _ranges(low + shift, min(low + ROWS, T) - 1 + shift, S, left, right, S, LEFT, RIGHT, BLOCK_N)
    gK += tl.cast(start, tl.int64) * stride_ks
    gV += tl.cast(start, tl.int64) * stride_vs
    gAdded = _corner(gAdded + i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h, low, start, a_t, a_s)
    gMask = _corner(gMask + i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h, low, start, m_t, m_s)
    if LEFT:
        rAcc, rSum, rMax, gK, gV, gAdded, gMask = _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                                   threshold, stride_ks, stride_vs, a_t, a_s, m_t, m_s, start, a, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                                   DROP, LATE, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rAcc, rSum, rMax, gK, gV, gAdded, gMask = _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                               threshold, stride_ks, stride_vs, a_t, a_s, m_t, m_s, a, b, False, LEFT, RIGHT, CAPPED, ADDED, MASK,
                               DROP, LATE, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rAcc, rSum, rMax, gK, gV, gAdded, gMask = _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                               threshold, stride_ks, stride_vs, a_t, a_s, m_t, m_s, b, end, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                               DROP, LATE, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    if SINKS:
        rSink = tl.load(gSinks + i_head * stride_sink).to(tl.float32) * 1.4426950408889634
        new = tl.maximum(rMax, rSink)
        base = tl.where(new == float("-inf"), 0.0, new)
        shrink = tl.exp2(rMax - base)
        rSum = rSum * shrink + tl.exp2(rSink - base)
        rAcc = rAcc * shrink[:, None]
        rMax = new
    rOut = rAcc * (keep / tl.where(rSum == 0.0, 1.0, rSum))[:, None]  # a row that sees nothing is zero
    if HEADS > 1:
        i_d = tl.arange(0, BLOCK_DV)[None, :]
        at = head_row(gOut, i_b, i_h, low, tl.cast(T, tl.int64) * H * DV, H * DV, DV) + ((i_m - low) * H + i_head - i_h)[:, None] * DV + i_d
        tl.store(at, rOut.to(gOut.dtype.element_ty), mask=(i_m[:, None] < T) & (i_d < DV))
    else:
        store_tile(gOut, rOut, i_b * 0 if RAGGED else i_b, i_h, at_q + low, i_m, T, H, DV, BLOCK_M, BLOCK_DV)
    rLse = (rMax + tl.log2(rSum)) * 0.6931471805599453  # ln 2
    tl.store(gLse + row + i_m, rLse, mask=i_m < T)
    if RAGGED:
        if low == (tiles - 1) * BLOCK_M:
            _not_computed(gOut, at_q + tiles * BLOCK_M, at_q + T, i_h, H, DV, BLOCK_M, BLOCK_DV)
            for start in range(tiles * BLOCK_M, T, BLOCK_M):
                i_t = start + tl.arange(0, BLOCK_M)
                tl.store(gLse + row + i_t, tl.full([BLOCK_M], float("nan"), tl.float32), mask=i_t < T)


@triton.jit
def _gradient(rP, rDp, rDelta, rKept, keep, DROP: tl.constexpr):
    """The gradient of the score."""
    if DROP:
        rDp = tl.where(rKept, rDp * keep, 0.0)
    return rP * (rDp - rDelta)


@triton.jit
def _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out, threshold, keep,
                stride_ks, stride_vs, a_t, a_s, m_t, m_s, first, last, EDGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
                CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
                DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, min(last, S), BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rK = load_tile(gK, stride_ks, i_n, S, EDGE, D, BLOCK_N, BLOCK_D)
        rV = load_tile(gV, stride_vs, i_n, S, EDGE, DV, BLOCK_N, BLOCK_DV)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        rDp = tl.dot(rDout, tl.trans(rV), input_precision="ieee")
        rKept = kept(rows + start, gSeed, threshold, BLOCK_M, BLOCK_N, 4) if DROP else rDp
        rP = tl.exp2(_score(rS, gAdded, gMask, i_m[:, None], i_n[None, :], low, start, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s,
                            EDGE, LEFT, RIGHT, CAPPED, ADDED, MASK, False) - rLse[:, None])  # fmt: skip
        rDs = _gradient(rP, rDp, rDelta[:, None], rKept, keep, DROP)
        if CAPPED:
            rDs *= _slope(rS, scale_in)
        rDq = tl.dot(rDs.to(rK.dtype), rK, rDq, input_precision="ieee")
        gK = _further(gK, BLOCK_N, stride_ks)
        gV = _further(gV, BLOCK_N, stride_vs)
        if ADDED:
            gAdded = _further(gAdded, BLOCK_N, a_s)
        if MASK:
            gMask = _further(gMask, BLOCK_N, m_s)
    return rDq, gK, gV, gAdded, gMask


@triton.jit
def queries(gDout, gDlse, gOut, gLse, gLse2, gDelta, gDq, scale, stride_gb, stride_gt, stride_gh, stride_ob, stride_ot, stride_oh, gQ, gK, gV,
             stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, gAdded, gMask, gSeed, gCuQ,
             gCuK, B, H, T_, S_, total_q, total_k, left, right, scale_in, scale_out, threshold, keep, counts, a_b, a_h, a_t, a_s, m_b, m_h,
             m_t, m_s, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr,
             DROP: tl.constexpr, RAGGED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr,
             BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(T_, BLOCK_M)
    i_tile = tl.program_id(0) % tiles
    if RIGHT and not LEFT:
        i_tile = tiles - 1 - i_tile
    i_b, i_h = tl.program_id(0) // tiles // H, tl.program_id(0) // tiles % H
    at_q, T = _span(gCuQ, i_b, T_, total_q, RAGGED)
    at_k, S = _span(gCuK, i_b, S_, total_k, RAGGED)
    low = i_tile * BLOCK_M
    if RAGGED:
        if low >= T:
            return
    i_m = low + tl.arange(0, BLOCK_M)
    row = i_h.to(tl.int64) * total_q + at_q if RAGGED else (i_b.to(tl.int64) * H + i_h) * T
    rDout = load_tile(
        head_row(gDout, i_b, i_h, at_q + low, stride_gb, stride_gt, stride_gh), stride_gt, i_m, T, True, DV, BLOCK_M, BLOCK_DV
    )
    rOut = load_tile(head_row(gOut, i_b, i_h, at_q + low, stride_ob, stride_ot, stride_oh), stride_ot, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
    rDelta = tl.sum(rOut.to(tl.float32) * rDout.to(tl.float32), 1) - tl.load(gDlse + row + i_m, mask=i_m < T, other=0.0)
    rLse = tl.load(gLse + row + i_m, mask=i_m < T, other=float("-inf")) * 1.4426950408889634  # log2 e
    rLse = tl.where(rLse == float("-inf"), float("inf"), rLse)  # no weights: exp2(s - inf)
    tl.store(gDelta + row + i_m, rDelta, mask=i_m < T)
    tl.store(gLse2 + row + i_m, rLse, mask=i_m < T)
    rQ = load_tile(head_row(gQ, i_b, i_h, at_q + low, stride_qb, stride_qt, stride_qh), stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
    gK = head_row(gK, i_b, i_h // GROUP, at_k, stride_kb, stride_ks, stride_kh)
    gV = head_row(gV, i_b, i_h // GROUP, at_k, stride_vb, stride_vs, stride_vh)
    rDq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    rows = (row + i_m) * counts
    shift = S - T
    start, a, b, end = _ranges(low + shift, min(low + BLOCK_M, T) - 1 + shift, S, left, right, S, LEFT, RIGHT, BLOCK_N)
    gK += tl.cast(start, tl.int64) * stride_ks
    gV += tl.cast(start, tl.int64) * stride_vs
    gAdded = _corner(gAdded + i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h, low, start, a_t, a_s)
    gMask = _corner(gMask + i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h, low, start, m_t, m_s)
    if LEFT:
        rDq, gK, gV, gAdded, gMask = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                          threshold, keep, stride_ks, stride_vs, a_t, a_s, m_t, m_s, start, a, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                          DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rDq, gK, gV, gAdded, gMask = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                      threshold, keep, stride_ks, stride_vs, a_t, a_s, m_t, m_s, a, b, False, LEFT, RIGHT, CAPPED, ADDED, MASK,
                      DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rDq, gK, gV, gAdded, gMask = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                      threshold, keep, stride_ks, stride_vs, a_t, a_s, m_t, m_s, b, end, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                      DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    store_tile(gDq, rDq * scale, i_b * 0 if RAGGED else i_b, i_h, at_q + low, i_m, T, H, D, BLOCK_M, BLOCK_D)
    if RAGGED:
        if low == (tiles - 1) * BLOCK_M:
            _not_computed(gDq, at_q + tiles * BLOCK_M, at_q + T, i_h, H, D, BLOCK_M, BLOCK_D)


@triton.jit
def _keys_of(rDk, rDv, rK, rV, gQ, gDout, gLse2, gDelta, gAdded, gMask, gSeed, row, i_n, low, T, S, left, right, scale_in, scale_out, threshold,
             keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, first, last, EDGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
             CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, EVEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
             DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, min(last, T), BLOCK_M):
        i_m = start + tl.arange(0, BLOCK_M)
        rQ = load_tile(gQ, stride_qt, i_m, T, not EVEN, D, BLOCK_M, BLOCK_D)
        rDout = load_tile(gDout, stride_gt, i_m, T, not EVEN, DV, BLOCK_M, BLOCK_DV)
        if EVEN:
            rLse = tl.load(gLse2 + i_m)
            rDelta = tl.load(gDelta + i_m)
        else:
            rLse = tl.load(gLse2 + i_m, mask=i_m < T, other=float("inf"))
            rDelta = tl.load(gDelta + i_m, mask=i_m < T, other=0.0)
        rS = tl.dot(rK, tl.trans(rQ), input_precision="ieee")
        rDp = tl.dot(rV, tl.trans(rDout), input_precision="ieee")
        rKept = tl.trans(kept((row + i_m) * counts + low, gSeed, threshold, BLOCK_M, BLOCK_N, 4)) if DROP else rDp
        rP = tl.exp2(_score(rS, gAdded, gMask, i_m[None, :], i_n[:, None], start, low, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s,
                            EDGE, LEFT, RIGHT, CAPPED, ADDED, MASK, False) - rLse[None, :])  # fmt: skip
        rWeights = tl.where(rKept, rP, 0.0) if DROP else rP
        rDv = tl.dot(rWeights.to(rDout.dtype), rDout, rDv, input_precision="ieee")
        rDs = _gradient(rP, rDp, rDelta[None, :], rKept, keep, DROP)
        if CAPPED:
            rDs *= _slope(rS, scale_in)
        rDk = tl.dot(rDs.to(rQ.dtype), rQ, rDk, input_precision="ieee")
        gQ = _further(gQ, BLOCK_M, stride_qt)
        gDout = _further(gDout, BLOCK_M, stride_gt)
        if ADDED:
            gAdded = _further(gAdded, BLOCK_M, a_t)
        if MASK:
            gMask = _further(gMask, BLOCK_M, m_t)
    return rDk, rDv, gQ, gDout, gAdded, gMask


@triton.jit
def keys(gDout, gLse2, gDelta, gDk, gDv, scale, stride_gb, stride_gt, stride_gh, gQ, gK, gV, stride_qb, stride_qt, stride_qh, stride_kb,
          stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, gAdded, gMask, gSeed, gCuQ, gCuK, B, H, T_, S_, total_q, total_k, left,
          right, scale_in, scale_out, threshold, keep, counts, a_b, a_h, a_t, a_s, m_b, m_h, m_t, m_s, EVEN: tl.constexpr,
          LEFT: tl.constexpr, RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, RAGGED: tl.constexpr,
          GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
          BLOCK_N: tl.constexpr):  # fmt: skip
    tiles, G = tl.cdiv(S_, BLOCK_N), H // GROUP
    i_tile = tl.program_id(0) % tiles  # causal: the first keys are seen by the most queries, so this is longest first
    i_b, i_g = tl.program_id(0) // tiles // G, tl.program_id(0) // tiles % G
    at_q, T = _span(gCuQ, i_b, T_, total_q, RAGGED)
    at_k, S = _span(gCuK, i_b, S_, total_k, RAGGED)
    low = i_tile * BLOCK_N
    if RAGGED:
        if low >= S:
            return
    i_n = low + tl.arange(0, BLOCK_N)
    rK = load_tile(head_row(gK, i_b, i_g, at_k + low, stride_kb, stride_ks, stride_kh), stride_ks, i_n, S, True, D, BLOCK_N, BLOCK_D)
    rV = load_tile(head_row(gV, i_b, i_g, at_k + low, stride_vb, stride_vs, stride_vh), stride_vs, i_n, S, True, DV, BLOCK_N, BLOCK_DV)
    rDk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    rDv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    shift = S - T
    start, a, b, end = _ranges(low - shift, min(low + BLOCK_N, S) - 1 - shift, T, right, left, T, RIGHT, LEFT, BLOCK_M)
    if not LEFT:
        b = end  # queries past the last have no weights: nothing to mask
    for r in range(GROUP):
        i_h = i_g * GROUP + r
        row = i_h.to(tl.int64) * total_q + at_q if RAGGED else (i_b.to(tl.int64) * H + i_h) * T
        gQr = head_row(gQ, i_b, i_h, at_q + start, stride_qb, stride_qt, stride_qh)
        gDoutr = head_row(gDout, i_b, i_h, at_q + start, stride_gb, stride_gt, stride_gh)
        gLse2r, gDeltar = gLse2 + row, gDelta + row
        gAddedr = _corner(gAdded + i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h, start, low, a_t, a_s)
        gMaskr = _corner(gMask + i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h, start, low, m_t, m_s)
        if RIGHT:
            rDk, rDv, gQr, gDoutr, gAddedr, gMaskr = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2r, gDeltar, gAddedr, gMaskr, gSeed, row, i_n, low, T, S, left, right,
                                scale_in, scale_out, threshold, keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, start, a, True,
                                LEFT, RIGHT, CAPPED, ADDED, MASK, DROP, EVEN, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
        rDk, rDv, gQr, gDoutr, gAddedr, gMaskr = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2r, gDeltar, gAddedr, gMaskr, gSeed, row, i_n, low, T, S, left, right,
                            scale_in, scale_out, threshold, keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, a, b, False,
                            LEFT, RIGHT, CAPPED, ADDED, MASK, DROP, EVEN, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
        if LEFT:
            rDk, rDv, gQr, gDoutr, gAddedr, gMaskr = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2r, gDeltar, gAddedr, gMaskr, gSeed, row, i_n, low, T, S, left, right,
                                scale_in, scale_out, threshold, keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, b, end, True,
                                LEFT, RIGHT, CAPPED, ADDED, MASK, DROP, EVEN, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    i_o = i_b * 0 if RAGGED else i_b
    store_tile(gDk, rDk * scale, i_o, i_g, at_k + low, i_n, S, G, D, BLOCK_N, BLOCK_D)
    store_tile(gDv, rDv * keep, i_o, i_g, at_k + low, i_n, S, G, DV, BLOCK_N, BLOCK_DV)
    if RAGGED:
        if low == (tiles - 1) * BLOCK_N:
            _not_computed(gDk, at_k + tiles * BLOCK_N, at_k + S, i_g, G, D, BLOCK_N, BLOCK_D)
            _not_computed(gDv, at_k + tiles * BLOCK_N, at_k + S, i_g, G, DV, BLOCK_N, BLOCK_DV)


@triton.jit
def bias_gradient(gDout, gLse2, gDelta, gDbias, B1, H1, stride_gb, stride_gt, stride_gh, gQ, gK, gV, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks,
          stride_kh, stride_vb, stride_vs, stride_vh, gAdded, gMask, gSeed, gCuQ, gCuK, B, H, T, S, total_q, total_k, left, right, scale_in,
          scale_out, threshold, keep, counts, a_b, a_h, a_t, a_s, m_b, m_h, m_t, m_s, LEFT: tl.constexpr, RIGHT: tl.constexpr,
          CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, RAGGED: tl.constexpr, GROUP: tl.constexpr,
          D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
          BLOCK_N: tl.constexpr):  # fmt: skip
    """A tile of the bias [B1, H1, T, S] and every batch and head that it is added to."""
    tiles_n, tiles_m = tl.cdiv(S, BLOCK_N), tl.cdiv(T, BLOCK_M)
    low_n, low_m = tl.program_id(0) % tiles_n * BLOCK_N, tl.program_id(0) // tiles_n % tiles_m * BLOCK_M
    i_n, i_m = low_n + tl.arange(0, BLOCK_N), low_m + tl.arange(0, BLOCK_M)
    i_bh = tl.program_id(0) // (tiles_n * tiles_m)
    i_b1, i_h1 = i_bh // H1, i_bh % H1
    rSum = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range((B // B1) * (H // H1)):
        i_b, i_h = i_b1 + i // (H // H1), i_h1 + i % (H // H1)
        rQ = load_tile(head_row(gQ, i_b, i_h, low_m, stride_qb, stride_qt, stride_qh), stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
        rDout = load_tile(head_row(gDout, i_b, i_h, low_m, stride_gb, stride_gt, stride_gh), stride_gt, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
        rK = load_tile(
            head_row(gK, i_b, i_h // GROUP, low_n, stride_kb, stride_ks, stride_kh), stride_ks, i_n, S, True, D, BLOCK_N, BLOCK_D
        )
        rV = load_tile(
            head_row(gV, i_b, i_h // GROUP, low_n, stride_vb, stride_vs, stride_vh), stride_vs, i_n, S, True, DV, BLOCK_N, BLOCK_DV
        )
        row = (i_b.to(tl.int64) * H + i_h) * T
        rLse = tl.load(gLse2 + row + i_m, mask=i_m < T, other=float("inf"))
        rDelta = tl.load(gDelta + row + i_m, mask=i_m < T, other=0.0)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        rDp = tl.dot(rDout, tl.trans(rV), input_precision="ieee")
        rKept = kept((row + i_m) * counts + low_n, gSeed, threshold, BLOCK_M, BLOCK_N, 4) if DROP else rDp
        rP = tl.exp2(_score(rS, _corner(gAdded + i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h, low_m, low_n, a_t, a_s),
                            _corner(gMask + i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h, low_m, low_n, m_t, m_s), i_m[:, None], i_n[None, :], low_m, low_n, T, S, left, right, scale_in, scale_out,
                            a_t, a_s, m_t, m_s, True, LEFT, RIGHT, CAPPED, ADDED, MASK, False) - rLse[:, None])  # fmt: skip
        rSum += _gradient(rP, rDp, rDelta[:, None], rKept, keep, DROP)
    at = (i_bh.to(tl.int64) * T + i_m[:, None]) * S + i_n[None, :]
    tl.store(gDbias + at, rSum.to(gDbias.dtype.element_ty), mask=(i_m[:, None] < T) & (i_n[None, :] < S))


@triton.jit
def sinks_gradient(gDsinks, gSinks, gLse2, gDelta, stride_sink, batches, stride_b, stride_h, N, BLOCK: tl.constexpr):
    """A program a head: minus the sink's share of every query's sum, times what the query's output weighs."""
    i_h = tl.program_id(0)
    rSink = tl.load(gSinks + i_h * stride_sink).to(tl.float32) * 1.4426950408889634
    rSum = tl.zeros([BLOCK], tl.float32)
    for i in range(batches * tl.cdiv(N, BLOCK)):
        at = i // tl.cdiv(N, BLOCK) * tl.cast(stride_b, tl.int64) + i_h.to(tl.int64) * stride_h
        i_m = i % tl.cdiv(N, BLOCK) * BLOCK + tl.arange(0, BLOCK)
        rLse = tl.load(gLse2 + at + i_m, mask=i_m < N, other=float("inf"))
        rSum -= tl.exp2(rSink - rLse) * tl.load(gDelta + at + i_m, mask=i_m < N, other=0.0)
    tl.store(gDsinks + i_h, tl.sum(rSum, 0).to(gDsinks.dtype.element_ty))
