"""The portable forward in variants. DESC: 0 tiles by pointers, 1 K and V by descriptors, 2 Q too, 3 the result too. ONE: no second loop (keys are whole tiles; causal: one loop, mask behind a branch).
RCP: one reciprocal a row. WS: tl.range(warp_specialize=True). AHEAD: the next tile's scores before this tile's second product. PERSIST: programs of a persistent grid. PF: the query tile of a program `PF` later is asked into the L2."""
import torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from rooftile.ops._shared.launch import cdiv, launch, launch_described, resident
from rooftile.ops.attention.triton_tiles import LOG2E, dense, head_row, load_tile, store_tile, tile_at, widths


@triton.jit
def _bring(dX, gX, stride, i_b, i_h, first, B: tl.constexpr, D: tl.constexpr, DESC: tl.constexpr):
    if DESC:
        return dX.load([i_b + first, i_h])
    else:
        return tl.load(tile_at(gX + tl.cast(first, tl.int64) * stride, stride, B, D))


@triton.jit
def _step(rAcc, rSum, rMax, rQ, dK, dV, gK, gV, stride_ks, stride_vs, i_b, i_g, start, i_m, whole, shift, scale_log2,
          MASK: tl.constexpr, D: tl.constexpr, N: tl.constexpr, DESC: tl.constexpr):
    rK = _bring(dK, gK, stride_ks, i_b, i_g, start, N, D, DESC > 0)
    rS = tl.dot(rQ, tl.trans(rK))
    if MASK == 1:
        rS = tl.where((start + tl.arange(0, N))[None, :] <= i_m[:, None] + shift, rS, float("-inf"))
    if MASK == 2:
        if start >= whole:
            rS = tl.where((start + tl.arange(0, N))[None, :] <= i_m[:, None] + shift, rS, float("-inf"))
    new = tl.maximum(rMax, tl.max(rS, 1) * scale_log2)
    rP = tl.exp2(rS * scale_log2 - new[:, None])
    shrink = tl.exp2(rMax - new)
    rSum = rSum * shrink + tl.sum(rP, 1)
    rAcc = rAcc * shrink[:, None]
    rV = _bring(dV, gV, stride_vs, i_b, i_g, start, N, D, DESC > 0)
    rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc)
    return rAcc, rSum, new


@triton.jit
def _skewed(rAcc, rSum, rMax, rP, rQ, dK, dV, gK, gV, stride_ks, stride_vs, row, col, start, before, i_m, whole, shift, scale_log2, last,
            MASK: tl.constexpr, D: tl.constexpr, N: tl.constexpr, DESC: tl.constexpr):
    """The scores of this tile, then the second product of the one before beside this one's exponentials."""
    rK = _bring(dK, gK, stride_ks, row, col, start, N, D, DESC > 0)
    rS = tl.dot(rQ, tl.trans(rK))
    rV = _bring(dV, gV, stride_vs, row, col, before, N, D, DESC > 0)
    rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc)
    if MASK == 1:
        rS = tl.where((start + tl.arange(0, N))[None, :] <= i_m[:, None] + shift, rS, float("-inf"))
    if MASK == 2:
        if start >= whole:
            rS = tl.where((start + tl.arange(0, N))[None, :] <= i_m[:, None] + shift, rS, float("-inf"))
    new = tl.maximum(rMax, tl.max(rS, 1) * scale_log2)
    rP2 = tl.exp2(rS * scale_log2 - new[:, None])
    shrink = tl.exp2(rMax - new)
    rSum = rSum * shrink + tl.sum(rP2, 1)
    if start < last:
        rAcc = rAcc * shrink[:, None]
    return rAcc, rSum, new, rP2.to(rP.dtype)


@triton.jit
def _ahead(rAcc, rSum, rMax, rS, rQ, dK, dV, gK, gV, stride_ks, stride_vs, row, col, start, next, i_m, whole, shift, scale_log2, last,
            MASK: tl.constexpr, D: tl.constexpr, N: tl.constexpr, DESC: tl.constexpr):
    """The next tile's scores beside this one's exponentials."""
    rK = _bring(dK, gK, stride_ks, row, col, next, N, D, DESC > 0)
    rNext = tl.dot(rQ, tl.trans(rK))
    if MASK == 2:
        if start >= whole:
            rS = tl.where((start + tl.arange(0, N))[None, :] <= i_m[:, None] + shift, rS, float("-inf"))
    new = tl.maximum(rMax, tl.max(rS, 1) * scale_log2)
    rP = tl.exp2(rS * scale_log2 - new[:, None])
    shrink = tl.exp2(rMax - new)
    rSum = rSum * shrink + tl.sum(rP, 1)
    rAcc = rAcc * shrink[:, None]
    rV = _bring(dV, gV, stride_vs, row, col, start, N, D, DESC > 0)
    rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc)
    if start < last:
        rS = rNext + 0.0
    return rAcc, rSum, new, rS


