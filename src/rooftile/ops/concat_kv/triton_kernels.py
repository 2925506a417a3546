"""New keys and values into a cache. Floor: both read and written once, 4 bytes an element of 16 bits each; the keys' rotation is 3 operations.

One launch for keys and values, laid out as rope's: a program takes some new tokens and some heads of one of the two. Where a token goes is its
sequence's length plus its number, which is its row of the tables too.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2
from rooftile.ops._shared.rotary import dense, scattered
from rooftile.ops._shared.rotary_kernels import turn_heads
from rooftile.ops.concat_kv.reference import check_room


@triton.jit
def _append(gK, gV, gKc, gVc, gLengths, gCos, gSin, BT, T, S, G, N, rows, k_b, k_t, k_h, v_b, v_t, v_h, kc_b, kc_t, kc_h, vc_b, vc_t, vc_h,
            stride_length, stride_cos, stride_sin, D: tl.constexpr, REST: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
            TOKENS: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Chunks of HEADS heads: first those of k, then those of v. What does not fit the cache is not written."""
    chunks = tl.cdiv(G, HEADS)
    chunk = tl.program_id(0) % (2 * chunks)
    i = (tl.program_id(0) // (2 * chunks)).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    i_b, i_t = i // T, i % T
    length = tl.load(gLengths + i_b * stride_length, mask=i < BT, other=-1).to(tl.int64)
    place = length + i_t
    in_t = (length >= 0) & (place < S)
    i_h = (chunk % chunks * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    in_h = i_h < G
    if TURNED and chunk < chunks:
        i_n = tl.arange(0, BLOCK_N)
        known = (in_t & (place < rows))[:, None] & (i_n < N)[None, :]
        rCos = tl.load(gCos + (place * stride_cos)[:, None] + i_n[None, :], mask=known, other=float("nan")).to(tl.float32)[:, None, :]
        rSin = tl.load(gSin + (place * stride_sin)[:, None] + i_n[None, :], mask=known, other=float("nan")).to(tl.float32)[:, None, :]
        turn_heads(gK, gKc, i_b * k_b + i_t * k_t, i_b * kc_b + place * kc_t, in_t, i_h, in_h, k_h, kc_h, rCos, rSin, N, D, REST,
                   INTERLEAVED, BLOCK_N, BLOCK_R)  # fmt: skip
    else:
        i_d = tl.arange(0, BLOCK_D)
        mask = (in_t[:, None] & in_h[None, :])[:, :, None] & (i_d < D)[None, None, :]
        if chunk < chunks:
            rFrom, rTo = (
                (i_b * k_b + i_t * k_t)[:, None] + (i_h * k_h)[None, :],
                (i_b * kc_b + place * kc_t)[:, None] + (i_h * kc_h)[None, :],
            )
            tl.store(gKc + rTo[:, :, None] + i_d[None, None, :], tl.load(gK + rFrom[:, :, None] + i_d[None, None, :], mask=mask), mask=mask)
        else:
            rFrom, rTo = (
                (i_b * v_b + i_t * v_t)[:, None] + (i_h * v_h)[None, :],
                (i_b * vc_b + place * vc_t)[:, None] + (i_h * vc_h)[None, :],
            )
            tl.store(gVc + rTo[:, :, None] + i_d[None, None, :], tl.load(gV + rFrom[:, :, None] + i_d[None, None, :], mask=mask), mask=mask)


def concat_kv(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, *, config):
    check_room(lengths, k_cache.shape[1], k.shape[1], cos)
    k, v, turned = dense(k), dense(v), cos is not None
    b, t, g, d = k.shape
    cos, sin = (dense(cos), dense(sin)) if turned else (k[0, 0], k[0, 0]) if b * t else (k.new_empty((0, 0)), k.new_empty((0, 0)))
    n, heads = cos.shape[1] if turned else 0, min(config["heads"], power_of_2(g))
    launch(_append, (cdiv(b * t, config["tokens"]) * 2 * cdiv(g, heads),), k, v, k_cache, v_cache, lengths, cos, sin, b * t, t,
           k_cache.shape[1], g, n, cos.shape[0], *k.stride()[:3], *v.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
           lengths.stride(0), cos.stride(0), sin.stride(0), D=d, REST=d > 2 * n, TURNED=turned, INTERLEAVED=interleaved,
           TOKENS=config["tokens"], HEADS=heads, BLOCK_N=power_of_2(n), BLOCK_R=power_of_2(d - 2 * n), BLOCK_D=power_of_2(d),
           num_warps=config["warps"])  # fmt: skip


def pick(call):
    """1024 elements a program of 4 warps, one load of 16 bytes a lane in 16 bits: the more programs, the more evenly they end."""
    k = call["k"]
    heads = min(8, power_of_2(k.shape[2]))
    return {"tokens": max(1, min(16, 1024 // (power_of_2(k.shape[3]) * heads), k.shape[0] * k.shape[1] // 128)), "heads": heads, "warps": 4}


CONFIGS = tuple({"tokens": t, "heads": h, "warps": w} for t, h, w in ((4, 8, 4), (2, 8, 4), (1, 8, 4), (1, 8, 2), (8, 4, 4), (8, 8, 8)))
FORWARD = (
    Kernel(
        "triton",
        concat_kv,
        "keys and values in one launch, turned on the way",
        lambda call: off_gpu(call["k"]) or scattered(call, "k_cache", "v_cache"),
        CONFIGS,
        pick,
    ),
)
