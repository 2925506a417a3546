import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.attention.options_spec import check_numbers, faint, seed, seen
from rooftile.ops.attention.spec import shared_evenly
from rooftile.ops.attention.varlen_reference import attention_varlen, attention_varlen_backward, torch_varlen

RUN = ("smoke", "check")
FLOAT32_AND_16 = (torch.float32, torch.bfloat16)


def validate(call, dims):
    shared_evenly("attention_varlen", dims)
    if dims["B"] == 0 and (dims["M"] or dims["N"]):  # which is not for a CPU alone to see: tiles are listed by sequence
        raise ValueError(
            f"attention_varlen: there are no sequences, cu_seqlens_q has one offset, but {dims['M']} queries and {dims['N']} keys"
        )
    for name in ("max_seqlen_q", "max_seqlen_k"):
        if call[name] < 0:
            raise ValueError(f"attention_varlen: {name} is {call[name]}, and must be 0 or more")
    check_numbers("attention_varlen", call)


def offsets(rows, batches, spread):
    """Lengths from the shortest to the longest, `spread` times as long; among more than two the second has nothing."""
    weights = torch.logspace(0, 1, batches, base=spread, dtype=torch.float64)
    if batches > 2:
        weights[1] = 0
    return torch.cat([torch.zeros(1, dtype=torch.float64), weights.cumsum(0) / weights.sum() * rows]).round().long()


def ragged(call, case, gen):
    """Offsets that cover both tensors; where q and k have as many rows, the same ones."""
    call, where = dict(call), call["q"].device
    for n, x, spread in (("q", call["q"], 32.0), ("k", call["k"], 32.0 if len(call["q"]) == len(call["k"]) else 3.0)):
        cu = offsets(len(x), len(call[f"cu_seqlens_{n}"]) - 1, spread)
        call[f"cu_seqlens_{n}"] = cu.to(where, call[f"cu_seqlens_{n}"].dtype)
        call[f"max_seqlen_{n}"] = int(cu.diff().max()) if len(cu) > 1 else 0
    return call


def pairs(d):
    cu = [offsets(d[x], d["B"], 32.0).diff().tolist() for x in "MN"]
    return d["H"] * sum(seen(t, s, d["left"], d["right"]) for t, s in zip(*cu))


def case(b, m, n, h, d, why, use=("check",), dtype=torch.float32, given=(), **more):
    letters = {x: v for x, v in more.items() if x[0].isupper()}
    numbers = {"scale": d**-0.5, "left": -1, "right": -1, "softcap": 0.0, "p": 0.0} | {x: v for x, v in more.items() if not x[0].isupper()}
    given = {*given, *(["seed"] if numbers["p"] else [])}
    params = {**{x: None for x in ("sinks", "seed") if x not in given}, "max_seqlen_q": m, "max_seqlen_k": n, **numbers}
    return Case({"B": b, "M": m, "N": n, "H": h, "D": d, **letters}, dtype, params, use, why)


Q, OFFSETS = Arg("M H D"), Arg("B+1", "i32|i64")
AROUND = ((131, 64, "4 and 127 rows"), (132, 128, "4 and 128 rows"), (133, 64, "4 and 129 rows"), (264, 64, "8 and 256 rows"),
          (265, 128, "8 and 257 rows"))  # fmt: skip
BF16 = {"use": ("bench",), "dtype": torch.bfloat16}

SPEC = OpSpec(
    "attention_varlen",
    attention_varlen,
    args={
        "q": Q,
        "k": Arg("N G D"),
        "v": Arg("N G Dv"),
        "cu_seqlens_q": OFFSETS,
        "cu_seqlens_k": OFFSETS,
        "sinks": Arg("H", "io|f32", optional=True),
        "seed": Arg("", "i64", make=seed, optional=True),
    },
    returns={"out": Arg("M H Dv"), "lse": Arg("H M", dtype="f32", make=faint)},
    cases=(
        case(3, 45, 60, 2, 16, "a sequence without queries and keys, two heads a key head, a window, sinks", RUN, given=("sinks",), G=1, left=9,
             right=0),
        case(2, 50, 50, 2, 24, "self-attention of two lengths, values wider, dropout", RUN, torch.float16, Dv=40, right=0, p=0.2),
        *across(
            FLOAT32_AND_16,
            case(5, 300, 300, 2, 64, "lengths around a tile, causal", right=0),
            case(4, 150, 260, 4, 32, "more keys than queries and fewer, a cap", G=2, softcap=3.0, right=0),
        ),
        *across(
            FLOATS[1:],
            case(3, 66, 90, 2, 64, "more keys than queries and fewer, a sequence without either", RUN, right=0),
            *(case(2, m, m, 2, d, why, right=0) for m, d, why in AROUND),
            case(40, 500, 500, 4, 128, "forty lengths from 1 on, two heads read a key head", G=2, right=0),
            case(6, 700, 900, 4, 64, "no mask, all heads read one key head", G=1),
            case(5, 600, 400, 2, 128, "queries that see nothing, a window", left=40, right=3),
            case(4, 900, 900, 2, 64, "a window over tiles", left=129, right=0),
            case(7, 3000, 3000, 8, 128, "more tiles than multiprocessors", right=0),
            case(7, 3000, 2000, 12, 64, "the same, three heads read a key head", G=4, left=500),
        ),
        case(3, 140, 140, 2, 96, "a window on both sides, all options", dtype=torch.bfloat16, given=("sinks",), left=20, right=30, softcap=4.0, p=0.1),
        *across(
            (torch.bfloat16, torch.float16),
            case(3, 130, 150, 2, 64, "a sequence without queries and keys, one of two tiles, two heads a key head", RUN, G=1, right=0),
            case(5, 700, 700, 4, 128, "lengths around a tile and past it, two heads a key head, causal", G=2, right=0),
            case(4, 500, 900, 2, 128, "more keys than queries and fewer, a window on both sides", left=100, right=40),
            case(6, 900, 500, 2, 64, "queries that see nothing, all keys seen by others"),
            case(9, 4096, 4096, 8, 64, "more tiles than multiprocessors, causal", G=4, right=0),
            case(5, 700, 650, 4, 64, "sinks in a window, queries that see theirs alone", given=("sinks",), G=2, left=90, right=0),
            case(4, 500, 500, 4, 128, "sinks and a cap, causal", given=("sinks",), G=2, right=0, softcap=3.0),
        ),
        case(3, 70, 70, 1, 256, "the widest head", dtype=torch.bfloat16, right=0),
        case(1, 33, 40, 2, 16, "one sequence"),
        case(3, 0, 5, 2, 16, "no queries at all", dtype=torch.bfloat16),
        case(0, 0, 0, 2, 64, "no sequences", dtype=torch.bfloat16, given=("sinks",), right=0),
        case(8, 40960, 40960, 8, 128, "acceptance: lengths from 512 to 16384, causal", right=0, **BF16),
        case(8, 40960, 40960, 8, 128, "the same without a mask, four heads a key head", G=2, **BF16),
    ),
    peer=torch_varlen,
    validate=validate,
    unsaid={"G": "H", "Dv": "D"},
    draw_with=ragged,
    families=(),
    flops=lambda d: 2 * pairs(d) * (d["D"] + d["Dv"]),
    autocast=True,
    backward=Backward(attention_varlen_backward, grads=("q", "k", "v", "sinks"), flops=lambda d: pairs(d) * (6 * d["D"] + 4 * d["Dv"])),
)  # fmt: skip