@triton.jit
def _tile(gQ, gK, gV, gOut, gLse, dQ, dK, dV, dOut, i_tile, i_bh, last, H, T, S, scale_log2, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh,
          stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
          DESC: tl.constexpr, ONE: tl.constexpr, RCP: tl.constexpr, WS: tl.constexpr, PF: tl.constexpr, ALGO: tl.constexpr, CARRY: tl.constexpr):
    i_b, i_h = i_bh // H, i_bh % H
    i_m = i_tile * M + tl.arange(0, M)
    rQ = _bring(dQ, head_row(gQ, i_b, i_h, 0, stride_qb, stride_qt, stride_qh), stride_qt, i_b * T, i_h * D, i_tile * M, M, D, DESC > 1)
    if PF > 0:
        later = tl.program_id(0) + PF
        tiles = tl.cdiv(T, M)
        l_tile = later % tiles
        if CAUSAL:
            l_tile = tiles - 1 - l_tile
        l_bh = min(later // tiles, tl.num_programs(0) // tiles - 1)
        at = head_row(gQ, l_bh // H, l_bh % H, l_tile * M, stride_qb, stride_qt, stride_qh) + tl.arange(0, 2 * M) // 2 * stride_qt + tl.arange(0, 2 * M) % 2 * 64
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)
    gK = head_row(gK, i_b, i_h // GROUP, 0, stride_kb, stride_ks, stride_kh)
    gV = head_row(gV, i_b, i_h // GROUP, 0, stride_vb, stride_vs, stride_vh)
    rMax = tl.full([M], float("-inf"), tl.float32)
    rSum = tl.zeros([M], tl.float32)
    rAcc = tl.zeros([M, D], tl.float32)
    shift = S - T
    if CAUSAL:
        whole = min(max(i_tile * M + shift + 1, 0), S) // N * N
        end = min(max((i_tile + 1) * M + shift, 0), S)
    else:
        whole = S // N * N
        end = S
    if ALGO == 1:
        rP = tl.zeros([M, N], tl.float32 if CARRY == 32 else gOut.dtype.element_ty)
        for start in tl.range(0, end, N):
            rAcc, rSum, rMax, rP = _skewed(rAcc, rSum, rMax, rP, rQ, dK, dV, gK, gV, stride_ks, stride_vs, i_b * S, i_h // GROUP * D, start, max(start - N, 0), i_m, whole, shift, scale_log2, last, 2 if CAUSAL else 0, D, N, DESC)
        rV = _bring(dV, gV, stride_vs, i_b * S, i_h // GROUP * D, tl.cdiv(end, N) * N - N, N, D, DESC > 0)
        rAcc = tl.dot(rP.to(rV.dtype), rV, rAcc)
    elif ALGO == 2:
        rS = tl.dot(rQ, tl.trans(_bring(dK, gK, stride_ks, i_b * S, i_h // GROUP * D, 0, N, D, DESC > 0)))
        for start in tl.range(0, end, N):
            rAcc, rSum, rMax, rS = _ahead(rAcc, rSum, rMax, rS, rQ, dK, dV, gK, gV, stride_ks, stride_vs, i_b * S, i_h // GROUP * D, start, min(start + N, end - 1) // N * N, i_m, whole, shift, scale_log2, last, 2 if CAUSAL else 0, D, N, DESC)
    elif ONE:
        for start in tl.range(0, end, N, warp_specialize=WS):
            rAcc, rSum, rMax = _step(rAcc, rSum, rMax, rQ, dK, dV, gK, gV, stride_ks, stride_vs, i_b * S, i_h // GROUP * D, start, i_m, whole, shift, scale_log2, 2 if CAUSAL else 0, D, N, DESC)
    else:
        for start in tl.range(0, whole, N, warp_specialize=WS):
            rAcc, rSum, rMax = _step(rAcc, rSum, rMax, rQ, dK, dV, gK, gV, stride_ks, stride_vs, i_b * S, i_h // GROUP * D, start, i_m, whole, shift, scale_log2, 0, D, N, DESC)
        if CAUSAL:
            for start in tl.range(whole, end, N):
                rAcc, rSum, rMax = _step(rAcc, rSum, rMax, rQ, dK, dV, gK, gV, stride_ks, stride_vs, i_b * S, i_h // GROUP * D, start, i_m, whole, shift, scale_log2, 1, D, N, DESC)
    if RCP:
        rOut = rAcc * (1.0 / tl.where(rSum == 0.0, 1.0, rSum))[:, None]
    else:
        rOut = rAcc / tl.where(rSum == 0.0, 1.0, rSum)[:, None]
    if DESC > 2:
        dOut.store([i_b * T + i_tile * M, i_h * D], rOut.to(gOut.dtype.element_ty))
    else:
        store_tile(gOut, rOut, i_b, i_h, i_tile * M, i_m, T, H, D, M, D)
    rLse = (rMax + tl.log2(rSum)) * 0.6931471805599453
    tl.store(gLse + i_bh.to(tl.int64) * T + i_m, rLse, mask=i_m < T)


@triton.jit
def _forward(gQ, gK, gV, gOut, gLse, dQ, dK, dV, dOut, total, last, H, T, S, scale_log2, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh,
             stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             DESC: tl.constexpr, ONE: tl.constexpr, RCP: tl.constexpr, WS: tl.constexpr, PF: tl.constexpr, PERSIST: tl.constexpr, ALGO: tl.constexpr, CARRY: tl.constexpr):
    tiles = tl.cdiv(T, M)
    if PERSIST:
        for at in tl.range(tl.program_id(0), total, tl.num_programs(0), flatten=PERSIST == 2):
            i_tile = at % tiles
            if CAUSAL:
                i_tile = tiles - 1 - i_tile
            _tile(gQ, gK, gV, gOut, gLse, dQ, dK, dV, dOut, i_tile, at // tiles, last, H, T, S, scale_log2, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh,
                  stride_vb, stride_vs, stride_vh, CAUSAL, GROUP, D, M, N, DESC, ONE, RCP, WS, 0, ALGO, CARRY)
    else:
        i_tile = tl.program_id(0) % tiles
        if CAUSAL:
            i_tile = tiles - 1 - i_tile
        _tile(gQ, gK, gV, gOut, gLse, dQ, dK, dV, dOut, i_tile, tl.program_id(0) // tiles, last, H, T, S, scale_log2, stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh,
              stride_vb, stride_vs, stride_vh, CAUSAL, GROUP, D, M, N, DESC, ONE, RCP, WS, PF, ALGO, CARRY)


def attention(q, k, v, causal, scale, *, M=64, N=64, W=4, ST=3, DESC=0, ONE=0, RCP=0, WS=0, PF=0, PERSIST=0, ALGO=0, CARRY=32, MAXNREG=None, PER=2):
    (b, t, h, d), (_, s, g, dv) = q.shape, v.shape
    out = q.new_empty(b, t, h, dv)
    lse = q.new_empty(b, h, t, dtype=torch.float32)
    dq, dk, dv_, do = q, k, v, out
    if DESC:
        dk, dv_ = (TensorDescriptor.from_tensor(x.view(b * s, g * d), [N, d]) for x in (k, v))
    if DESC > 1:
        dq = TensorDescriptor.from_tensor(q.view(b * t, h * d), [M, d])
    if DESC > 2:
        do = TensorDescriptor.from_tensor(out.view(b * t, h * d), [M, d])
    total = cdiv(t, M) * b * h
    opts = dict(num_warps=W, num_stages=ST)
    if MAXNREG:
        opts["maxnreg"] = MAXNREG
    grid = (min(total, resident(q, PER)) if PERSIST else total,)
    (launch_described if DESC else launch)(_forward, grid, q, k, v, out, lse, dq, dk, dv_, do, total, 1 << 30, h, t, s, scale * LOG2E, *q.stride()[:3], *k.stride()[:3],
           *v.stride()[:3], CAUSAL=causal, GROUP=h // g, D=d, M=M, N=N, DESC=DESC, ONE=ONE, RCP=RCP, WS=WS, PF=PF, PERSIST=PERSIST, ALGO=ALGO, CARRY=CARRY, **opts)
    return out, lse
