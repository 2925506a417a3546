"""The gradient with scores made once, in Triton. Floor: 10 D operations a visible pair, and of dq's sums D more additions for each tile of keys.

A program owns BLOCK_N keys and walks the queries that see them, as `triton_kernels._keys` does; what each tile of queries gets from these keys it adds to dq
in float32: five products where the two kernels without atomics make seven. Both products of scores come before the exponential, so that the multiprocessor's
warps stop for the tensor cores twice a tile and not three times; dq is made and kept transposed, [D, T], as then no factor of it passes through registers.
The addition is TMA's (BULK) where there is one, of a whole tile while the next is under way, or else an atomic an element. A launch before it leaves delta
and lse to base 2, one after it rounds dq; both go from the last head to the first, so that what one launch leaves in the L2 the next finds there.

Causal, the first keys are seen by the most queries. Programs run through GROUPS of heads, in a group by tiles of keys: longest first, and few heads at a time, whose
sums the L2 holds.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from rooftile.ops._shared.architecture import architecture
from rooftile.ops._shared.launch import INTERPRETED, cdiv, launch, launch_described, resident
from rooftile.ops.attention.triton_kernels import _refuse, seeing
from rooftile.ops.attention.triton_tiles import LOG2E, dense, head_row, load_tile, store_tile, tile_at, widths


@triton.jit
def _sums(gDout, gOut, gLse, gLse2, gDelta, H, T, stride_gb, stride_gt, stride_gh, stride_ob, stride_ot, stride_oh, DV: tl.constexpr,
          BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(T, BLOCK_M)
    first = tl.program_id(0) % tiles * BLOCK_M
    i_bh = tl.num_programs(0) // tiles - 1 - tl.program_id(0) // tiles
    i_b, i_h = i_bh // H, i_bh % H
    i_m = first + tl.arange(0, BLOCK_M)
    rDout = load_tile(head_row(gDout, i_b, i_h, first, stride_gb, stride_gt, stride_gh), stride_gt, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
    rOut = load_tile(head_row(gOut, i_b, i_h, first, stride_ob, stride_ot, stride_oh), stride_ot, i_m, T, True, DV, BLOCK_M, BLOCK_DV)
    rLse = tl.load(gLse + i_bh.to(tl.int64) * T + i_m, mask=i_m < T, other=float("inf"))
    at = i_bh.to(tl.int64) * tiles * BLOCK_M + i_m  # whole tiles: they are read without a mask
    tl.store(gDelta + at, tl.sum(rOut.to(tl.float32) * rDout.to(tl.float32), 1))
    tl.store(gLse2 + at, rLse * 1.4426950408889634)  # log2 e


@triton.jit
def _rounded(gSum, gDq, H, T, padded, scale, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    tiles = tl.cdiv(T, BLOCK_M)
    first = tl.program_id(0) % tiles * BLOCK_M
    i_bh = tl.num_programs(0) // tiles - 1 - tl.program_id(0) // tiles
    rSum = tl.load(tile_at(gSum + i_bh.to(tl.int64) * BLOCK_D * padded + first, padded, BLOCK_D, BLOCK_M))
    store_tile(gDq, tl.trans(rSum) * scale, i_bh // H, i_bh % H, first, first + tl.arange(0, BLOCK_M), T, H, D, BLOCK_M, BLOCK_D)


@triton.jit
def _place(i, tiles, BASE, EXTRA, CAUSAL: tl.constexpr):
    """(tile of keys, head) of the i-th program: EXTRA groups of BASE + 1 heads, then groups of BASE; in a group by tiles."""
    if CAUSAL:
        large = EXTRA * (BASE + 1)
        together = tl.where(i // tiles < large, BASE + 1, BASE)
        skipped = tl.where(i // tiles < large, 0, large)
        i_head = skipped + (i // tiles - skipped) // together * together
        at = i - i_head * tiles
        i_tile = at // together
        i_bh = i_head + at % together
    else:
        i_tile = i % tiles
        i_bh = i // tiles
    return i_tile, i_bh


@triton.jit
def _ask(gX, stride_t, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """Rows of 256 bytes into the L2."""
    if HOW == 1:
        at = gX + tl.arange(0, 2 * BLOCK) // 2 * stride_t + tl.arange(0, 2 * BLOCK) % 2 * 64
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)
    else:
        at = gX + tl.arange(0, BLOCK) * stride_t
        tl.inline_asm_elementwise("cp.async.bulk.prefetch.L2.global [$1], 256; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _pass(gDout, gQ, gK, gV, gLse2, gDelta, gSum, gDk, gDv, dDk, dDv, BASE, EXTRA, NEXT, GROUPS, H, T, S, padded, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb,
          stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr,
          BULK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, EVEN_T: tl.constexpr,
          EVEN_S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ORDER: tl.constexpr, INDEX: tl.constexpr, PF: tl.constexpr, PQ: tl.constexpr, ST: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(S, BLOCK_N)
    if INDEX:
        i_tile, i_bh = _place(tl.program_id(0), tiles, BASE, EXTRA, CAUSAL)
    else:
        heads = tl.num_programs(0) // tiles
        i_group = (tl.program_id(0) // tiles).to(tl.int64) * GROUPS // heads
        i_head = tl.cdiv(i_group * heads, GROUPS).to(tl.int32)
        together = tl.cdiv((i_group + 1) * heads, GROUPS).to(tl.int32) - i_head
        i_tile = (tl.program_id(0) - i_head * tiles) // together
        i_bh = i_head + (tl.program_id(0) - i_head * tiles) % together
    i_b, i_h = i_bh // H, i_bh % H
    first = i_tile * BLOCK_N
    i_n = first + tl.arange(0, BLOCK_N)
    rK = load_tile(head_row(gK, i_b, i_h, first, stride_kb, stride_ks, stride_kh), stride_ks, i_n, S, not EVEN_S, D, BLOCK_N, BLOCK_D)
    rV = load_tile(head_row(gV, i_b, i_h, first, stride_vb, stride_vs, stride_vh), stride_vs, i_n, S, not EVEN_S, DV, BLOCK_N, BLOCK_DV)
    if PQ:
        f_m = 0
        if CAUSAL:
            f_m = first
        _ask(head_row(gQ, i_b, i_h, f_m, stride_qb, stride_qt, stride_qh), stride_qt, 2 * BLOCK_M, PQ)
        _ask(head_row(gDout, i_b, i_h, f_m, stride_gb, stride_gt, stride_gh), stride_gt, 2 * BLOCK_M, PQ)
    if PF:
        n_tile, n_bh = _place(min(tl.program_id(0) + NEXT, tl.num_programs(0) - 1), tiles, BASE, EXTRA, CAUSAL)
        _ask(head_row(gK, n_bh // H, n_bh % H, n_tile * BLOCK_N, stride_kb, stride_ks, stride_kh), stride_ks, BLOCK_N, PF)
        _ask(head_row(gV, n_bh // H, n_bh % H, n_tile * BLOCK_N, stride_vb, stride_vs, stride_vh), stride_vs, BLOCK_N, PF)
    rDk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    rDv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    some, every = seeing(first, T, S, CAUSAL, BLOCK_M, BLOCK_N)
    gQ = head_row(gQ, i_b, i_h, 0, stride_qb, stride_qt, stride_qh)
    gDout = head_row(gDout, i_b, i_h, 0, stride_gb, stride_gt, stride_gh)
    gLse2 += i_bh.to(tl.int64) * padded
    gDelta += i_bh.to(tl.int64) * padded
    for start in range(some, T, BLOCK_M):
        i_m = start + tl.arange(0, BLOCK_M)
        rQ = load_tile(gQ + tl.cast(start, tl.int64) * stride_qt, stride_qt, i_m, T, not EVEN_T, D, BLOCK_M, BLOCK_D)
        rDout = load_tile(gDout + tl.cast(start, tl.int64) * stride_gt, stride_gt, i_m, T, not EVEN_T, DV, BLOCK_M, BLOCK_DV)
        rS = tl.dot(rK, tl.trans(rQ))
        rDp = tl.dot(rV, tl.trans(rDout))
        rLse = tl.load(gLse2 + i_m)  # inf past the last query: exp2(s - inf), no weight
        if EARLY:
            rDelta = tl.load(gDelta + i_m)
        rP = tl.exp2(rS * scale_log2 - rLse[None, :])
        if CAUSAL and not BULK:  # a branch costs sm_80 half its registers
            rP = tl.where(i_n[:, None] <= i_m[None, :] + (S - T), rP, 0.0)
        elif CAUSAL:
            if start < every:
                rP = tl.where(i_n[:, None] <= i_m[None, :] + (S - T), rP, 0.0)
        if not EVEN_S:  # their score is 0, and exp(0 - lse) may be infinite
            rP = tl.where(i_n[:, None] < S, rP, 0.0)
        rDv = tl.dot(rP.to(rDout.dtype), rDout, rDv)
        if not EARLY:
            rDelta = tl.load(gDelta + i_m)
        rDs = (rP * (rDp - rDelta[None, :])).to(rQ.dtype)
        if ORDER == 0:
            rDk = tl.dot(rDs, rQ, rDk)
        rDq = tl.dot(tl.trans(rK), rDs)
        if ORDER == 1:
            rDk = tl.dot(rDs, rQ, rDk)
        if BULK:
            gSum.atomic_add([i_bh * BLOCK_D, start], rDq)
        else:
            tl.atomic_add(tile_at(gSum + i_bh.to(tl.int64) * BLOCK_D * padded + start, padded, BLOCK_D, BLOCK_M), rDq, sem="relaxed")
        if ORDER == 2:
            rDk = tl.dot(rDs, rQ, rDk)
    if ST:
        dDv.store([i_b, first, i_h, 0], rDv.to(gDv.dtype.element_ty).reshape(1, BLOCK_N, 1, BLOCK_DV))
        dDk.store([i_b, first, i_h, 0], (rDk * scale).to(gDk.dtype.element_ty).reshape(1, BLOCK_N, 1, BLOCK_D))
    else:
        store_tile(gDk, rDk * scale, i_b, i_h, first, i_n, S, H, D, BLOCK_N, BLOCK_D)
        store_tile(gDv, rDv, i_b, i_h, first, i_n, S, H, DV, BLOCK_N, BLOCK_DV)


@triton.jit
def _tile_of_keys(i, total, nxt, gDout, gQ, gK, gV, gLse2, gDelta, gSum, gDk, gDv, dDk, dDv, BASE, EXTRA, NEXT, GROUPS, H, T, S, padded, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb,
          stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr,
          BULK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, EVEN_T: tl.constexpr,
          EVEN_S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ORDER: tl.constexpr, INDEX: tl.constexpr, PF: tl.constexpr, PQ: tl.constexpr, ST: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    tiles = tl.cdiv(S, BLOCK_N)
    if INDEX:
        i_tile, i_bh = _place(i, tiles, BASE, EXTRA, CAUSAL)
    else:
        heads = total // tiles
        i_group = (i // tiles).to(tl.int64) * GROUPS // heads
        i_head = tl.cdiv(i_group * heads, GROUPS).to(tl.int32)
        together = tl.cdiv((i_group + 1) * heads, GROUPS).to(tl.int32) - i_head
        i_tile = (i - i_head * tiles) // together
        i_bh = i_head + (i - i_head * tiles) % together
    i_b, i_h = i_bh // H, i_bh % H
    first = i_tile * BLOCK_N
    i_n = first + tl.arange(0, BLOCK_N)
    rK = load_tile(head_row(gK, i_b, i_h, first, stride_kb, stride_ks, stride_kh), stride_ks, i_n, S, not EVEN_S, D, BLOCK_N, BLOCK_D)
    rV = load_tile(head_row(gV, i_b, i_h, first, stride_vb, stride_vs, stride_vh), stride_vs, i_n, S, not EVEN_S, DV, BLOCK_N, BLOCK_DV)
    if PQ:
        f_m = 0
        if CAUSAL:
            f_m = first
        _ask(head_row(gQ, i_b, i_h, f_m, stride_qb, stride_qt, stride_qh), stride_qt, 2 * BLOCK_M, PQ)
        _ask(head_row(gDout, i_b, i_h, f_m, stride_gb, stride_gt, stride_gh), stride_gt, 2 * BLOCK_M, PQ)
    if PF:
        n_tile, n_bh = _place(min(nxt, total - 1), tiles, BASE, EXTRA, CAUSAL)
        _ask(head_row(gK, n_bh // H, n_bh % H, n_tile * BLOCK_N, stride_kb, stride_ks, stride_kh), stride_ks, BLOCK_N, PF)
        _ask(head_row(gV, n_bh // H, n_bh % H, n_tile * BLOCK_N, stride_vb, stride_vs, stride_vh), stride_vs, BLOCK_N, PF)
    rDk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    rDv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    some, every = seeing(first, T, S, CAUSAL, BLOCK_M, BLOCK_N)
    gQ = head_row(gQ, i_b, i_h, 0, stride_qb, stride_qt, stride_qh)
    gDout = head_row(gDout, i_b, i_h, 0, stride_gb, stride_gt, stride_gh)
    gLse2 += i_bh.to(tl.int64) * padded
    gDelta += i_bh.to(tl.int64) * padded
    for start in range(some, T, BLOCK_M):
        i_m = start + tl.arange(0, BLOCK_M)
        rQ = load_tile(gQ + tl.cast(start, tl.int64) * stride_qt, stride_qt, i_m, T, not EVEN_T, D, BLOCK_M, BLOCK_D)
        rDout = load_tile(gDout + tl.cast(start, tl.int64) * stride_gt, stride_gt, i_m, T, not EVEN_T, DV, BLOCK_M, BLOCK_DV)
        rS = tl.dot(rK, tl.trans(rQ))
        rDp = tl.dot(rV, tl.trans(rDout))
        rLse = tl.load(gLse2 + i_m)  # inf past the last query: exp2(s - inf), no weight
        if EARLY:
            rDelta = tl.load(gDelta + i_m)
        rP = tl.exp2(rS * scale_log2 - rLse[None, :])
        if CAUSAL and not BULK:  # a branch costs sm_80 half its registers
            rP = tl.where(i_n[:, None] <= i_m[None, :] + (S - T), rP, 0.0)
        elif CAUSAL:
            if start < every:
                rP = tl.where(i_n[:, None] <= i_m[None, :] + (S - T), rP, 0.0)
        if not EVEN_S:  # their score is 0, and exp(0 - lse) may be infinite
            rP = tl.where(i_n[:, None] < S, rP, 0.0)
        rDv = tl.dot(rP.to(rDout.dtype), rDout, rDv)
        if not EARLY:
            rDelta = tl.load(gDelta + i_m)
        rDs = (rP * (rDp - rDelta[None, :])).to(rQ.dtype)
        if ORDER == 0:
            rDk = tl.dot(rDs, rQ, rDk)
        rDq = tl.dot(tl.trans(rK), rDs)
        if ORDER == 1:
            rDk = tl.dot(rDs, rQ, rDk)
        if BULK:
            gSum.atomic_add([i_bh * BLOCK_D, start], rDq)
        else:
            tl.atomic_add(tile_at(gSum + i_bh.to(tl.int64) * BLOCK_D * padded + start, padded, BLOCK_D, BLOCK_M), rDq, sem="relaxed")
        if ORDER == 2:
            rDk = tl.dot(rDs, rQ, rDk)
    if ST:
        dDv.store([i_b, first, i_h, 0], rDv.to(gDv.dtype.element_ty).reshape(1, BLOCK_N, 1, BLOCK_DV))
        dDk.store([i_b, first, i_h, 0], (rDk * scale).to(gDk.dtype.element_ty).reshape(1, BLOCK_N, 1, BLOCK_D))
    else:
        store_tile(gDk, rDk * scale, i_b, i_h, first, i_n, S, H, D, BLOCK_N, BLOCK_D)
        store_tile(gDv, rDv, i_b, i_h, first, i_n, S, H, DV, BLOCK_N, BLOCK_DV)


@triton.jit
def _pass_p(gNext, total, gDout, gQ, gK, gV, gLse2, gDelta, gSum, gDk, gDv, dDk, dDv, BASE, EXTRA, NEXT, GROUPS, H, T, S, padded, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb,
          stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr,
          BULK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, EVEN_T: tl.constexpr,
          EVEN_S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ORDER: tl.constexpr, INDEX: tl.constexpr, PF: tl.constexpr, PQ: tl.constexpr, ST: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    i = tl.program_id(0)
    while i < total:
        nxt = tl.atomic_add(gNext, 1, sem="relaxed")
        _tile_of_keys(i, total, nxt, gDout, gQ, gK, gV, gLse2, gDelta, gSum, gDk, gDv, dDk, dDv, BASE, EXTRA, NEXT, GROUPS, H, T, S, padded, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, CAUSAL, BULK, D, BLOCK_D, DV, BLOCK_DV, EVEN_T, EVEN_S, BLOCK_M, BLOCK_N, ORDER, INDEX, PF, PQ, ST, EARLY)
        i = nxt


TURNS = 2


def launches(dout, q, k, v, out, lse, causal, scale, *, M=64, N=128, W=8, STAGES=3, ORDER=0, INDEX=0, PF=0, PQ=0, ST=0, EARLY=0, NEXT=None, PERSIST=0):
    dout, q, k, v, out, lse = *map(dense, (dout, q, k, v, out)), lse.contiguous()
    (b, t, h, d), (_, s, _, dv) = q.shape, v.shape
    dq, dk, dv_ = (x.new_empty(x.shape) for x in (q, k, v))
    m, n = M, N
    padded, both = cdiv(t, m) * m, widths(d, dv)
    lse2, delta = (q.new_empty(b, h, padded, dtype=torch.float32) for _ in range(2))
    sums = q.new_empty(b, h, both["BLOCK_D"], padded, dtype=torch.float32)
    bulk = not INTERPRETED
    start, to = (launch_described, TensorDescriptor.from_tensor(sums.view(-1, padded), [both["BLOCK_D"], m])) if bulk else (launch, sums)
    groups = max(1, b * h * cdiv(s, n) // resident(q, TURNS)) if causal else b * h
    desc = [TensorDescriptor.from_tensor(x, [1, n, 1, d]) if ST else x for x in (dk, dv_)]
    base, extra = divmod(b * h, groups)
    def zero(): sums.zero_()
    def deltas():
        launch(_sums, (cdiv(t, m) * b * h,), dout, out, lse, lse2, delta, h, t, *dout.stride()[:3], *out.stride()[:3], DV=dv, BLOCK_DV=both["BLOCK_DV"], BLOCK_M=m, num_warps=8)
    count = q.new_empty(1, dtype=torch.int32)
    def walk():
        total = cdiv(s, n) * b * h
        programs = min(total, resident(q, 1)) if PERSIST else total
        if PERSIST: count.fill_(programs)
        start(_pass_p if PERSIST else _pass, (programs,), *((count, total) if PERSIST else ()), dout, q, k, v, lse2, delta, to, dk, dv_, *desc, base, extra, NEXT or resident(q, 1), groups, h, t, s, padded, scale, scale * LOG2E, *dout.stride()[:3],
              *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], CAUSAL=causal, BULK=bulk, **both, EVEN_T=t % m == 0,
              EVEN_S=s % n == 0, BLOCK_M=m, BLOCK_N=n, ORDER=ORDER, INDEX=INDEX, PF=PF, PQ=PQ, ST=ST, EARLY=EARLY, num_warps=W, num_stages=STAGES)
    def round_():
        launch(_rounded, (cdiv(t, m) * b * h,), sums, dq, h, t, padded, scale, D=d, BLOCK_D=both["BLOCK_D"], BLOCK_M=m, num_warps=2)
    return (zero, deltas, walk, round_), (dq, dk, dv_)


def attention_backward(*call, **how):
    steps, made = launches(*call, **how)
    for f in steps:
        f()
    return made
