import math

import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, normal
from rooftile.ops.attention.options_reference import attention_options, attention_options_backward, torch_options
from rooftile.ops.attention.spec import UNSAID, K, Q, shared_evenly

RUN = ("smoke", "check")
ABSENT = ("sinks", "bias", "constant_bias", "mask", "seed")


def mostly(shape, dtype, gen, dims):
    """One key in five is hidden, and of a small problem the first query of a head sees none, on which PyTorch's fused kernels are NaN. A case's letter
    Masks is 1 where all heads have one; of so many Documents, one behind another, queries see the keys of their own; the first Hidden queries see none, and the first Hidden keys none sees."""
    mask = torch.rand(shape[0], dims.get("Masks", shape[1]), *shape[2:], generator=gen, device=gen.device) < 0.8
    if "Documents" in dims:
        query, key = (torch.arange(n, device=gen.device) * dims["Documents"] // max(1, n) for n in shape[2:])
        mask |= True
        mask &= query[:, None] == key
    if shape[-1] < 1024:
        mask[:, :, : dims.get("Hidden", 1)] = False
        mask[..., : dims.get("Hidden", 0)] = False
    return mask.expand(shape)


def seed(shape, dtype, gen, dims):
    """All 64 bits: a kernel that loses the upper half of the key must fail."""
    return torch.randint(-(2**63), 2**63 - 1, shape, dtype=dtype, generator=gen, device=gen.device)


def faint(shape, dtype, gen, dims):
    """lse's gradient: none at sizes where what a kernel is held to is PyTorch's fused function, which has no lse."""
    return normal(shape, dtype, gen, dims) if math.prod(shape) < 2**14 else torch.zeros(shape, dtype=dtype, device=gen.device)


def check_numbers(name, call):
    """What is wrong with the options that are numbers."""
    for bound in ("left", "right"):
        if call[bound] < -1:
            raise ValueError(f"{name}: {bound} is {call[bound]}, and must be 0 or more, or -1 for all keys on that side")
    if call["softcap"] < 0:
        raise ValueError(f"{name}: softcap is {call['softcap']}, and must be 0 (none) or more")
    if not 0 <= call["p"] <= 1:
        raise ValueError(f"{name}: p is {call['p']}, it lies between 0 and 1")
    if (call["p"] > 0) != (call["seed"] is not None):
        raise ValueError(f"{name}: p is {call['p']} and there is {'no' if call['seed'] is None else 'a'} seed: dropout takes both")


def validate(call, dims):
    shared_evenly("attention_options", dims)
    for letter, most in (("B'", "B"), ("H'", "H")):
        if call["bias"] is not None and dims[letter] not in (1, dims[most]):
            raise ValueError(f"attention_options: bias has {dims[letter]} for {most}, it takes 1 or {dims[most]}")
    if call["bias"] is not None and call["constant_bias"] is not None:
        raise ValueError("attention_options: it takes bias or constant_bias, and was given 2: add them")
    check_numbers("attention_options", call)


def seen(t, s, left, right):
    """Pairs of a query and a key it sees, counted at some 1024 queries and even between them."""
    at = [i + s - t for i in range(0, t, max(1, t // 1024))]
    keys = [max(0, (s if right < 0 else min(s, i + right + 1)) - (0 if left < 0 else max(0, i - left))) for i in at]
    return t * sum(keys) / max(1, len(keys))


def pairs(d):
    """Of Documents, which are of a length, each has its own."""
    return d["B"] * d["H"] * seen(d["T"], d["S"], d["left"], d["right"]) / d.get("Documents", 1)


def case(b, t, s, h, d, why, use=("check",), dtype=torch.float32, given=(), **more):
    """`given`: which of the optional tensors; `more`: letters and numbers."""
    letters = {n: x for n, x in more.items() if n[0].isupper()}
    numbers = {"scale": d**-0.5, "left": -1, "right": -1, "softcap": 0.0, "p": 0.0} | {n: x for n, x in more.items() if not n[0].isupper()}
    given = {*given, *(["seed"] if numbers["p"] else [])}
    params = {**{n: None for n in ABSENT if n not in given}, **numbers}
    return Case({"B": b, "T": t, "S": s, "H": h, "D": d, **letters}, dtype, params, use, why)


BF16 = {"use": ("bench",), "dtype": torch.bfloat16}
SCORED = Arg("B H T S", optional=True)

SPEC = OpSpec(
    "attention_options",
    attention_options,
    args={
        "q": Q,
        "k": K,
        "v": Arg("B S G Dv"),
        "sinks": Arg("H", "io|f32", optional=True),
        "bias": Arg("B' H' T S", optional=True),
        "constant_bias": SCORED,
        "mask": Arg("B H T S", "bool", make=mostly, optional=True),
        "seed": Arg("", "i64", make=seed, optional=True),
    },
    returns={"out": Arg("B T H Dv"), "lse": Arg("B H T", dtype="f32", make=faint)},
    cases=(
        case(2, 7, 34, 2, 16, "a window on both sides, sinks, one bias for all batches, a cap, dropout", RUN, given=("sinks", "bias"),
             G=1, left=20, right=3, softcap=2.0, p=0.2, **{"B'": 1}),
        case(1, 34, 40, 2, 24, "a mask and a bias that wants no gradient, a query that sees nothing, values wider", RUN, torch.float16,
             given=("mask", "constant_bias"), Dv=40, right=0),
        *across(
            (torch.float32, torch.bfloat16),
            case(1, 131, 131, 2, 64, "a window that crosses tiles", left=70, right=0),
            case(2, 70, 200, 4, 64, "keys before the first query, a window to the left, sinks", given=("sinks",), G=1, left=64, right=0),
            case(1, 130, 40, 2, 32, "queries that see nothing, on both sides of those that do", left=10, right=5),
            case(1, 33, 65, 1, 256, "the widest head, all at once", given=("sinks", "bias", "mask"), left=40, right=1, softcap=3.0, p=0.1),
        ),
        *across(
            FLOATS[1:],
            case(1, 67, 90, 2, 96, "dropout in rows of no whole counters", p=0.5, right=0),
            case(2, 65, 129, 3, 32, "a bias a head, for both batches", given=("bias",), **{"B'": 1}),
            case(1, 70, 160, 2, 64, "a window alone, two tiles of keys, the first cut on its left", RUN, G=1, left=60, right=3),
            case(2, 300, 290, 4, 128, "a window alone that crosses tiles on both sides, two heads a key head", G=2, left=130, right=20),
            case(1, 300, 700, 2, 128, "keys that no query sees, tiles of them, and lse's gradient", left=64, right=0),
            case(1, 700, 300, 2, 64, "queries that see nothing, blocks of them, on both sides", left=100, right=50),
            case(1, 450, 450, 2, 64, "a window over tiles, its left edge on no border", left=130, right=0),
            case(1, 384, 384, 1, 128, "a window of one tile, its edges on borders", left=127, right=0),
            case(2, 200, 333, 4, 128, "both edges in three tiles of keys, two heads read a key head", G=2, left=100, right=40),
            case(1, 300, 140, 2, 64, "queries that see nothing, whole tiles of them", right=0),
            case(1, 300, 140, 2, 128, "the same, and a window that the others' keys leave", left=30, right=5),
            case(1, 131, 131, 1, 64, "a window of one key", left=0, right=0),
            case(1, 257, 300, 2, 128, "a left edge alone", left=50),
            case(1, 129, 385, 1, 64, "a right edge alone, keys past the last tile", right=70),
            case(2, 140, 190, 2, 128, "neither, keys past the last tile"),
            case(1, 1024, 1024, 40, 128, "more tiles than multiprocessors, a window", left=300, right=0),
            case(4, 600, 600, 24, 64, "the same of several batches", G=3, left=200, right=10),
        ),
        case(2, 33, 70, 2, 128, "a bias for all heads, a cap", given=("bias",), softcap=5.0, **{"H'": 1}),
        *across(
            FLOATS[1:],
            case(2, 200, 333, 4, 128, "a mask of each head, two read a key head, on no border of tiles", RUN, given=("mask",), G=2),
            case(2, 333, 200, 3, 64, "one mask for all heads, queries that see nothing, causal", RUN, given=("mask",), right=0, Masks=1),
            case(1, 260, 300, 6, 128, "the same, three heads read a key head", given=("mask",), G=2, right=0, Masks=1),
            case(1, 700, 650, 2, 64, "documents, whole tiles that a mask hides", given=("mask",), Masks=1, Documents=3),
            case(1, 500, 650, 2, 128, "the same of fewer queries, causal", given=("mask",), right=0, Masks=1, Documents=3),
            case(1, 300, 290, 2, 64, "whole tiles of queries that see nothing, and of keys that nobody sees", given=("mask",), Hidden=140),
            case(1, 300, 290, 3, 64, "a mask in a window", given=("mask",), left=100, right=30),
            case(2, 1, 300, 6, 64, "one query over many keys, a window, sinks", RUN, given=("sinks",), G=2, left=200),
            case(1, 7, 215, 4, 128, "seven queries behind their keys, a window and a cap", RUN, G=1, left=100, right=0, softcap=3.0),
            case(2, 300, 290, 4, 64, "sinks in a window, queries that see nothing but theirs", given=("sinks",), G=2, left=130, right=0),
            case(1, 300, 420, 4, 128, "sinks and a cap, both edges in three tiles of keys", given=("sinks",), G=2, left=150, right=40, softcap=3.0),
            case(1, 400, 400, 4, 256, "a window over tiles of 64 keys, two heads a key head", G=2, left=100, right=0),
            case(2, 150, 290, 2, 256, "a cap and sinks, keys before the first query", given=("sinks",), right=0, softcap=3.0),
            case(1, 1024, 1024, 40, 256, "more tiles than multiprocessors, a window of the widest heads", G=4, left=300, right=0),
            case(1, 330, 200, 2, 64, "a cap, a mask and sinks, causal", given=("mask", "sinks"), right=0, softcap=5.0, Masks=1),
        ),
        case(1, 150, 200, 4, 128, "a mask and a cap", dtype=torch.bfloat16, given=("mask",), G=2, softcap=5.0, right=0),
        case(2, 66, 70, 2, 80, "a mask, sinks, dropout", given=("mask", "sinks"), p=0.1),
        case(1, 40, 70, 2, 192, "values of another width, a mask", dtype=torch.bfloat16, given=("mask",), Dv=128),
        case(1, 5, 9, 2, 16, "all dropped", p=1.0),
        case(0, 5, 9, 2, 16, "no batch", given=("sinks", "bias")),
        case(1, 5, 0, 2, 16, "no keys: zeros, and the sink in lse", given=("sinks",)),
        case(1, 0, 5, 2, 16, "no queries", dtype=torch.bfloat16, given=("sinks", "bias")),
        case(1, 16384, 16384, 16, 128, "acceptance: a window of 4096", left=4095, right=0, **BF16),
        case(4, 4096, 4096, 16, 128, "a soft cap, causal", softcap=50.0, right=0, **BF16),
        case(4, 2048, 2048, 64, 64, "sinks and a window of 128, eight heads a key head", given=("sinks",), G=8, left=127, right=0, **BF16),
        case(2, 4096, 4096, 64, 64, "the same of the layers without a window", given=("sinks",), G=8, right=0, **BF16),
        case(2, 8192, 8192, 16, 256, "a window of 1024, the widest heads, two a key head", G=8, left=1023, right=0, **BF16),
        case(2, 4096, 4096, 16, 256, "a soft cap, the widest heads, two a key head", G=8, softcap=50.0, right=0, **BF16),
        case(4, 2048, 2048, 16, 128, "dropout", p=0.1, right=0, **BF16),
        case(4, 2048, 2048, 16, 64, "a bias for all batches, its gradient too", given=("bias",), **BF16, **{"B'": 1}),
        case(4, 4096, 4096, 16, 128, "a mask", given=("mask",), **BF16),
        case(4, 4096, 4096, 16, 128, "four documents, one mask for all heads", given=("mask",), Masks=1, Documents=4, **BF16),
        case(32, 512, 512, 12, 64, "BERT's, one mask for all heads", given=("mask",), Masks=1, **BF16),
    ),
    peer=torch_options,
    validate=validate,
    unsaid={**UNSAID, "B'": "B", "H'": "H"},
    families=(),
    flops=lambda d: 2 * pairs(d) * (d["D"] + d["Dv"]),
    autocast=True,
    backward=Backward(
        attention_options_backward,
        grads=("q", "k", "v", "sinks", "bias"),
        flops=lambda d: pairs(d) * (6 * d["D"] + 4 * d["Dv"]),
    ),
)  # fmt: skip
