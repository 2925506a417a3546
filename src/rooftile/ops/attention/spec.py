import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.attention.reference import attention, attention_backward, sdpa

Q, K = Arg("B T H D"), Arg("B S H D")


def case(b, t, s, h, d, causal, why, use=("check",), dtype=torch.float32):
    return Case({"B": b, "T": t, "S": s, "H": h, "D": d}, dtype, {"causal": causal, "scale": d**-0.5}, use, why)


def pairs(d):
    """Query-key pairs that meet. Causal counts the area under the diagonal: half of T S where T = S."""
    t, s = d["T"], d["S"]
    seen = t * s if not d["causal"] else t * s - t * t / 2 if t <= s else s * s / 2
    return d["B"] * d["H"] * seen


BENCH = (
    (32, 1024, 12, 64, "GPT-2 124M's training step: short, half of the tiles lie on or beside the diagonal"),
    (16, 1024, 16, 128, "anchor, short with wide heads"),
    (4, 4096, 16, 128, "anchor"),
    (4, 4096, 32, 64, "anchor: exponentials weigh as much as products"),
    (1, 16384, 16, 128, "anchor, one long sequence"),
)

SPEC = OpSpec(
    "attention",
    attention,
    args={"q": Q, "k": K, "v": K},
    returns={"out": Q, "lse": Arg("B H T", dtype="f32")},
    cases=(
        *across(
            FLOATS,
            case(1, 67, 67, 2, 32, True, "ragged tiles on the diagonal, two heads", use=("smoke", "check")),
            case(1, 5, 131, 1, 16, False, "fewer queries than a tile, keys past two tiles", use=("smoke", "check")),
            case(1, 1, 1, 1, 16, False, "one query, one key: out is v"),
            case(0, 8, 8, 2, 64, True, "no batch"),
            case(2, 128, 128, 2, 64, True, "whole tiles only"),
            case(1, 129, 257, 2, 64, True, "one past the tiles; keys before the first query, so the diagonal is shifted"),
            case(1, 200, 65, 1, 64, True, "more queries than keys: the first 135 see nothing and are zero"),
            case(2, 131, 127, 3, 128, False, "primes, wide heads"),
            case(1, 70, 90, 2, 80, True, "a head dimension padded to 128", use=("smoke", "check")),
        ),
        case(1, 521, 1031, 2, 64, True, "primes, many tiles, shifted diagonal", dtype=torch.bfloat16),
        case(1, 1031, 1031, 2, 128, False, "primes, many tiles", dtype=torch.bfloat16),
        *across(
            FLOATS[1:],
            case(1, 131, 131, 3, 64, True, "three heads, a second tile of 3 queries"),
            case(2, 389, 389, 2, 64, False, "more tiles than whole groups of queries, keys past the last tile"),
            case(3, 300, 300, 2, 128, True, "a tile of 44 queries, wide heads"),
            case(1, 67, 150, 2, 64, True, "a block of 128 queries cut short, two tiles of keys, shifted diagonal", use=("smoke", "check")),
            case(1, 130, 67, 1, 128, True, "three blocks of 64 queries, the first sees nothing, wide heads", use=("smoke", "check")),
            case(1, 1024, 1024, 24, 64, True, "more work than multiprocessors: programs take several tiles each"),
        ),
        *(case(b, t, t, h, d, c, why, ("bench",), torch.bfloat16) for b, t, h, d, why in BENCH for c in (True, False)),
    ),
    peer=sdpa,
    families=(),  # scores of 1e4 and more leave a gradient no digits in any precision; tests/ops has the forward at such scores
    flops=lambda d: 4 * pairs(d) * d["D"],
    autocast=True,
    backward=Backward(attention_backward, grads=("q", "k", "v"), flops=lambda d: 10 * pairs(d) * d["D"]),
)
