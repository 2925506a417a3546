import torch

from rooftile.core.spec import Arg, Call, Case, OpSpec
from rooftile.ops.attention_mask.reference import attention_mask

DTYPES = ("bool", "float32", "bfloat16", "float16")


def validate(call: Call, dims: dict) -> None:
    if call["to"] not in DTYPES:
        raise ValueError(f"attention_mask: to is {call['to']!r}, it takes {', '.join(DTYPES)}")
    for name in ("queries", "keys"):
        if call[name] < 0:
            raise ValueError(f"attention_mask: {name} is {call[name]}, it must be 0 at least")
    if call["repeats"] < 1:
        raise ValueError(f"attention_mask: repeats is {call['repeats']}, it must be 1 at least")
    dims |= {"T": call["queries"], "S": call["keys"], "H": dims["G"] * call["repeats"]}


def lengths(shape, dtype, gen, dims):
    """From nothing to more keys than any case has: `drawn` cuts them to size."""
    return torch.randint(0, 1 << 20, shape, generator=gen, device=gen.device, dtype=dtype)


def drawn(call, case, gen):
    return call | {"lengths": call["lengths"] % (call["keys"] + 1)}


def how(queries: int, keys: int, causal: bool, repeats: int = 1, to: str = "bool") -> dict:
    return {"queries": queries, "keys": keys, "causal": causal, "repeats": repeats, "to": to}


RUN = ("smoke", "check")
SPEC = OpSpec(
    "attention_mask",
    attention_mask,
    args={"lengths": Arg("B G", make=lengths)},
    returns={"mask": Arg("B H T S", "@to")},
    cases=(
        *(Case({"B": 3, "G": 1}, torch.int64, how(7, 19, c, 1, to), use=RUN, why="ragged") for c in (False, True) for to in DTYPES),
        Case({"B": 2, "G": 3}, torch.int32, how(5, 33, True, 4), use=RUN, why="lengths of each key head, which 4 query heads share"),
        Case({"B": 2, "G": 1}, torch.int32, how(9, 4, True), why="more queries than keys: the first see nothing"),
        Case({"B": 2, "G": 1}, torch.int64, how(0, 4, True), why="no queries"),
        Case({"B": 2, "G": 1}, torch.int64, how(4, 0, False), why="no keys"),
        Case({"B": 2, "G": 2}, torch.int64, how(130, 1100, True, 2, "bfloat16"), why="several tiles"),
        *(Case({"B": 3, "G": 1}, torch.int64, how(37, 48, c, 1, t), use=RUN, why="whole 16 bytes") for c in (False, True) for t in DTYPES),
        Case({"B": 2, "G": 3}, torch.int32, how(150, 64, True, 4), use=RUN, why="whole 16 bytes, several blocks a head"),
        Case({"B": 2, "G": 1}, torch.int32, how(70, 16, True, 2), use=RUN, why="whole 16 bytes, more queries than keys, a vector a row"),
        Case({"B": 2, "G": 1}, torch.int64, how(5, 4112, True), use=RUN, why="a vector more than a block has threads"),
        Case({"B": 8, "G": 1}, torch.int64, how(4096, 4096, True), use=("bench",), why="a padded batch"),
        Case({"B": 2, "G": 8}, torch.int64, how(2048, 4096, True, 4, "bfloat16"), use=("bench",), why="additive, for every query head"),
    ),
    dtypes=(torch.int64, torch.int32),
    families=(),
    exact=True,
    draw_with=drawn,
    validate=validate,
    peer=attention_mask,
    flops=lambda d: 2 * d["B"] * d["H"] * d["T"] * d["S"],
)
