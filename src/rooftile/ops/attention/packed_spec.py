"""Attention on one tensor of queries, keys and values, as a linear layer makes them: every head has its own keys, as many as queries."""

import torch
from torch import Tensor

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.attention.reference import attention, attention_backward, sdpa


def attention_qkvpacked(qkv: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return attention(*qkv.unbind(2), causal, scale)


def attention_qkvpacked_backward(dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float) -> Tensor:
    return torch.stack(attention_backward(dout, *qkv.unbind(2), out, lse, causal, scale), 2)


def validate(call, dims):
    if dims["QKV"] != 3:
        raise ValueError(
            f"attention_qkvpacked: qkv holds {dims['QKV']} tensors side by side on its third axis, it takes 3: queries, keys and values"
        )


def _peer(qkv, causal, scale):
    return sdpa(*qkv.unbind(2), causal, scale)


def _case(b, t, h, d, causal, why, use=("check",), dtype=torch.bfloat16):
    return Case({"B": b, "T": t, "QKV": 3, "H": h, "D": d}, dtype, {"causal": causal, "scale": d**-0.5}, use, why)


def _pairs(d):
    return d["B"] * d["H"] * d["T"] ** 2 / (2 if d["causal"] else 1)


SPEC = OpSpec(
    "attention_qkvpacked",
    attention_qkvpacked,
    args={"qkv": Arg("B T QKV H D")},
    returns={"out": Arg("B T H D"), "lse": Arg("B H T", dtype="f32")},
    cases=(
        *across(
            FLOATS,
            _case(1, 67, 2, 32, True, "ragged tiles on the diagonal, two heads", use=("smoke", "check")),
            _case(1, 1, 1, 16, False, "one query, one key: out is v"),
            _case(0, 8, 2, 64, True, "no batch"),
        ),
        *across(
            FLOATS[1:],
            _case(1, 40, 2, 96, False, "heads padded to 128", use=("smoke", "check")),
            _case(1, 35, 1, 160, True, "heads padded to 256", use=("smoke", "check")),
            _case(2, 131, 3, 64, True, "three heads, a second tile of 3 queries", use=("smoke", "check")),
            _case(1, 300, 2, 128, False, "a tile of 44 queries, wide heads"),
            _case(1, 67, 1, 256, True, "the widest heads, a second tile of 3 queries", use=("smoke", "check")),
        ),
        _case(32, 1024, 12, 64, True, "GPT-2 124M's training step", use=("bench",)),
        _case(4, 4096, 16, 128, True, "wide heads", use=("bench",)),
        _case(4, 4096, 8, 256, True, "the widest heads", use=("bench",)),
    ),
    peer=_peer,
    validate=validate,
    families=(),
    flops=lambda d: 4 * _pairs(d) * d["D"],
    autocast=True,
    backward=Backward(attention_qkvpacked_backward, grads=("qkv",), flops=lambda d: 10 * _pairs(d) * d["D"]),
)
