import torch

from rooftile.core.spec import FLOATS, Arg, Call, Case, OpSpec, across
from rooftile.ops._shared.draw import cosines, sines
from rooftile.ops.concat_kv.reference import concat_kv

CACHE, NEW = Arg("B S G D", mutated=True), Arg("B T G D")
HALF, PAIRS, PLAIN = {"interleaved": False, "turned": True}, {"interleaved": True, "turned": True}, {"interleaved": False}
RUN = ("smoke", "check")


def validate(call: Call, dims: dict) -> None:
    if (call["cos"] is None) != (call["sin"] is None):
        raise ValueError(f"concat_kv: {'sin' if call['cos'] is None else 'cos'} is given without {'cos' if call['cos'] is None else 'sin'}")
    if call["cos"] is not None and 2 * dims["N"] > dims["D"]:
        raise ValueError(f"concat_kv: the table turns {dims['N']} pairs, but D={dims['D']} has {dims['D'] // 2}")


def room(shape, dtype, gen, dims):
    """Lengths that leave room for the new keys."""
    return torch.randint(0, max(1, dims["S"] - dims["T"] + 1), shape, generator=gen, device=gen.device, dtype=dtype)


def placed(call, case, gen):
    return call if case.params.get("turned") else call | {"cos": None, "sin": None}


def shape(b, t, g, d, n, s=20):
    return dict(zip("BTGDNSM", (b, t, g, d, n, s, s)))


def moved(call, results):
    """New keys and values in and out, and the rows of the tables that are asked for."""
    new = sum(2 * call[n].numel() * call[n].itemsize for n in ("k", "v"))
    tables = [call[n] for n in ("cos", "sin") if call[n] is not None]
    return new + sum(min(len(t), call["k"].shape[0] * call["k"].shape[1]) * t.shape[1] * t.itemsize for t in tables)


SPEC = OpSpec(
    "concat_kv",
    concat_kv,
    args={
        "k_cache": CACHE,
        "v_cache": CACHE,
        "k": NEW,
        "v": NEW,
        "lengths": Arg("B", "i32|i64", make=room),
        "cos": Arg("M N", "io|f32", make=cosines, optional=True),
        "sin": Arg("M N", "io|f32", make=sines, optional=True),
    },
    returns={},
    cases=(
        *across(
            FLOATS,
            Case(shape(3, 2, 3, 16, 8), params=PLAIN, use=RUN, why="a copy, whole 16 bytes"),
            Case(shape(2, 5, 3, 22, 7), params=HALF, use=RUN, why="ragged heads, part of them turned"),
            Case(shape(2, 3, 2, 48, 16), params=PAIRS, use=RUN, why="pairs, whole 16 bytes"),
            Case(shape(2, 0, 2, 16, 8), params=HALF, why="nothing to append"),
        ),
        Case(shape(2, 20, 1, 16, 8), torch.bfloat16, HALF, why="a full cache"),
        Case(shape(3, 7, 33, 128, 64, 300), torch.bfloat16, HALF, why="more heads than a program takes"),
        Case(shape(64, 1, 8, 128, 64, 2048), torch.bfloat16, HALF, use=("bench",), why="decoding: a token of each of 64 sequences"),
        Case(shape(4, 4096, 8, 128, 64, 8192), torch.bfloat16, HALF, use=("bench",), why="a prompt"),
        Case(shape(4, 4096, 8, 128, 64, 8192), torch.bfloat16, PLAIN, use=("bench",), why="a prompt whose keys are turned"),
    ),
    families=(),
    draw_with=placed,
    moved=moved,
    validate=validate,
    flops=lambda d: 3 * d["B"] * d["T"] * d["G"] * d["D"],
)
