"""Attention of one tensor of queries, keys and values, the first two turned by their positions: what stands between a layer's two products."""

import torch
from torch import Tensor

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, index
from rooftile.ops._shared.draw import cosines, sines
from rooftile.ops.attention.reference import attention, attention_backward, sdpa
from rooftile.ops.attention.spec import shared_evenly
from rooftile.ops.rope.reference import rope, rope_backward
from rooftile.ops.rope.spec import placed, torch_rope
from rooftile.ops.rope.spec import validate as validate_table


def parts(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of [B, T, H + 2 G, D], as views. Cut one by one: a launcher that only takes views can be replayed."""
    heads = qkv.shape[2] - 2 * kv_heads
    return qkv.narrow(2, 0, heads), qkv.narrow(2, heads, kv_heads), qkv.narrow(2, heads + kv_heads, kv_heads)


def rotary_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, kv_heads: int, interleaved: bool, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = parts(qkv, kv_heads)
    q, k = rope(q, k, cos, sin, positions, interleaved)
    return *attention(q, k, v, causal, scale), q, k


def rotary_attention_backward(
    dout: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, out: Tensor, lse: Tensor, q: Tensor, k: Tensor,
    kv_heads: int, interleaved: bool, causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    dq, dk, dv = attention_backward(dout, q, k, parts(qkv, kv_heads)[2], out, lse, causal, scale)
    return torch.cat([*rope_backward(dq, dk, cos, sin, positions, interleaved), dv], 2)


def follows(call, dims):
    """Heads of queries and of keys, among them all."""
    return {"H": dims["A"] - 2 * call["kv_heads"], "G": call["kv_heads"]}


def validate(call, dims):
    if call["kv_heads"] < 1 or dims["H"] < 1:
        raise ValueError(
            f"rotary_attention: qkv has {dims['A']} heads in all, kv_heads is {call['kv_heads']}: it takes 1 at least, and more than 2 of each in all"
        )
    shared_evenly("rotary_attention", dims)
    validate_table(call, dims)


def _peer(qkv, cos, sin, positions, kv_heads, interleaved, causal, scale):
    q, k, v = parts(qkv, kv_heads)
    return sdpa(*torch_rope(q, k, cos, sin, positions, interleaved), v, causal, scale)


def _case(b, t, h, g, d, causal, why, use=("check",), dtype=torch.bfloat16, turned=None, **more):
    dims = {"B": b, "T": t, "A": h + 2 * g, "D": d, "N": d // 2 if turned is None else turned, "S": t}
    return Case(dims, dtype, {"kv_heads": g, "interleaved": False, "causal": causal, "scale": d**-0.5, **more}, use, why)


def _pairs(d):
    return d["B"] * d["H"] * d["T"] ** 2 / (2 if d["causal"] else 1)


RUN = ("smoke", "check")
SPEC = OpSpec(
    "rotary_attention",
    rotary_attention,
    args={
        "qkv": Arg("B T A D"),
        "cos": Arg("S N", "io|f32", make=cosines),
        "sin": Arg("S N", "io|f32", make=sines),
        "positions": Arg("B T", "i64", make=index("S"), optional=True),
    },
    returns={
        "out": Arg("B T H D"),
        "lse": Arg("B H T", dtype="f32"),
        "q": Arg("B T H D", saved=True),
        "k": Arg("B T G D", saved=True),
    },
    cases=(
        *across(
            FLOATS,
            _case(1, 67, 4, 2, 32, True, "ragged tiles on the diagonal, two heads read a key head", use=RUN),
            _case(2, 9, 3, 1, 16, False, "positions given, part of a head turned", use=RUN, turned=4, given=True),
            _case(1, 1, 1, 1, 16, False, "one token: out is v"),
            _case(0, 8, 2, 1, 64, True, "no batch"),
        ),
        *across(
            FLOATS[1:],
            _case(2, 131, 3, 1, 64, True, "three heads, a second tile of 3 queries", use=RUN),
            _case(1, 40, 2, 1, 96, False, "heads padded to 128, neighbouring pairs", use=RUN, interleaved=True),
            _case(1, 200, 4, 2, 128, False, "wide heads, two read a key head"),
            _case(1, 67, 2, 1, 256, True, "the widest heads", use=RUN),
        ),
        _case(4, 4096, 32, 8, 64, True, "Llama 1.2B's training step", use=("bench",)),
        _case(2, 8192, 32, 8, 128, True, "heads of Llama 3 8B", use=("bench",)),
    ),
    peer=_peer,
    validate=validate,
    follows=follows,
    draw_with=placed,
    families=(),
    flops=lambda d: 4 * _pairs(d) * d["D"],
    autocast=True,
    backward=Backward(rotary_attention_backward, grads=("qkv",), flops=lambda d: 10 * _pairs(d) * d["D"]),
)
