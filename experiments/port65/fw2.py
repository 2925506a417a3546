"""softmax(q kᵀ scale) v without the [T S] matrix. Floor: 4 D operations a visible pair forward, 10 D backward; the tensors pass once.

Forward: a program owns BLOCK_M queries and walks the keys with a running maximum and sum. Key tiles that every query of the
program sees run in a loop without masks; the few on the diagonal and at the ragged end follow in a second one, with them.

Backward: two kernels and no atomics, so the same bits every time, at 14 D operations a pair instead of 10 D: scores are made twice.
`_queries` owns queries and makes dq; it has dout and out in hand anyway, so it also leaves delta = rowsum(out dout) and lse to
base 2. `_keys` owns keys and makes dk and dv on transposed scores, so that p and ds are first factors and never leave the registers.

Programs of one head are neighbours (their K and V stay in the L2) and, causal, the longest of them starts first. GROUP heads read one key head:
`_keys` walks the queries of them all, so dk and dv are summed in registers.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.architecture import architecture
from rooftile.ops._shared.launch import cdiv, launch, launch_described, off_gpu
from rooftile.ops.attention.triton_tiles import LOG2E, backward_tiles, dense, forward_tile, head_row, load_tile, store_tile, widths


@triton.jit
def _keys_at(gX, stride_s, i_b, i_g, start, i_n, S, TMA: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
             BLOCK_D: tl.constexpr):  # fmt: skip
    """The tile of keys from `start` on: by a descriptor of all heads, zeros past the last, or from the row that gX points to."""
    if TMA:
        rX = gX.load([i_b, start, i_g, 0]).reshape(BLOCK, BLOCK_D)
    else:
        rX = load_tile(gX, stride_s, i_n, S, MASKED, D, BLOCK, BLOCK_D)
    return rX


@triton.jit
def _attend(rAcc, rSum, rMax, rQ, gK, gV, stride_ks, stride_vs, i_b, i_g, first, last, whole, i_m, S, shift, scale_log2,
            TMA: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr,
            BLOCK_DV: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, last, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rK = _keys_at(gK, stride_ks, i_b, i_g, start, i_n, S, TMA, MASKED, D, BLOCK_N, BLOCK_D)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        if MASKED:
            if not TMA or start >= whole:
                seen = i_n[None, :] < S
                if CAUSAL:
                    seen = seen & (i_n[None, :] <= i_m[:, None] + shift)
                rS = tl.where(seen, rS, float("-inf"))
        new = tl.maximum(rMax, tl.max(rS, 1) * scale_log2)
        base = new
        if MASKED:
            base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf: a row that has seen nothing yet
        rP = tl.exp2(rS * scale_log2 - base[:, None])
        shrink = tl.exp2(rMax - base)
        rSum = rSum * shrink + tl.sum(rP, 1)
        rAcc = rAcc * shrink[:, None]
        rV = _keys_at(gV, stride_vs, i_b, i_g, start, i_n, S, TMA, MASKED, DV, BLOCK_N, BLOCK_DV)
        rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc, input_precision="ieee")
        rMax = new
        if not TMA:
            gK += tl.full([], BLOCK_N, tl.int64) * stride_ks
            gV += tl.full([], BLOCK_N, tl.int64) * stride_vs
    return rAcc, rSum, rMax, gK, gV


@triton.jit
def _visible(i_tile, T, S, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(end of the key tiles that every query of this tile sees whole, end of the keys that any of them sees)."""
    if CAUSAL:
        every = min(max(i_tile * BLOCK_M + S - T + 1, 0), S)
        some = min(max((i_tile + 1) * BLOCK_M + S - T, 0), S)
    else:
        every = S
        some = S
    return every // BLOCK_N * BLOCK_N, some


