"""Rotary position embedding. Floor: queries and keys read and written once, 4 bytes an element of 16 bits in all; 3 operations an element.

One launch for queries and keys: a program takes some tokens and some heads of one of the two, so a row of the table (N float32 cosines and
sines) is loaded once for all its heads. Nothing is saved but the tables: backward turns the other way.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu, power_of_2
from rooftile.ops._shared.rotary import dense, scattered
from rooftile.ops._shared.rotary_kernels import turn_heads
from rooftile.ops.rope.reference import check_positions


@triton.jit
def _rope(gQ, gK, gQo, gKo, gCos, gSin, gPositions, BT, T, S, H, G, N, q_b, q_t, q_h, k_b, k_t, k_h, qo_b, qo_t, qo_h, ko_b, ko_t, ko_h,
          stride_cos, stride_sin, p_b, p_t, D: tl.constexpr, REST: tl.constexpr, GIVEN: tl.constexpr, INTERLEAVED: tl.constexpr,
          BACK: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr):  # fmt: skip
    """Chunks of HEADS heads: first those of q, then those of k, of one tile of tokens after another."""
    chunks_q, chunks = tl.cdiv(H, HEADS), tl.cdiv(H, HEADS) + tl.cdiv(G, HEADS)
    i_p = tl.program_id(0)
    chunk = i_p % chunks
    i = (i_p // chunks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    in_t = i < BT
    i_b, i_t = i // T, i % T
    if GIVEN:
        place = tl.load(gPositions + i_b * p_b + i_t * p_t, mask=in_t, other=0)
    else:
        place = i_t
    i_n = tl.arange(0, BLOCK_N)
    known = (in_t & (place >= 0) & (place < S))[:, None] & (i_n < N)[None, :]
    rCos = tl.load(gCos + (place * stride_cos)[:, None] + i_n[None, :], mask=known, other=float("nan")).to(tl.float32)[:, None, :]
    rSin = tl.load(gSin + (place * stride_sin)[:, None] + i_n[None, :], mask=known, other=float("nan")).to(tl.float32)[:, None, :]
    if BACK:
        rSin = -rSin
    in_chunk = tl.arange(0, HEADS).to(
        tl.int64
    )  # heads that lie before tokens: of a million tokens, 16 of 128 numbers are all that 32 bits hold
    if chunk < chunks_q:
        i_h = chunk * HEADS + in_chunk
        turn_heads(gQ, gQo, i_b * q_b + i_t * q_t, i_b * qo_b + i_t * qo_t, in_t, i_h, i_h < H, q_h, qo_h, rCos, rSin, N, D, REST, INTERLEAVED,
              BLOCK_N, BLOCK_R)  # fmt: skip
    else:
        i_h = (chunk - chunks_q) * HEADS + in_chunk
        turn_heads(gK, gKo, i_b * k_b + i_t * k_t, i_b * ko_b + i_t * ko_t, in_t, i_h, i_h < G, k_h, ko_h, rCos, rSin, N, D, REST, INTERLEAVED,
              BLOCK_N, BLOCK_R)  # fmt: skip


def _launch(q, k, q_out, k_out, cos, sin, positions, interleaved, config, back=False):
    check_positions(positions, cos)
    b, t, h, d = q.shape
    g, (s, n) = k.shape[2], cos.shape
    given = positions is not None
    heads = min(config["heads"], power_of_2(max(h, g)))
    launch(_rope, (cdiv(b * t, config["tokens"]) * (cdiv(h, heads) + cdiv(g, heads)),), q, k, q_out, k_out, cos, sin,
           positions if given else cos, b * t, t, s, h, g, n, *q.stride()[:3], *k.stride()[:3], *q_out.stride()[:3], *k_out.stride()[:3],
           cos.stride(0), sin.stride(0), *(positions.stride() if given else (0, 0)), D=d, REST=d > 2 * n, GIVEN=given,
           INTERLEAVED=interleaved, BACK=back, TOKENS=config["tokens"], HEADS=heads, BLOCK_N=power_of_2(n),
           BLOCK_R=power_of_2(d - 2 * n), num_warps=config["warps"])  # fmt: skip


def rope(q, k, cos, sin, positions, interleaved, *, config):
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    _launch(dense(q), dense(k), q_out, k_out, dense(cos), dense(sin), positions, interleaved, config)
    return q_out, k_out


def rope_backward(dq_out, dk_out, cos, sin, positions, interleaved, *, config):
    dq, dk = dq_out.new_empty(dq_out.shape), dk_out.new_empty(dk_out.shape)
    _launch(dense(dq_out), dense(dk_out), dq, dk, dense(cos), dense(sin), positions, interleaved, config, back=True)
    return dq, dk


def rope_overwrite(q, k, cos, sin, positions, interleaved, *, config):
    _launch(q, k, q, k, dense(cos), dense(sin), positions, interleaved, config)


def _first(call):
    return call["q"] if "q" in call else call["dq_out"]


def pick(call):
    """Up to 16 heads of a token, so that a row of the table is read once for all, and as many tokens as make 1024 pairs of them for 4 warps: 16 bytes
    of each half a lane. In heads of 128 that is one token, of 64 two. On a CPU 4, so that a tile's rows are more than one."""
    x = _first(call)
    heads = min(16, power_of_2(x.shape[2]))
    tokens = max(1, 1024 // (heads * power_of_2(call["cos"].shape[1]))) if x.device.type != "cpu" else 4
    return {"tokens": min(4, tokens), "heads": heads, "warps": 4}


def _neighbours(call):
    """Why the CUDA rung does sooner, or None."""
    return (
        "neighbours that turn together change lanes twice here, a third of the speed of 16 bytes a thread" if call["interleaved"] else None
    )


CONFIGS = tuple(
    {"tokens": t, "heads": h, "warps": w}
    for t, h, w in (
        (4, 8, 4),
        (2, 16, 4),
        (4, 16, 4),
        (2, 8, 4),
        (2, 8, 2),
        (1, 32, 4),
        (1, 16, 4),
        (2, 16, 8),
        (4, 8, 8),
        (8, 8, 8),
        (8, 4, 4),
    )
)

IDEA = "q and k in one launch, a table row for several heads"
FORWARD = (Kernel("triton", rope, IDEA, lambda call: off_gpu(call["q"]), CONFIGS, pick, declines=_neighbours),)
BACKWARD = (
    Kernel("triton", rope_backward, "the same, turned back", lambda call: off_gpu(call["dq_out"]), CONFIGS, pick, declines=_neighbours),
)
OVERWRITE = (
    Kernel(
        "triton",
        rope_overwrite,
        "where they lie",
        lambda call: off_gpu(call["q"]) or scattered(call, "q", "k"),
        CONFIGS,
        pick,
        declines=_neighbours,
    ),
)
