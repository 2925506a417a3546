"""Attention with every option, in Triton: what triton_kernels.py does, with a score that passes through `_score` on its way.

Why these are other kernels than the plain ones: a launch of those has 20 arguments and their loops nothing to skip, which most calls want.
Each option is a constexpr, so a call pays for what it asks for. Keys (or queries) are walked in three ranges: those at the left edge of the window
with masks, those that everyone sees without, those at the right edge with masks again; where there is no left edge that range is not compiled.

Dropout's mask is a function of (seed, row, key), drawn where it is wanted, forward and backward, four neighbouring keys a Philox call. The gradient
of a bias is made by a program a tile of the bias, which walks the batches and heads that share it: no atomics, the same bits every time.
Sequences of ragged lengths lie one behind another: a program looks up where its own begins, and one past its end leaves.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops._shared.philox import scale as kept_scale
from rooftile.ops._shared.philox import threshold
from rooftile.ops._shared.triton_philox import kept
from rooftile.ops.attention.options_reference import counted
from rooftile.ops.attention.triton_tiles import LOG2E, dense, head_row, load_tile, store_tile, widths


@triton.jit
def _span(gCu, i_b, N, total, RAGGED: tl.constexpr):
    """(where sequence i_b begins in its tensor, its length). Beyond the tensor there is nothing, whatever the offsets say."""
    if RAGGED:
        first = tl.minimum(tl.maximum(tl.load(gCu + i_b).to(tl.int32), 0), total)
        return first, tl.minimum(tl.maximum(tl.load(gCu + i_b + 1).to(tl.int32), first), total) - first
    return 0, N


@triton.jit
def _corner(gX, low_m, low_n, stride_t, stride_s):
    return gX + tl.cast(low_m, tl.int64) * stride_t + tl.cast(low_n, tl.int64) * stride_s


@triton.jit
def _score(rS, gAdded, gMask, m, n, low_m, low_n, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s, EDGE: tl.constexpr, LEFT: tl.constexpr,
           RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """Products to scores to base 2, -inf where a key is not seen. m and n are the queries and keys of the tile, along either axis, from low_m and
    low_n on: the tile's corner is one pointer in 64 bits, offsets from it have 32."""
    rS = rS * scale_in
    if CAPPED:
        rS = libdevice.tanh(rS) * scale_out
    there = (m < T) & (n < S)
    if ADDED:
        rS += tl.load(_corner(gAdded, low_m, low_n, a_t, a_s) + (m - low_m) * a_t + (n - low_n) * a_s, mask=there,
                      other=0.0).to(tl.float32) * 1.4426950408889634  # fmt: skip
    if MASK:
        rMask = tl.load(_corner(gMask, low_m, low_n, m_t, m_s) + (m - low_m) * m_t + (n - low_n) * m_s, mask=there, other=0)
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
def _slope(rS, scale_in):
    """1 - tanh^2 of the scaled product, without its cancellation."""
    fall = tl.exp2(-2.8853900817779268 * tl.abs(rS * scale_in))
    return 4.0 * fall / ((1.0 + fall) * (1.0 + fall))


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
            ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr,
            BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, last, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rK = load_tile(gK + tl.cast(start, tl.int64) * stride_ks, stride_ks, i_n, S, EDGE, D, BLOCK_N, BLOCK_D)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        rS = _score(rS, gAdded, gMask, i_m[:, None], i_n[None, :], low, start, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s,
                    EDGE, LEFT, RIGHT, CAPPED, ADDED, MASK)  # fmt: skip
        new = tl.maximum(rMax, tl.max(rS, 1))
        base = new
        if EDGE or ADDED or MASK:
            base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf: a row that has seen nothing yet
        rP = tl.exp2(rS - base[:, None])
        shrink = tl.exp2(rMax - base)
        rSum = rSum * shrink + tl.sum(rP, 1)
        if DROP:
            rP = tl.where(kept(rows + start, gSeed, threshold, BLOCK_M, BLOCK_N, 4), rP, 0.0)
        rV = load_tile(gV + tl.cast(start, tl.int64) * stride_vs, stride_vs, i_n, S, EDGE, DV, BLOCK_N, BLOCK_DV)
        rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc * shrink[:, None], input_precision="ieee")
        rMax = new
    return rAcc, rSum, rMax