@triton.jit
def seeing(first, T, S, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Of the tile of keys from `first` on: where the queries begin that see any of them, and where those do that see them all, in whole tiles."""
    if CAUSAL:
        some = min(max(first - (S - T), 0), T) // BLOCK_M * BLOCK_M
        every = tl.cdiv(min(max(first + BLOCK_N - 1 - (S - T), 0), T), BLOCK_M) * BLOCK_M
    else:
        some = 0
        every = 0
    return some, every


@triton.jit
def _forward(gQ, gK, gV, gOut, gLse, H, T, S, scale_log2, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh,
             stride_vb, stride_vs, stride_vh, TMA: tl.constexpr, EVEN_S: tl.constexpr, CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
             BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, RCP: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(T, BLOCK_M)
    i_tile = tl.program_id(0) % tiles
    if CAUSAL:
        i_tile = tiles - 1 - i_tile
    i_bh = tl.program_id(0) // tiles
    i_b, i_h = i_bh // H, i_bh % H
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    rQ = load_tile(head_row(gQ, i_b, i_h, i_tile * BLOCK_M, stride_qb, stride_qt, stride_qh), stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
    if not TMA:
        gK = head_row(gK, i_b, i_h // GROUP, 0, stride_kb, stride_ks, stride_kh)
        gV = head_row(gV, i_b, i_h // GROUP, 0, stride_vb, stride_vs, stride_vh)
    rMax = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rSum = tl.zeros([BLOCK_M], tl.float32)
    rAcc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    whole, end = _visible(i_tile, T, S, CAUSAL, BLOCK_M, BLOCK_N)
    if TMA:  # in one loop, which fills its pipeline once
        rAcc, rSum, rMax, gK, gV = _attend(rAcc, rSum, rMax, rQ, gK, gV, stride_ks, stride_vs, i_b, i_h // GROUP, 0, end, whole, i_m, S, S - T,
                                               scale_log2, TMA, CAUSAL or not EVEN_S, CAUSAL, D, BLOCK_D, DV, BLOCK_DV, BLOCK_N)  # fmt: skip
    else:
        rAcc, rSum, rMax, gK, gV = _attend(rAcc, rSum, rMax, rQ, gK, gV, stride_ks, stride_vs, i_b, i_h // GROUP, 0, whole, whole, i_m, S, S - T,
                                               scale_log2, TMA, False, CAUSAL, D, BLOCK_D, DV, BLOCK_DV, BLOCK_N)  # fmt: skip
        rAcc, rSum, rMax, gK, gV = _attend(rAcc, rSum, rMax, rQ, gK, gV, stride_ks, stride_vs, i_b, i_h // GROUP, whole, end, whole, i_m, S, S - T,
                                               scale_log2, TMA, True, CAUSAL, D, BLOCK_D, DV, BLOCK_DV, BLOCK_N)  # fmt: skip
    if RCP:
        rOut = rAcc * (1.0 / tl.where(rSum == 0.0, 1.0, rSum))[:, None]
    else:
        rOut = rAcc / tl.where(rSum == 0.0, 1.0, rSum)[:, None]  # a row that sees nothing is zero
    store_tile(gOut, rOut, i_b, i_h, i_tile * BLOCK_M, i_m, T, H, DV, BLOCK_M, BLOCK_DV)
    rLse = (rMax + tl.log2(rSum)) * 0.6931471805599453  # ln 2
    tl.store(gLse + i_bh.to(tl.int64) * T + i_m, rLse, mask=i_m < T)


@triton.jit
def _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, stride_ks, stride_vs, first, last, i_m, S, shift, scale_log2,
                MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr,
                BLOCK_N: tl.constexpr):  # fmt: skip
    for start in range(first, last, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rK = load_tile(gK, stride_ks, i_n, S, MASKED, D, BLOCK_N, BLOCK_D)
        rV = load_tile(gV, stride_vs, i_n, S, MASKED, DV, BLOCK_N, BLOCK_DV)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee")
        rDp = tl.dot(rDout, tl.trans(rV), input_precision="ieee")
        rP = tl.exp2(rS * scale_log2 - rLse[:, None])
        if MASKED:  # keys past the end too: their score is 0, and exp(0 - lse) may be infinite
            seen = i_n[None, :] < S
            if CAUSAL:
                seen = seen & (i_n[None, :] <= i_m[:, None] + shift)
            rP = tl.where(seen, rP, 0.0)
        rDs = rP * (rDp - rDelta[:, None])
        rDq = tl.dot(rDs.to(rK.dtype), rK, rDq, input_precision="ieee")
        gK += tl.full([], BLOCK_N, tl.int64) * stride_ks
        gV += tl.full([], BLOCK_N, tl.int64) * stride_vs
    return rDq, gK, gV


@triton.jit
def _queries(gDout, gQ, gK, gV, gOut, gLse, gLse2, gDelta, gDq, H, T, S, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb,
             stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_ob, stride_ot, stride_oh,
             CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(T, BLOCK_M)
    i_tile = tl.program_id(0) % tiles
    if CAUSAL:
        i_tile = tiles - 1 - i_tile
    i_bh = tl.program_id(0) // tiles
    i_b, i_h = i_bh // H, i_bh % H
    first = i_tile * BLOCK_M
    i_m = first + tl.arange(0, BLOCK_M)
    rDout = load_tile(head_row(gDout, i_b, i_h, first, stride_gb, stride_gt, stride_gh), stride_gt, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
    rOut = load_tile(head_row(gOut, i_b, i_h, first, stride_ob, stride_ot, stride_oh), stride_ot, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
    rDelta = tl.sum(rOut.to(tl.float32) * rDout.to(tl.float32), 1)
    tl.store(gDelta + i_bh.to(tl.int64) * tiles * BLOCK_M + i_m, rDelta)  # whole tiles: `_keys` then reads without a mask
    rQ = load_tile(head_row(gQ, i_b, i_h, first, stride_qb, stride_qt, stride_qh), stride_qt, i_m, T, True, D, BLOCK_M, BLOCK_D)
    rLse = tl.load(gLse + i_bh.to(tl.int64) * T + i_m, mask=i_m < T, other=float("inf")) * 1.4426950408889634  # log2 e
    tl.store(gLse2 + i_bh.to(tl.int64) * tiles * BLOCK_M + i_m, rLse)
    gK = head_row(gK, i_b, i_h // GROUP, 0, stride_kb, stride_ks, stride_kh)
    gV = head_row(gV, i_b, i_h // GROUP, 0, stride_vb, stride_vs, stride_vh)
    rDq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    whole, end = _visible(i_tile, T, S, CAUSAL, BLOCK_M, BLOCK_N)
    rDq, gK, gV = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, stride_ks, stride_vs, 0, whole, i_m, S, S - T, scale_log2,
                                  False, CAUSAL, D, BLOCK_D, DV, BLOCK_DV, BLOCK_N)  # fmt: skip
    rDq, gK, gV = _queries_of(rDq, rQ, rDout, rLse, rDelta, gK, gV, stride_ks, stride_vs, whole, end, i_m, S, S - T, scale_log2,
                                  True, CAUSAL, D, BLOCK_D, DV, BLOCK_DV, BLOCK_N)  # fmt: skip
    store_tile(gDq, rDq * scale, i_b, i_h, first, i_m, T, H, D, BLOCK_M, BLOCK_D)


@triton.jit
def _keys_of(rDk, rDv, rK, rV, gQ, gDout, gLse2, gDelta, stride_qt, stride_gt, first, last, i_n, T, shift, scale_log2,
             MASKED: tl.constexpr, EVEN_T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr,
             BLOCK_M: tl.constexpr):  # fmt: skip
    for start in range(first, last, BLOCK_M):
        i_m = start + tl.arange(0, BLOCK_M)
        rQ = load_tile(gQ, stride_qt, i_m, T, not EVEN_T, D, BLOCK_M, BLOCK_D)
        rDout = load_tile(gDout, stride_gt, i_m, T, not EVEN_T, DV, BLOCK_M, BLOCK_DV)
        rLse = tl.load(gLse2 + i_m)  # inf past the last query: exp2(s - inf), no weight
        rDelta = tl.load(gDelta + i_m)
        rS = tl.dot(rK, tl.trans(rQ), input_precision="ieee")
        rDp = tl.dot(rV, tl.trans(rDout), input_precision="ieee")
        rP = tl.exp2(rS * scale_log2 - rLse[None, :])
        if MASKED:
            rP = tl.where(i_n[:, None] <= i_m[None, :] + shift, rP, 0.0)
        rDv = tl.dot(rP.to(rDout.dtype), rDout, rDv, input_precision="ieee")
        rDs = rP * (rDp - rDelta[None, :])
        rDk = tl.dot(rDs.to(rQ.dtype), rQ, rDk, input_precision="ieee")
        gQ += tl.full([], BLOCK_M, tl.int64) * stride_qt
        gDout += tl.full([], BLOCK_M, tl.int64) * stride_gt
    return rDk, rDv, gQ, gDout


@triton.jit
def _keys(gDout, gQ, gK, gV, gLse2, gDelta, gDk, gDv, G, T, S, padded, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb, stride_qt,
          stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr, GROUP: tl.constexpr,
          D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, EVEN_T: tl.constexpr, BLOCK_M: tl.constexpr,
          BLOCK_N: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(S, BLOCK_N)
    i_tile = tl.program_id(0) % tiles  # causal: the first keys are seen by the most queries, so this is longest first
    i_bg = tl.program_id(0) // tiles
    i_b, i_g = i_bg // G, i_bg % G
    first = i_tile * BLOCK_N
    i_n = first + tl.arange(0, BLOCK_N)
    rK = load_tile(head_row(gK, i_b, i_g, first, stride_kb, stride_ks, stride_kh), stride_ks, i_n, S, True, D, BLOCK_N, BLOCK_D)
    rV = load_tile(head_row(gV, i_b, i_g, first, stride_vb, stride_vs, stride_vh), stride_vs, i_n, S, True, DV, BLOCK_N, BLOCK_DV)
    rDk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    rDv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    some, every = seeing(first, T, S, CAUSAL, BLOCK_M, BLOCK_N)
    for r in range(GROUP):
        i_h = i_g * GROUP + r
        gQr = head_row(gQ, i_b, i_h, some, stride_qb, stride_qt, stride_qh)
        gDoutr = head_row(gDout, i_b, i_h, some, stride_gb, stride_gt, stride_gh)
        gLse2r = gLse2 + (i_bg * GROUP + r).to(tl.int64) * padded
        gDeltar = gDelta + (i_bg * GROUP + r).to(tl.int64) * padded
        if CAUSAL:
            rDk, rDv, gQr, gDoutr = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2r, gDeltar, stride_qt, stride_gt, some, min(every, T), i_n,
                                             T, S - T, scale_log2, True, EVEN_T, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M)  # fmt: skip
        rDk, rDv, gQr, gDoutr = _keys_of(rDk, rDv, rK, rV, gQr, gDoutr, gLse2r, gDeltar, stride_qt, stride_gt, every, T, i_n,
                                         T, S - T, scale_log2, False, EVEN_T, D, BLOCK_D, DV, BLOCK_DV, BLOCK_M)  # fmt: skip
    store_tile(gDk, rDk * scale, i_b, i_g, first, i_n, S, G, D, BLOCK_N, BLOCK_D)
    store_tile(gDv, rDv, i_b, i_g, first, i_n, S, G, DV, BLOCK_N, BLOCK_DV)


TMA_OPERATIONS = 0  # of a call whose keys come by TMA: 80 us of an H200, twice what encoding the descriptors takes a host


def by_tma(q, k, v):
    """Whether Hopper's copy engine brings keys and values: whole lines of tiles, whose rows begin where it can read, for work that outlasts the launch."""
    (b, t, h, d), (_, s, _, dv) = q.shape, v.shape
    return (
        architecture(q) == 90
        and d == dv and d in (64, 128)
        and 4 * b * h * t * s * d >= TMA_OPERATIONS
        and all(x.data_ptr() % 16 == 0 and not any(n % 8 for n in x.stride()[:3]) for x in (k, v))
    )


def attention(q, k, v, causal, scale, *, RCP=0, **config):
    q, k, v = dense(q), dense(k), dense(v)
    (b, t, h, d), (_, s, g, dv) = q.shape, v.shape
    out = q.new_empty(b, t, h, dv)
    lse = q.new_empty(b, h, t, dtype=torch.float32)
    tma, n = by_tma(q, k, v), config["BLOCK_N"]
    start, keys, values = launch, k, v
    if tma:
        start, (keys, values) = launch_described, (TensorDescriptor(x, list(x.shape), list(x.stride()), [1, n, 1, x.shape[-1]]) for x in (k, v))
    start(_forward, (cdiv(t, config["BLOCK_M"]) * b * h,), q, keys, values, out, lse, h, t, s, scale * LOG2E, *q.stride()[:3], *k.stride()[:3],
          *v.stride()[:3], TMA=tma, EVEN_S=tma and s % n == 0, CAUSAL=causal, GROUP=h // max(1, g), **widths(d, dv), **config, RCP=RCP)  # fmt: skip
    return out, lse


def attention_backward(dout, q, k, v, out, lse, causal, scale, *, config):
    dout, q, k, v, out, lse = *map(dense, (dout, q, k, v, out)), lse.contiguous()
    (b, t, h, d), (_, s, g, dv) = q.shape, v.shape
    dq, dk, dv_ = (x.new_empty(x.shape) for x in (q, k, v))
    both = {"CAUSAL": causal, "GROUP": h // max(1, g), **widths(d, dv)}
    m, n, warps, stages = (config[f"dq_{x}"] for x in ("m", "n", "warps", "stages"))
    padded = cdiv(t, m) * m  # a multiple of every dkv_m, so that the last tile of queries reads what was written
    lse2, delta = (q.new_empty(b, h, padded, dtype=torch.float32) for _ in range(2))
    launch(_queries, (cdiv(t, m) * b * h,), dout, q, k, v, out, lse, lse2, delta, dq, h, t, s, scale, scale * LOG2E, *dout.stride()[:3],
           *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], **both, BLOCK_M=m, BLOCK_N=n,
           num_warps=warps, num_stages=stages)  # fmt: skip
    m, n, warps, stages = (config[f"dkv_{x}"] for x in ("m", "n", "warps", "stages"))
    launch(_keys, (cdiv(s, n) * b * g,), dout, q, k, v, lse2, delta, dk, dv_, g, t, s, padded, scale, scale * LOG2E, *dout.stride()[:3],
           *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], **both, EVEN_T=t % m == 0, BLOCK_M=m, BLOCK_N=n,
           num_warps=warps, num_stages=stages)  # fmt: skip
    return dq, dk, dv_


FORWARD = (  # D <= 64
    forward_tile(64, 64, 4, 3),
    forward_tile(128, 64, 4, 3),
    forward_tile(128, 128, 8, 2),
    forward_tile(128, 64, 8, 3),
    forward_tile(128, 32, 4, 4),
)
FORWARD_WIDE = (  # D <= 128
    forward_tile(64, 64, 4, 3),
    forward_tile(128, 128, 8, 2),
    forward_tile(128, 64, 8, 3),
    forward_tile(128, 64, 8, 2),
)
BACKWARD = (
    backward_tiles((64, 64, 4, 3), (32, 64, 4, 3)),
    backward_tiles((64, 64, 4, 3), (64, 64, 4, 2)),
    backward_tiles((128, 64, 8, 2), (64, 128, 8, 2)),
    backward_tiles((128, 128, 8, 2), (64, 128, 8, 3)),
    backward_tiles((64, 128, 4, 2), (32, 128, 8, 3)),
)
BACKWARD_WIDE = (
    backward_tiles((128, 64, 8, 2), (32, 128, 8, 2)),
    backward_tiles((64, 64, 4, 2), (16, 64, 4, 2)),
    backward_tiles((128, 32, 8, 2), (32, 64, 8, 2)),
    backward_tiles((128, 32, 8, 2), (32, 128, 8, 3)),
)
FORWARD_WIDEST = (  # D <= 256
    forward_tile(128, 64, 8, 2),
    forward_tile(128, 32, 8, 2),
    forward_tile(64, 64, 4, 2),
    forward_tile(64, 32, 4, 2),
)
BACKWARD_WIDEST = (
    backward_tiles((128, 32, 8, 2), (32, 64, 8, 3)),
    backward_tiles((64, 32, 8, 2), (16, 64, 8, 2)),
    backward_tiles((128, 32, 8, 1), (32, 64, 8, 2)),
    backward_tiles((64, 32, 8, 1), (16, 64, 8, 1)),  # for blocks of 99 KiB
)
FORWARD_32 = (forward_tile(32, 32, 8, 1), forward_tile(16, 32, 8, 1))
BACKWARD_32 = (backward_tiles((32, 32, 8, 1), (32, 32, 8, 1)), backward_tiles((16, 16, 8, 1), (16, 16, 8, 1)))
# sm_90 spills nothing under Triton 3.6 and 3.8, but for the widest heads. sm_80, whose products take their factors from registers, up to 112; sm_100 up to 32.
SPILLS = Limits(spill_bytes_elsewhere=128)
# D = 256, causal: 48 registers of the kernel for dk and dv. What 227 KiB hold is 1.5 and 2 times as fast as what 163 do, as it is.
SPILLS_WIDEST = Limits(spill_bytes=192, spill_bytes_elsewhere=264, shared_bytes=227 * 1024)
# A fused multiply-add product keeps whole rows of both factors in registers: at D = 128, q and dout alone fill them.
SPILLS_32 = Limits(spill_bytes=512)


def _widest(call):
    return max(call["q"].shape[-1], call["v"].shape[-1])


def _refuse(floats, low, high):
    def refuse(call):
        q, d = call["q"], _widest(call)
        if (q.dtype == torch.float32) != floats:
            return "16-bit tensors are for the tensor cores of the other kernels" if floats else "float32 is for triton.float32"
        if not 0 < d <= 256 or q.shape[-1] == 0:
            return f"D={q.shape[-1]} and values of {call['v'].shape[-1]}: it takes 1 to 256"
        if not low < d <= high:
            return f"D={d} is for {'triton' if d <= 64 else 'triton.wide' if d <= 128 else 'triton.widest'}"
        if not call["scale"] > 0:
            return f"scale={call['scale']} is not positive, and the running maximum is taken before scaling"
        return off_gpu(q)

    return refuse


def _ladder(run, ideas, narrow, wide, widest, in_float32):
    return (
        Kernel("triton", run, ideas[0], _refuse(False, 0, 64), narrow, limits=SPILLS),
        Kernel("triton.wide", run, "the same for 64 < D <= 128", _refuse(False, 64, 128), wide, limits=SPILLS),
        Kernel("triton.widest", run, "the same for 128 < D <= 256", _refuse(False, 128, 256), widest, limits=SPILLS_WIDEST),
        Kernel("triton.float32", run, ideas[1], _refuse(True, 0, 256), in_float32, lambda call: in_float32[_widest(call) > 128], SPILLS_32),
    )


IEEE = "true float32: fused multiply-adds, no tf32"
KERNELS = _ladder(attention, ("running softmax; whole tiles without masks, longest program first", IEEE),
                  FORWARD, FORWARD_WIDE, FORWARD_WIDEST, FORWARD_32)  # fmt: skip
KERNELS_BACKWARD = _ladder(attention_backward, ("dq, then dk and dv: seven products, no atomics", IEEE),
                           BACKWARD, BACKWARD_WIDE, BACKWARD_WIDEST, BACKWARD_32)  # fmt: skip
