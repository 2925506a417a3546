from dataclasses import replace

import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Call, Case, OpSpec, across, index
from rooftile.ops._shared.draw import cosines, sines
from rooftile.ops.rope.reference import rope, rope_backward, rope_overwrite

Q, K = Arg("B T H D"), Arg("B T G D")
HALF, PAIRS = {"interleaved": False}, {"interleaved": True}
GIVEN = {**HALF, "given": True}


def placed(call, case, gen):
    """Tables are float32 but where the case says narrow."""
    if case.params.get("table") == "narrow":
        call |= {n: call[n].to(call["q"].dtype) for n in ("cos", "sin")}
    return call if case.params.get("given") else call | {"positions": None}


def validate(call: Call, dims: dict) -> None:
    if 2 * dims["N"] > dims["D"]:
        raise ValueError(f"rope: the table turns {dims['N']} pairs, but D={dims['D']} has {dims['D'] // 2}")
    if call["positions"] is None and dims["T"] > dims["S"]:
        raise ValueError(f"rope: there are {dims['T']} tokens, but the table has {dims['S']} rows")


def torch_rope(q, k, cos, sin, positions, interleaved):
    """As models write it: tables looked up, halves swapped, in float32 and rounded once."""
    n, at = cos.shape[1], slice(q.shape[1]) if positions is None else positions
    c, s = (t[at].float().unsqueeze(-2) for t in (cos, sin))

    def turned(x):
        if interleaved:
            a, b = x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2]
            head = torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)
        else:
            a, b = x[..., :n], x[..., n : 2 * n]
            head = torch.cat([a * c - b * s, a * s + b * c], -1)
        return torch.cat([head, x[..., 2 * n :]], -1).to(x.dtype)

    return turned(q), turned(k)


ARGS = {
    "q": Q,
    "k": K,
    "cos": Arg("S N", "io|f32", make=cosines),
    "sin": Arg("S N", "io|f32", make=sines),
    "positions": Arg("B T", "i64", make=index("S"), optional=True),
}


def shape(b, t, h, g, d, n, s=64):
    return dict(zip("BTHGDNS", (b, t, h, g, d, n, s)))


RUN = ("smoke", "check")
SMALL = (
    *across(
        FLOATS,
        Case(shape(2, 5, 3, 1, 16, 8), params=HALF, use=RUN, why="grouped heads, whole 16 bytes"),
        Case(shape(2, 5, 3, 2, 22, 7), params=PAIRS, use=RUN, why="ragged heads, part of them turned"),
        Case(shape(3, 7, 2, 2, 22, 7), params=GIVEN, use=RUN, why="a position of its own for every token"),
        Case(shape(2, 3, 4, 2, 48, 16), params=PAIRS, use=RUN, why="pairs, whole 16 bytes, part turned"),
        Case(shape(1, 0, 2, 2, 8, 4), params=HALF, why="no tokens"),
        Case(shape(2, 33, 5, 5, 80, 40), params=HALF, why="a head of no power of two"),
        Case(shape(1, 1, 1, 1, 2, 1), params=HALF, why="one pair"),
    ),
    *across(FLOATS[1:], Case(shape(2, 6, 5, 2, 32, 16), params={**PAIRS, "table": "narrow"}, use=RUN, why="tables of 16 bits")),
    Case(shape(2, 9, 3, 0, 64, 32), torch.bfloat16, GIVEN, why="queries alone"),
    Case(shape(1, 3, 70, 2, 256, 128), torch.bfloat16, HALF, why="more heads than a block has threads for, one each"),
    Case(
        shape(5, 40, 1, 0, 16, 8), torch.bfloat16, HALF, use=RUN, why="a vector of a head a token: as many tokens as a block has room for"
    ),
    Case(shape(1, 61, 37, 3, 256, 128), torch.bfloat16, HALF, why="more heads than a program takes, the widest head"),
    Case(shape(2, 40, 2, 1, 32, 0), torch.float32, HALF, why="nothing is turned: a copy"),
)
BENCH = (
    Case(shape(8, 4096, 32, 8, 128, 64, 4096), torch.bfloat16, HALF, use=("bench",), why="anchor"),
    Case(shape(8, 4096, 32, 8, 128, 64, 4096), torch.bfloat16, PAIRS, use=("bench",), why="the same, complex pairs"),
    Case(shape(4, 4096, 32, 8, 64, 32, 4096), torch.bfloat16, HALF, use=("bench",), why="a Llama of 1.2B, heads of 64"),
    Case(shape(8, 4096, 16, 16, 80, 16, 4096), torch.bfloat16, GIVEN, use=("bench",), why="two fifths of a head turned, positions given"),
    Case(shape(64, 1, 32, 8, 128, 64, 4096), torch.bfloat16, GIVEN, use=("bench",), why="decoding: a token of each of 64 sequences"),
)


def moved(call, results):
    """Queries and keys in and out, and the rows of the tables that are asked for, once."""
    heads = [call[n] for n in ("q", "k") if n in call] or [call[n] for n in ("dq_out", "dk_out")]
    b, t = heads[0].shape[:2]
    rows = t if call["positions"] is None else min(b * t, len(call["cos"]))
    turned = sum(2 * x.numel() * x.itemsize for x in heads)
    return (
        turned
        + rows * call["cos"].shape[1] * (call["cos"].itemsize + call["sin"].itemsize)
        + (8 * b * t if call["positions"] is not None else 0)
    )


def _flops(d):
    return 6 * d["B"] * d["T"] * (d["H"] + d["G"]) * d["N"]


SPEC = OpSpec(
    "rope",
    rope,
    args=ARGS,
    returns={"q_out": Q, "k_out": K},
    cases=(*SMALL, *BENCH),
    peer=torch_rope,
    draw_with=placed,
    flops=_flops,
    moved=moved,
    validate=validate,
    backward=Backward(rope_backward, grads=("q", "k"), flops=_flops, moved=moved),
)
OVERWRITE = OpSpec(
    "rope_overwrite",
    rope_overwrite,
    args={**ARGS, "q": replace(Q, mutated=True), "k": replace(K, mutated=True)},
    returns={},
    cases=(*SMALL, BENCH[0], BENCH[4]),
    families=(),
    draw_with=placed,
    flops=_flops,
    moved=moved,
    validate=validate,
)