@triton.jit
def _forward(gQ, gK, gV, gOut, gLse, gSinks, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
             stride_sink, gAdded, gMask, gSeed, gCuQ, gCuK, B, H, T_, S_, total_q, total_k, left, right, scale_in, scale_out, threshold, keep,
             counts, a_b, a_h, a_t, a_s, m_b, m_h, m_t, m_s, SINKS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
             CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, RAGGED: tl.constexpr, GROUP: tl.constexpr,
             D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr):  # fmt: skip
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
    gQ = head_row(gQ, i_b, i_h, at_q + low, stride_qb, stride_qt, stride_qh)
    gK = head_row(gK, i_b, i_h // GROUP, at_k, stride_kb, stride_ks, stride_kh)
    gV = head_row(gV, i_b, i_h // GROUP, at_k, stride_vb, stride_vs, stride_vh)
    gAdded += i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h
    gMask += i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h
    rQ = load_tile(gQ, stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
    rMax = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rSum = tl.zeros([BLOCK_M], tl.float32)
    rAcc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    rows = (row + i_m) * counts
    shift = S - T
    start, a, b, end = _ranges(low + shift, min(low + BLOCK_M, T) - 1 + shift, S, left, right, S, LEFT, RIGHT, BLOCK_N)
    if LEFT:
        rAcc, rSum, rMax = _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                                   threshold, stride_ks, stride_vs, a_t, a_s, m_t, m_s, start, a, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                                   DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rAcc, rSum, rMax = _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                               threshold, stride_ks, stride_vs, a_t, a_s, m_t, m_s, a, b, False, LEFT, RIGHT, CAPPED, ADDED, MASK,
                               DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rAcc, rSum, rMax = _attend(rAcc, rSum, rMax, rQ, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                               threshold, stride_ks, stride_vs, a_t, a_s, m_t, m_s, b, end, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                               DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    if SINKS:
        rSink = tl.load(gSinks + i_h * stride_sink).to(tl.float32) * 1.4426950408889634
        new = tl.maximum(rMax, rSink)
        base = tl.where(new == float("-inf"), 0.0, new)
        shrink = tl.exp2(rMax - base)
        rSum = rSum * shrink + tl.exp2(rSink - base)
        rAcc = rAcc * shrink[:, None]
        rMax = new
    rOut = rAcc * (keep / tl.where(rSum == 0.0, 1.0, rSum))[:, None]  # a row that sees nothing is zero
    store_tile(gOut, rOut, i_b * 0 if RAGGED else i_b, i_h, at_q + low, i_m, T, H, DV, BLOCK_M, BLOCK_DV)
    rLse = (rMax + tl.log2(rSum)) * 0.6931471805599453  # ln 2
    tl.store(gLse + row + i_m, rLse, mask=i_m < T)


@triton.jit
def _gradient(rS, rDp, gAdded, gMask, rLse, rDelta, rKept, m, n, low_m, low_n, T, S, left, right, scale_in, scale_out, keep, a_t, a_s, m_t, m_s,
              EDGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr,
              DROP: tl.constexpr):  # fmt: skip
    """(the weights that v meets, less their common factor; the gradient of the score). rLse to base 2, inf where a query has no weights."""
    rP = tl.exp2(_score(rS, gAdded, gMask, m, n, low_m, low_n, T, S, left, right, scale_in, scale_out, a_t, a_s, m_t, m_s, EDGE, LEFT, RIGHT,
                        CAPPED, ADDED, MASK) - rLse)  # fmt: skip
    rWeights = rP
    if DROP:
        rWeights = tl.where(rKept, rP, 0.0)
        rDp = tl.where(rKept, rDp * keep, 0.0)
    return rWeights, rP * (rDp - rDelta)


@triton.jit
def _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out, threshold, keep,
                stride_ks, stride_vs, a_t, a_s, m_t, m_s, first, last, EDGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
                CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
                DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, last, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rK = load_tile(gK + tl.cast(start, tl.int64) * stride_ks, stride_ks, i_n, S, EDGE, D, BLOCK_N, BLOCK_D)
        rV = load_tile(gV + tl.cast(start, tl.int64) * stride_vs, stride_vs, i_n, S, EDGE, DV, BLOCK_N, BLOCK_DV)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        rDp = tl.dot(rDout, tl.trans(rV), input_precision="ieee")
        rKept = kept(rows + start, gSeed, threshold, BLOCK_M, BLOCK_N, 4) if DROP else rDp
        _rP, rDs = _gradient(rS, rDp, gAdded, gMask, rLse[:, None], rDelta[:, None], rKept, i_m[:, None], i_n[None, :], low, start, T, S, left,
                             right, scale_in, scale_out, keep, a_t, a_s, m_t, m_s, EDGE, LEFT, RIGHT, CAPPED, ADDED, MASK, DROP)  # fmt: skip
        if CAPPED:
            rDs *= _slope(rS, scale_in)
        rDq = tl.dot(rDs.to(rK.dtype), rK, rDq, input_precision="ieee")
    return rDq


@triton.jit
def _queries(gDout, gDlse, gOut, gLse, gLse2, gDelta, gDq, scale, stride_gb, stride_gt, stride_gh, stride_ob, stride_ot, stride_oh, gQ, gK, gV,
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
    gAdded += i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h
    gMask += i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h
    rDq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    rows = (row + i_m) * counts
    shift = S - T
    start, a, b, end = _ranges(low + shift, min(low + BLOCK_M, T) - 1 + shift, S, left, right, S, LEFT, RIGHT, BLOCK_N)
    if LEFT:
        rDq = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                          threshold, keep, stride_ks, stride_vs, a_t, a_s, m_t, m_s, start, a, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                          DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rDq = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                      threshold, keep, stride_ks, stride_vs, a_t, a_s, m_t, m_s, a, b, False, LEFT, RIGHT, CAPPED, ADDED, MASK,
                      DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    rDq = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, gAdded, gMask, gSeed, rows, i_m, low, T, S, left, right, scale_in, scale_out,
                      threshold, keep, stride_ks, stride_vs, a_t, a_s, m_t, m_s, b, end, True, LEFT, RIGHT, CAPPED, ADDED, MASK,
                      DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    store_tile(gDq, rDq * scale, i_b * 0 if RAGGED else i_b, i_h, at_q + low, i_m, T, H, D, BLOCK_M, BLOCK_D)


@triton.jit
def _keys_of(rDk, rDv, rK, rV, gQ, gDout, gLse2, gDelta, gAdded, gMask, gSeed, row, i_n, low, T, S, left, right, scale_in, scale_out, threshold,
             keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, first, last, EDGE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
             CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
             DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, last, BLOCK_M):
        i_m = start + tl.arange(0, BLOCK_M)
        rQ = load_tile(gQ + tl.cast(start, tl.int64) * stride_qt, stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
        rDout = load_tile(gDout + tl.cast(start, tl.int64) * stride_gt, stride_gt, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
        rLse = tl.load(gLse2 + row + i_m, mask=i_m < T, other=float("inf"))
        rDelta = tl.load(gDelta + row + i_m, mask=i_m < T, other=0.0)
        rS = tl.dot(rK, tl.trans(rQ), input_precision="ieee")
        rDp = tl.dot(rV, tl.trans(rDout), input_precision="ieee")
        rKept = tl.trans(kept((row + i_m) * counts + low, gSeed, threshold, BLOCK_M, BLOCK_N, 4)) if DROP else rDp
        rP, rDs = _gradient(rS, rDp, gAdded, gMask, rLse[None, :], rDelta[None, :], rKept, i_m[None, :], i_n[:, None], start, low, T, S, left,
                            right, scale_in, scale_out, keep, a_t, a_s, m_t, m_s, EDGE, LEFT, RIGHT, CAPPED, ADDED, MASK, DROP)  # fmt: skip
        if CAPPED:
            rDs *= _slope(rS, scale_in)
        rDv = tl.dot(rP.to(rDout.dtype), rDout, rDv, input_precision="ieee")
        rDk = tl.dot(rDs.to(rQ.dtype), rQ, rDk, input_precision="ieee")
    return rDk, rDv


@triton.jit
def _keys(gDout, gLse2, gDelta, gDk, gDv, scale, stride_gb, stride_gt, stride_gh, gQ, gK, gV, stride_qb, stride_qt, stride_qh, stride_kb,
          stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, gAdded, gMask, gSeed, gCuQ, gCuK, B, H, T_, S_, total_q, total_k, left,
          right, scale_in, scale_out, threshold, keep, counts, a_b, a_h, a_t, a_s, m_b, m_h, m_t, m_s, LEFT: tl.constexpr,
          RIGHT: tl.constexpr, CAPPED: tl.constexpr, ADDED: tl.constexpr, MASK: tl.constexpr, DROP: tl.constexpr, RAGGED: tl.constexpr,
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
        gQr = head_row(gQ, i_b, i_h, at_q, stride_qb, stride_qt, stride_qh)
        gDoutr = head_row(gDout, i_b, i_h, at_q, stride_gb, stride_gt, stride_gh)
        gAddedr = gAdded + i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h
        gMaskr = gMask + i_b.to(tl.int64) * m_b + i_h.to(tl.int64) * m_h
        if RIGHT:
            rDk, rDv = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2, gDelta, gAddedr, gMaskr, gSeed, row, i_n, low, T, S, left, right,
                                scale_in, scale_out, threshold, keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, start, a, True,
                                LEFT, RIGHT, CAPPED, ADDED, MASK, DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
        rDk, rDv = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2, gDelta, gAddedr, gMaskr, gSeed, row, i_n, low, T, S, left, right,
                            scale_in, scale_out, threshold, keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, a, b, False,
                            LEFT, RIGHT, CAPPED, ADDED, MASK, DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
        if LEFT:
            rDk, rDv = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2, gDelta, gAddedr, gMaskr, gSeed, row, i_n, low, T, S, left, right,
                                scale_in, scale_out, threshold, keep, counts, stride_qt, stride_gt, a_t, a_s, m_t, m_s, b, end, True,
                                LEFT, RIGHT, CAPPED, ADDED, MASK, DROP, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M, BLOCK_N)  # fmt: skip
    i_o = i_b * 0 if RAGGED else i_b
    store_tile(gDk, rDk * scale, i_o, i_g, at_k + low, i_n, S, G, D, BLOCK_N, BLOCK_D)
    store_tile(gDv, rDv * keep, i_o, i_g, at_k + low, i_n, S, G, DV, BLOCK_N, BLOCK_DV)


@triton.jit
def _bias(gDout, gLse2, gDelta, gDbias, B1, H1, stride_gb, stride_gt, stride_gh, gQ, gK, gV, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks,
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
        _rP, rDs = _gradient(rS, rDp, gAdded + i_b.to(tl.int64) * a_b + i_h.to(tl.int64) * a_h, gMask + i_b.to(tl.int64) * m_b
                             + i_h.to(tl.int64) * m_h, rLse[:, None], rDelta[:, None], rKept, i_m[:, None], i_n[None, :], low_m, low_n, T, S,
                             left, right, scale_in, scale_out, keep, a_t, a_s, m_t, m_s, True, LEFT, RIGHT, CAPPED, ADDED, MASK, DROP)  # fmt: skip
        rSum += rDs
    at = (i_bh.to(tl.int64) * T + i_m[:, None]) * S + i_n[None, :]
    tl.store(gDbias + at, rSum.to(gDbias.dtype.element_ty), mask=(i_m[:, None] < T) & (i_n[None, :] < S))


@triton.jit
def _sinks(gDsinks, gSinks, gLse2, gDelta, stride_sink, batches, stride_b, stride_h, N, BLOCK: tl.constexpr):
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


# ---- launchers ---------------------------------------------------------------------------------------------------------------


def _near(x):
    """A tile of it lies within 32-bit offsets; else it is copied."""
    return x if x is None or max(x.stride()[2:]) < 2**24 else x.contiguous()


class Problem:
    """A call as the kernels take it: what every one of them is given, dense or ragged."""

    def __init__(self, q, k, v, options, ragged=None):
        sinks, added, mask, seed, scale, left, right, softcap, p = options
        self.q, self.k, self.v, self.sinks = dense(q), dense(k), dense(v), sinks
        self.ragged, self.scale = ragged is not None, scale
        self.h, self.d, self.g, self.dv = q.shape[-2], q.shape[-1], k.shape[-2], v.shape[-1]
        if ragged is None:
            (self.b, self.t), self.s, cu = q.shape[:2], k.shape[1], (q, q)
        else:
            *cu, self.t, self.s = ragged
            self.b = cu[0].shape[0] - 1
        self.rows = q.shape[0] if self.ragged else self.b * self.t
        numbers = (left, right, *((scale / softcap, softcap * LOG2E) if softcap else (scale * LOG2E, 1.0)), threshold(p), kept_scale(p))
        added, mask = _near(added), None if mask is None else _near(mask.view(torch.uint8))
        pointers = (q if added is None else added, q if mask is None else mask, q if seed is None else seed, *cu)
        totals = (q.shape[0], k.shape[0]) if self.ragged else (0, 0)
        self.common = (*pointers, self.b, self.h, self.t, self.s, *totals, *numbers, counted(self.s),
                       *((0,) * 4 if added is None else added.stride()), *((0,) * 4 if mask is None else mask.stride()))  # fmt: skip
        self.flags = {
            "LEFT": left >= 0, "RIGHT": right >= 0, "CAPPED": softcap > 0, "ADDED": added is not None, "MASK": mask is not None,
            "DROP": seed is not None, "RAGGED": self.ragged, "GROUP": self.h // max(1, self.g), **widths(self.d, self.dv),
        }  # fmt: skip

    def strides(self, *tensors):
        """Of batch, row and head; one sequence behind another has no batch."""
        return [s for x in tensors for s in ((0, *x.stride()[:2]) if self.ragged else x.stride()[:3])]

    def inputs(self):
        return (self.q, self.k, self.v, *self.strides(self.q, self.k, self.v))


def _forward_of(problem, config):
    x = problem
    out = x.q.new_empty(*x.q.shape[:-1], x.dv)
    lse = x.q.new_empty((x.h, x.rows) if x.ragged else (x.b, x.h, x.t), dtype=torch.float32)
    sinks = x.q if x.sinks is None else x.sinks
    launch(_forward, (cdiv(x.t, config["BLOCK_M"]) * x.b * x.h,), x.q, x.k, x.v, out, lse, sinks, *x.strides(x.q, x.k, x.v),
           sinks.stride(0), *x.common, SINKS=x.sinks is not None, **x.flags, **config)  # fmt: skip
    return out, lse


def _tile_of(config, name):
    m, n, warps, stages = (config[f"{name}_{x}"] for x in ("m", "n", "warps", "stages"))
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def _backward_of(problem, dout, dlse, out, lse, config):
    """dq, dk, dv, dsinks, and what the gradient of a bias is made of."""
    x = problem
    dout, out, lse, dlse = dense(dout), dense(out), lse.contiguous(), dlse.contiguous()
    dq, dk, dv = (t.new_empty(t.shape) for t in (x.q, x.k, x.v))
    lse2, delta = torch.empty_like(lse), torch.empty_like(lse)
    tile = _tile_of(config, "dq")
    launch(_queries, (cdiv(x.t, tile["BLOCK_M"]) * x.b * x.h,), dout, dlse, out, lse, lse2, delta, dq, x.scale, *x.strides(dout, out),
           *x.inputs(), *x.common, **x.flags, **tile)  # fmt: skip
    tile = _tile_of(config, "dkv")
    launch(_keys, (cdiv(x.s, tile["BLOCK_N"]) * x.b * x.g,), dout, lse2, delta, dk, dv, x.scale, *x.strides(dout), *x.inputs(), *x.common,
           **x.flags, **tile)  # fmt: skip
    dsinks = x.q.new_empty(0 if x.sinks is None else x.h, dtype=x.q.dtype if x.sinks is None else x.sinks.dtype)
    if x.sinks is not None:
        where = (1, 0, x.rows, x.rows) if x.ragged else (x.b, x.h * x.t, x.t, x.t)
        launch(_sinks, (x.h,), dsinks, x.sinks, lse2, delta, x.sinks.stride(0), *where, BLOCK=1024, num_warps=4)
    return dq, dk, dv, dsinks, (dout, lse2, delta)


def attention_options(q, k, v, sinks, bias, constant_bias, mask, seed, scale, left, right, softcap, p, *, config):
    added = bias if constant_bias is None else constant_bias
    added = added if added is None else added.expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return _forward_of(Problem(q, k, v, (sinks, added, mask, seed, scale, left, right, softcap, p)), config)


def attention_options_backward(
    dout, dlse, q, k, v, sinks, bias, constant_bias, mask, seed, out, lse, scale, left, right, softcap, p, *, config
):
    (b, t, h, _), s = q.shape, k.shape[1]
    added = bias if constant_bias is None else constant_bias
    added = added if added is None else added.expand(b, h, t, s)
    x = Problem(q, k, v, (sinks, added, mask, seed, scale, left, right, softcap, p))
    dq, dk, dv, dsinks, (dout, lse2, delta) = _backward_of(x, dout, dlse, out, lse, config)
    dbias = q.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    if bias is not None:
        tile = _tile_of(config, "dq")
        b1, h1 = bias.shape[:2]
        launch(_bias, (cdiv(t, tile["BLOCK_M"]) * cdiv(s, tile["BLOCK_N"]) * b1 * h1,), dout, lse2, delta, dbias, b1, h1, *x.strides(dout),
               *x.inputs(), *x.common, **x.flags, **tile)  # fmt: skip
    return dq, dk, dv, dsinks, dbias


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, seed, max_seqlen_q, max_seqlen_k, scale, left, right, softcap, p, *, config
):
    ragged = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), max_seqlen_q, max_seqlen_k)
    return _forward_of(Problem(q, k, v, (sinks, None, None, seed, scale, left, right, softcap, p), ragged), config)


def attention_varlen_backward(dout, dlse, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, seed, out, lse, max_seqlen_q, max_seqlen_k, scale, left, right,
                              softcap, p, *, config):  # fmt: skip
    ragged = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), max_seqlen_q, max_seqlen_k)
    problem = Problem(q, k, v, (sinks, None, None, seed, scale, left, right, softcap, p), ragged)
    return _backward_of(problem, dout, dlse, out, lse, config)[:4]


# ---- who takes what ----------------------------------------------------------------------------------------------------------


def _tile(m, n, warps, stages):
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def _tiles(dq, dkv):
    return {f"{name}_{x}": value for name, tile in (("dq", dq), ("dkv", dkv)) for x, value in zip(("m", "n", "warps", "stages"), tile)}


FORWARD = (
    _tile(64, 64, 4, 3),
    _tile(128, 64, 8, 3),
    _tile(128, 64, 8, 2),
    _tile(128, 32, 8, 2),
    _tile(64, 32, 4, 2),
    _tile(32, 32, 8, 1),
    _tile(16, 32, 8, 1),
)
BACKWARD = (
    _tiles((64, 64, 4, 3), (32, 64, 8, 2)),
    _tiles((64, 64, 8, 2), (32, 64, 8, 2)),
    _tiles((64, 32, 8, 2), (16, 64, 8, 2)),
    _tiles((32, 32, 8, 1), (16, 32, 8, 1)),
    _tiles((32, 32, 8, 1), (32, 32, 8, 1)),
    _tiles((16, 16, 8, 1), (16, 16, 8, 1)),
)
# On sm_90 what bench cases launch spills nothing. A mask or bias whose rows lie on no multiple of 16 bytes is loaded by the element, with an address each.
SPILLS = Limits(spill_bytes=64, spill_bytes_elsewhere=256)


def _by_width(configs, narrow, wide, widest, beside, widest_beside, float32, widest_float32):
    """Which config: by the wider of D and Dv, by whether a bias, a mask or random words want registers beside a tile of scores; in float32 a
    product holds whole rows of both factors."""

    def pick(call):
        d = max(call["q"].shape[-1], call["v"].shape[-1])
        more = any(call.get(n) is not None for n in ("bias", "constant_bias", "mask", "seed"))
        if call["q"].dtype == torch.float32:
            return configs[widest_float32 if d > 128 else float32]
        if d > 128:
            return configs[widest_beside if more else widest]
        return configs[wide if d > 64 else beside if more else narrow]

    return pick


def _refuse(call):
    q, dv = call["q"], call["v"].shape[-1]
    if not 0 < q.shape[-1] <= 256 or not 0 < dv <= 256:
        return f"D={q.shape[-1]} and values of {dv}: it takes 1 to 256"
    return off_gpu(q)


def _one(run, idea, configs, *picked):
    return (Kernel("triton", run, idea, _refuse, configs, _by_width(configs, *picked), SPILLS),)


KERNELS = _one(attention_options, "every option, each a constexpr", FORWARD, 0, 1, 3, 0, 4, 5, 6)
KERNELS_BACKWARD = _one(
    attention_options_backward, "dq, then dk and dv, then dsinks and the bias's: no atomics", BACKWARD, 0, 1, 2, 1, 3, 4, 5
)
VARLEN = _one(attention_varlen, "a program finds its sequence by its offsets", FORWARD, 0, 1, 3, 0, 4, 5, 6)
VARLEN_BACKWARD = _one(attention_varlen_backward, "the same: dq, then dk and dv, then dsinks", BACKWARD, 0, 1, 2, 1, 3, 4, 5)
