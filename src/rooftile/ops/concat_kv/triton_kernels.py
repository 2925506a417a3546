"""New keys and values into a cache. Floor: both read and written once, 4 bytes an element of 16 bits each; the keys' rotation is 3 operations.

One launch for keys and values, laid out as rope's: a program takes some new tokens and some heads of one of the two. Where a token goes is its
sequence's length plus its number, which is its row of the tables too. Pages and 8 bits are constants: a contiguous cache pays for neither.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.e4m3 import WITH_E4M3
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2
from rooftile.ops._shared.rotary import dense, scattered
from rooftile.ops._shared.rotary_kernels import turn_heads
from rooftile.ops.concat_kv.reference import LARGEST, check_room


@triton.jit
def _narrow(gX, gOut, gScale, gCos, gSin, rFrom, rTo, place, known, in_t, i_h, in_h, N, stride_h, stride_out_h, stride_scale, stride_cos, stride_sin,
            D: tl.constexpr, LARGEST: tl.constexpr, SCALED: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
            BLOCK_D: tl.constexpr):  # fmt: skip
    """Heads i_h of some tokens as 8 bits. An element is turned beside its neighbours, with which it is written, so that the other of its pair is
    read a second time, from the L1."""
    i_d = tl.arange(0, BLOCK_D)
    mask = (in_t[:, None] & in_h[None, :])[:, :, None] & (i_d < D)[None, None, :]
    gX += (rFrom[:, None] + (i_h * stride_h)[None, :])[:, :, None]
    rX = tl.load(gX + i_d[None, None, :], mask=mask, other=0.0).to(tl.float32)
    if TURNED:
        first, i_n = (i_d % 2 == 0, i_d // 2) if INTERLEAVED else (i_d < N, tl.where(i_d < N, i_d, i_d - N))
        other = (i_d ^ 1) if INTERLEAVED else tl.where(first, i_d + N, i_d - N)
        in_n = i_d < 2 * N
        entry = mask & (known[:, None] & in_n[None, :])[:, None, :]
        # a row for each head, out of the L1: one for all of them went through shared memory
        gCos = tl.broadcast_to(gCos + ((place * stride_cos)[:, None] + i_n[None, :])[:, None, :], rX.shape)
        gSin = tl.broadcast_to(gSin + ((place * stride_sin)[:, None] + i_n[None, :])[:, None, :], rX.shape)
        rCos = tl.load(gCos, mask=entry, other=float("nan")).to(tl.float32)
        rSin = tl.load(gSin, mask=entry, other=float("nan")).to(tl.float32)
        rY = tl.load(gX + other[None, None, :], mask=mask & in_n[None, None, :], other=0.0).to(tl.float32)
        rX = tl.where(in_n[None, None, :], rX * rCos + tl.where(first[None, None, :], -rY, rY) * rSin, rX)
    if SCALED:
        scale = tl.load(gScale + i_h * stride_scale, mask=in_h, other=1.0)
        rX *= tl.div_rn(1.0, scale)[None, :, None]
    rX = tl.clamp(rX, -LARGEST, LARGEST, tl.PropagateNan.ALL).to(gOut.dtype.element_ty)
    tl.store(gOut + (rTo[:, None] + (i_h * stride_out_h)[None, :])[:, :, None] + i_d[None, None, :], rX, mask=mask)


@triton.jit
def _append(gK, gV, gKc, gVc, gLengths, gCos, gSin, gTable, gKs, gVs, BT, T, S, G, N, rows, pages, k_b, k_t, k_h, v_b, v_t, v_h, kc_b, kc_t, kc_h,
            vc_b, vc_t, vc_h, stride_length, stride_cos, stride_sin, stride_row, stride_page, stride_ks, stride_vs, D: tl.constexpr,
            PAGE: tl.constexpr, LARGEST: tl.constexpr, K_SCALED: tl.constexpr, V_SCALED: tl.constexpr, REST: tl.constexpr, TURNED: tl.constexpr,
            INTERLEAVED: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
            BLOCK_D: tl.constexpr):  # fmt: skip
    """Chunks of HEADS heads: first those of k, then those of v. What does not fit the cache is not written. S is a sequence's room, in pages of
    PAGE keys; 0: contiguous. LARGEST: of caches of 8 bits; 0: of the dtype of what is new."""
    chunks = tl.cdiv(G, HEADS)
    chunk = tl.program_id(0) % (2 * chunks)
    i = (tl.program_id(0) // (2 * chunks)).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    i_b, i_t = i // T, i % T
    length = tl.load(gLengths + i_b * stride_length, mask=i < BT, other=-1).to(tl.int64)
    place = length + i_t
    in_t = (length >= 0) & (place < S)
    row, slot = i_b, place
    if PAGE:
        row = tl.load(gTable + i_b * stride_row + place // PAGE * stride_page, mask=in_t, other=-1).to(tl.int64)
        slot = place % PAGE
        in_t = in_t & (row >= 0) & (row < pages)
    i_h = (chunk % chunks * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    in_h = i_h < G
    if LARGEST > 0:
        if chunk < chunks:
            _narrow(gK, gKc, gKs, gCos, gSin, i_b * k_b + i_t * k_t, row * kc_b + slot * kc_t, place, in_t & (place < rows), in_t, i_h, in_h, N,
                    k_h, kc_h, stride_ks, stride_cos, stride_sin, D, LARGEST, K_SCALED, TURNED, INTERLEAVED, BLOCK_D)  # fmt: skip
        else:
            _narrow(gV, gVc, gVs, gCos, gSin, i_b * v_b + i_t * v_t, row * vc_b + slot * vc_t, place, in_t, in_t, i_h, in_h, N, v_h, vc_h,
                    stride_vs, stride_cos, stride_sin, D, LARGEST, V_SCALED, False, INTERLEAVED, BLOCK_D)  # fmt: skip
    elif TURNED and chunk < chunks:
        i_n = tl.arange(0, BLOCK_N)
        known = (in_t & (place < rows))[:, None] & (i_n < N)[None, :]
        rCos = tl.load(gCos + (place * stride_cos)[:, None] + i_n[None, :], mask=known, other=float("nan")).to(tl.float32)[:, None, :]
        rSin = tl.load(gSin + (place * stride_sin)[:, None] + i_n[None, :], mask=known, other=float("nan")).to(tl.float32)[:, None, :]
        turn_heads(gK, gKc, i_b * k_b + i_t * k_t, row * kc_b + slot * kc_t, in_t, i_h, in_h, k_h, kc_h, rCos, rSin, N, D, REST,
                   INTERLEAVED, BLOCK_N, BLOCK_R)  # fmt: skip
    else:
        i_d = tl.arange(0, BLOCK_D)
        mask = (in_t[:, None] & in_h[None, :])[:, :, None] & (i_d < D)[None, None, :]
        if chunk < chunks:
            rFrom, rTo = (
                (i_b * k_b + i_t * k_t)[:, None] + (i_h * k_h)[None, :],
                (row * kc_b + slot * kc_t)[:, None] + (i_h * kc_h)[None, :],
            )
            tl.store(gKc + rTo[:, :, None] + i_d[None, None, :], tl.load(gK + rFrom[:, :, None] + i_d[None, None, :], mask=mask), mask=mask)
        else:
            rFrom, rTo = (
                (i_b * v_b + i_t * v_t)[:, None] + (i_h * v_h)[None, :],
                (row * vc_b + slot * vc_t)[:, None] + (i_h * vc_h)[None, :],
            )
            tl.store(gVc + rTo[:, :, None] + i_d[None, None, :], tl.load(gV + rFrom[:, :, None] + i_d[None, None, :], mask=mask), mask=mask)


def concat_kv(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table=None, k_scale=None, v_scale=None, *, config):
    check_room(lengths, k_cache, k.shape[1], cos, block_table)
    k, v, turned = dense(k), dense(v), cos is not None
    b, t, g, d = k.shape
    cos, sin = (dense(cos), dense(sin)) if turned else (k[0, 0], k[0, 0]) if b * t else (k.new_empty((0, 0)), k.new_empty((0, 0)))
    n, heads = cos.shape[1] if turned else 0, min(config["heads"], power_of_2(g))
    page, paged = k_cache.shape[1], block_table is not None
    table, ks, vs = (lengths if x is None else x for x in (block_table, k_scale, v_scale))
    launch(_append, (cdiv(b * t, config["tokens"]) * 2 * cdiv(g, heads),), k, v, k_cache, v_cache, lengths, cos, sin, table, ks, vs, b * t, t,
           table.shape[1] * page if paged else page, g, n, cos.shape[0], len(k_cache), *k.stride()[:3], *v.stride()[:3],
           *k_cache.stride()[:3], *v_cache.stride()[:3], lengths.stride(0), cos.stride(0), sin.stride(0), table.stride(0), table.stride(-1),
           ks.stride(0), vs.stride(0), D=d, PAGE=page if paged else 0, LARGEST=LARGEST if k_cache.dtype != k.dtype else 0.0,
           K_SCALED=k_scale is not None, V_SCALED=v_scale is not None, REST=d > 2 * n, TURNED=turned, INTERLEAVED=interleaved,
           TOKENS=config["tokens"], HEADS=heads, BLOCK_N=power_of_2(n), BLOCK_R=power_of_2(d - 2 * n), BLOCK_D=power_of_2(d),
           num_warps=config["warps"])  # fmt: skip


def pick(call):
    """1024 elements a program of 4 warps, one load of 16 bytes a lane in 16 bits: the more programs, the more evenly they end."""
    k = call["k"]
    heads = min(8, power_of_2(k.shape[2]))
    return {"tokens": max(1, min(16, 1024 // (power_of_2(k.shape[3]) * heads), k.shape[0] * k.shape[1] // 128)), "heads": heads, "warps": 4}


CONFIGS = tuple({"tokens": t, "heads": h, "warps": w} for t, h, w in ((4, 8, 4), (2, 8, 4), (1, 8, 4), (1, 8, 2), (8, 4, 4), (8, 8, 8)))


def _refuse(call):
    return off_gpu(call["k"]) or scattered(call, "k_cache", "v_cache")


IDEA = "keys and values in one launch, turned on the way"
FORWARD = (Kernel("triton", concat_kv, IDEA, _refuse, CONFIGS, pick),)
FORWARD_E4M3 = (Kernel("triton", concat_kv, IDEA, _refuse, CONFIGS, pick, architectures=WITH_E4M3),)
