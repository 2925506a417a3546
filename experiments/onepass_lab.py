"""triton.one_pass in variants: ORDER 0 as it is, 1 both products of scores first, 2 the next tile's scores ahead of the loop; LOADS by descriptors or by pointers. Even shapes alone."""
import torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from rooftile.ops._shared.launch import cdiv, launch, launch_described
from rooftile.ops.attention.triton_tiles import LOG2E, dense, head_row, load_tile, store_tile, tile_at, widths
import importlib
one = importlib.import_module("rooftile.ops.attention.one_pass_kernels")


@triton.jit
def _tile(dX, gX, stride, row, first, col, BLOCK_M: tl.constexpr, D: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        return dX.load([row + first, col])
    else:
        return tl.load(gX + (first + tl.arange(0, BLOCK_M))[:, None].to(tl.int64) * stride + tl.arange(0, D)[None, :])


@triton.jit
def _scores(rK, rQ, MASKED: tl.constexpr):
    return tl.dot(rK, tl.trans(rQ))


@triton.jit
def _walk(rDk, rDv, rK, rV, dQ, dDout, gQ, gDout, dSum, row, qrow, col, gLse2, gDelta, stride_qt, stride_gt, first, last, i_n, scale_log2,
          MASKED: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, ORDER: tl.constexpr, TMA: tl.constexpr, TURNED: tl.constexpr):
    if ORDER == 2:
        rS = tl.dot(rK, tl.trans(_tile(dQ, gQ, stride_qt, qrow, first, col, BLOCK_M, D, TMA)))
        for start in range(first, last, BLOCK_M):
            i_m = start + tl.arange(0, BLOCK_M)
            rDout = _tile(dDout, gDout, stride_gt, qrow, start, col, BLOCK_M, D, TMA)
            rDp = tl.dot(rV, tl.trans(rDout))
            rLse = tl.load(gLse2 + i_m)
            rP = tl.exp2(rS * scale_log2 - rLse[None, :])
            if MASKED:
                rP = tl.where(i_n[:, None] <= i_m[None, :], rP, 0.0)
            rDv = tl.dot(rP.to(rDout.dtype), rDout, rDv)
            rDelta = tl.load(gDelta + i_m)
            rDs = (rP * (rDp - rDelta[None, :])).to(rDout.dtype)
            rQ = _tile(dQ, gQ, stride_qt, qrow, start, col, BLOCK_M, D, TMA)
            rDk = tl.dot(rDs, rQ, rDk)
            if TURNED:
                rDq = tl.dot(tl.trans(rK), rDs)
            else:
                rDq = tl.dot(tl.trans(rDs), rK)
            ahead = min(start + BLOCK_M, last - BLOCK_M)
            rS = tl.dot(rK, tl.trans(_tile(dQ, gQ, stride_qt, qrow, ahead, col, BLOCK_M, D, TMA)))
            if TURNED:
                dSum.atomic_add([row, start], rDq)
            else:
                dSum.atomic_add([row + start, 0], rDq)
    else:
        for start in range(first, last, BLOCK_M):
            i_m = start + tl.arange(0, BLOCK_M)
            rQ = _tile(dQ, gQ, stride_qt, qrow, start, col, BLOCK_M, D, TMA)
            rDout = _tile(dDout, gDout, stride_gt, qrow, start, col, BLOCK_M, D, TMA)
            rS = tl.dot(rK, tl.trans(rQ))
            if ORDER == 1:
                rDp = tl.dot(rV, tl.trans(rDout))
            rLse = tl.load(gLse2 + i_m)
            rP = tl.exp2(rS * scale_log2 - rLse[None, :])
            if MASKED:
                rP = tl.where(i_n[:, None] <= i_m[None, :], rP, 0.0)
            rDv = tl.dot(rP.to(rDout.dtype), rDout, rDv)
            if ORDER == 0:
                rDp = tl.dot(rV, tl.trans(rDout))
            rDelta = tl.load(gDelta + i_m)
            rDs = (rP * (rDp - rDelta[None, :])).to(rQ.dtype)
            rDk = tl.dot(rDs, rQ, rDk)
            if TURNED:
                rDq = tl.dot(tl.trans(rK), rDs)
            else:
                rDq = tl.dot(tl.trans(rDs), rK)
            if TURNED:
                dSum.atomic_add([row, start], rDq)
            else:
                dSum.atomic_add([row + start, 0], rDq)
    return rDk, rDv


@triton.jit
def _pass(gDout, dDout, gQ, dQ, gK, gV, gLse2, gDelta, dSum, gDk, gDv, G, T, S, scale, scale_log2, stride_gb, stride_gt, stride_gh, stride_qb,
          stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, CAUSAL: tl.constexpr,
          D: tl.constexpr, ORDER: tl.constexpr, TMA: tl.constexpr, TURNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tiles = tl.cdiv(S, BLOCK_N)
    i_tile = tl.program_id(0) % tiles
    i_bg = tl.program_id(0) // tiles
    i_b, i_g = i_bg // G, i_bg % G
    first = i_tile * BLOCK_N
    i_n = first + tl.arange(0, BLOCK_N)
    rK = load_tile(head_row(gK, i_b, i_g, first, stride_kb, stride_ks, stride_kh), stride_ks, i_n, S, False, D, BLOCK_N, D)
    rV = load_tile(head_row(gV, i_b, i_g, first, stride_vb, stride_vs, stride_vh), stride_vs, i_n, S, False, D, BLOCK_N, D)
    rDk = tl.zeros([BLOCK_N, D], tl.float32)
    rDv = tl.zeros([BLOCK_N, D], tl.float32)
    if CAUSAL:
        some = first // BLOCK_M * BLOCK_M
        every = min(tl.cdiv(first + BLOCK_N - 1, BLOCK_M) * BLOCK_M, T)
    else:
        some = 0
        every = 0
    gQr = head_row(gQ, i_b, i_g, 0, stride_qb, stride_qt, stride_qh)
    gDoutr = head_row(gDout, i_b, i_g, 0, stride_gb, stride_gt, stride_gh)
    row = i_bg * D if TURNED else i_bg * T
    gLse2r = gLse2 + i_bg.to(tl.int64) * T
    gDeltar = gDelta + i_bg.to(tl.int64) * T
    if CAUSAL:
        rDk, rDv = _walk(rDk, rDv, rK, rV, dQ, dDout, gQr, gDoutr, dSum, row, i_b * T, i_g * D, gLse2r, gDeltar, stride_qt, stride_gt, some, every, i_n,
                         scale_log2, True, D, BLOCK_M, ORDER, TMA, TURNED)
    if every < T or not CAUSAL:
        rDk, rDv = _walk(rDk, rDv, rK, rV, dQ, dDout, gQr, gDoutr, dSum, row, i_b * T, i_g * D, gLse2r, gDeltar, stride_qt, stride_gt, every, T, i_n,
                     scale_log2, False, D, BLOCK_M, ORDER, TMA, TURNED)
    store_tile(gDk, rDk * scale, i_b, i_g, first, i_n, S, G, D, BLOCK_N, D)
    store_tile(gDv, rDv, i_b, i_g, first, i_n, S, G, D, BLOCK_N, D)


@triton.jit
def _rounded_t(gSum, gDq, H, T, padded, scale, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    tiles = tl.cdiv(T, BLOCK_M)
    first = tl.program_id(0) % tiles * BLOCK_M
    i_bh = tl.program_id(0) // tiles
    rSum = tl.load(gSum + (i_bh * D + tl.arange(0, D))[:, None].to(tl.int64) * T + first + tl.arange(0, BLOCK_M)[None, :])
    store_tile(gDq, tl.trans(rSum) * scale, i_bh // H, i_bh % H, first, first + tl.arange(0, BLOCK_M), T, H, D, BLOCK_M, BLOCK_D)


def attention_backward(dout, q, k, v, out, lse, causal, scale, *, config):
    dout, q, k, v, out, lse = *map(dense, (dout, q, k, v, out)), lse.contiguous()
    (b, t, h, d), (_, s, g, dv) = q.shape, v.shape
    dq, dk, dv_ = (x.new_empty(x.shape) for x in (q, k, v))
    m, n = config["BLOCK_M"], config["BLOCK_N"]
    lse2, delta = (q.new_empty(b, h, t, dtype=torch.float32) for _ in range(2))
    sums = q.new_zeros(b, h, t, d, dtype=torch.float32)
    launch(one._sums, (cdiv(t, m) * b * h,), dout, out, lse, lse2, delta, h, t, *dout.stride()[:3], *out.stride()[:3], DV=dv, BLOCK_DV=d, BLOCK_M=m, num_warps=4)
    turned = config["TURNED"]
    described = TensorDescriptor.from_tensor(sums.view(-1, t), [d, m]) if turned else TensorDescriptor.from_tensor(sums.view(-1, d), [m, d])
    d_q, d_dout = (TensorDescriptor.from_tensor(x.view(b * t, h * d), [m, d]) for x in (q, dout))
    launch_described(_pass, (cdiv(s, n) * b * g,), dout, d_dout, q, d_q, k, v, lse2, delta, described, dk, dv_, g, t, s, scale, scale * LOG2E, *dout.stride()[:3],
           *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], CAUSAL=causal, D=d, **config)
    launch(_rounded_t if turned else one._rounded, (cdiv(t, m) * b * h,), sums, dq, h, t, t, scale, D=d, BLOCK_D=d, BLOCK_M=m, num_warps=4)
    return dq, dk, dv_

CONFIGS = [dict(ORDER=o, TMA=t, TURNED=u, BLOCK_M=m, BLOCK_N=n, num_warps=w, num_stages=s) for o, t, u, m, n, w, s in (
    (0, 0, 0, 64, 128, 8, 3), (0, 0, 1, 64, 128, 8, 3), (0, 1, 1, 64, 128, 8, 3), (1, 0, 1, 64, 128, 8, 3), (2, 0, 1, 64, 128, 8, 2), (2, 1, 1, 64, 128, 8, 2), (0, 0, 1, 64, 128, 8, 2),
    (0, 0, 1, 32, 64, 4, 2), (0, 0, 1, 32, 64, 4, 3), (1, 0, 1, 32, 64, 4, 2), (0, 1, 1, 32, 64, 4, 2), (0, 0, 1, 64, 64, 4, 1), (0, 0, 1, 32, 128, 8, 3), (0, 0, 1, 32, 128, 8, 4))]
