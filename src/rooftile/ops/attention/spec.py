import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.attention.reference import attention, attention_backward, sdpa

Q, K = Arg("B T H D"), Arg("B S G D")
UNSAID = {"G": "H", "Dv": "D"}  # a head its own keys, values as wide as keys


def shared_evenly(name, dims):
    if dims["H"] % dims["G"] if dims["G"] else dims["H"]:
        raise ValueError(f"{name}: H is {dims['H']} in q, which is no multiple of G = {dims['G']} in k")


def validate(call, dims):
    shared_evenly("attention", dims)


def case(b, t, s, h, d, causal, why, use=("check",), dtype=torch.float32, **more):
    return Case({"B": b, "T": t, "S": s, "H": h, "D": d, **more}, dtype, {"causal": causal, "scale": d**-0.5}, use, why)


def pairs(d):
    """Query-key pairs that meet. Causal counts the area under the diagonal: half of T S where T = S."""
    t, s = d["T"], d["S"]
    seen = t * s if not d["causal"] else t * s - t * t / 2 if t <= s else s * s / 2
    return d["B"] * d["H"] * seen


BENCH = (
    (32, 1024, 12, 64, "GPT-2 124M's training step: short, half of the tiles lie on or beside the diagonal"),
    (16, 1024, 16, 128, "anchor, short with wide heads"),
    (4, 4096, 16, 128, "anchor"),
    (16, 1024, 32, 64, "anchor, short with narrow heads"),
    (4, 4096, 32, 64, "anchor: exponentials weigh as much as products"),
    (1, 16384, 32, 64, "one long sequence of narrow heads"),
    (1, 16384, 16, 128, "anchor, one long sequence"),
    (4, 4096, 8, 256, "the widest heads"),
    (1, 16384, 8, 256, "the widest heads, one long sequence"),
)
BF16 = {"use": ("bench",), "dtype": torch.bfloat16}

SPEC = OpSpec(
    "attention",
    attention,
    args={"q": Q, "k": K, "v": Arg("B S G Dv")},
    returns={"out": Arg("B T H Dv"), "lse": Arg("B H T", dtype="f32")},
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
            case(1, 70, 90, 2, 80, True, "a head dimension padded to 128"),
            case(2, 66, 100, 6, 40, True, "three heads read a key head, values wider than keys", G=2, Dv=72),
            case(1, 130, 70, 4, 96, False, "four heads read one key head", G=1),
            case(1, 67, 45, 2, 160, True, "a head dimension padded to 256, queries that see nothing"),
            case(1, 33, 65, 1, 256, True, "the widest head"),
        ),
        case(1, 37, 50, 2, 24, True, "two heads read a key head, values wider than keys", use=("smoke", "check"), G=1, Dv=40),
        case(1, 20, 40, 2, 192, True, "latent attention's 192 and 128", use=("smoke", "check"), dtype=torch.float16, G=1, Dv=128),
        case(1, 521, 1031, 2, 64, True, "primes, many tiles, shifted diagonal", dtype=torch.bfloat16),
        case(1, 1031, 1031, 2, 128, False, "primes, many tiles", dtype=torch.bfloat16),
        *across(
            FLOATS[1:],
            case(1, 131, 131, 3, 64, True, "three heads, a second tile of 3 queries"),
            case(2, 389, 389, 2, 64, False, "more tiles than whole groups of queries, keys past the last tile"),
            case(3, 300, 300, 2, 128, True, "a tile of 44 queries, wide heads"),
            case(1, 67, 150, 2, 64, True, "a block of 128 queries cut short, two tiles of keys, shifted diagonal", use=("smoke", "check")),
            case(1, 130, 67, 1, 128, True, "three blocks of 64 queries, the first sees nothing, wide heads", use=("smoke", "check")),
            case(1, 300, 300, 6, 64, True, "three heads read a key head, tiles cut short", G=2),
            case(2, 257, 257, 4, 128, False, "all heads read one key head, one row past the tiles", G=1),
            case(1, 1024, 1024, 24, 64, True, "more work than multiprocessors: programs take several tiles each"),
            case(1, 67, 67, 1, 256, True, "the widest heads, a tile of 3 queries", use=("smoke", "check")),
            case(1, 70, 70, 2, 192, False, "latent attention's heads, two read a key head", use=("smoke", "check"), G=1, Dv=128),
            case(2, 389, 389, 2, 256, False, "the widest heads, keys past the last tile"),
            case(1, 300, 257, 4, 256, True, "the widest heads, two read a key head, queries that see nothing", G=2),
            case(1, 200, 333, 3, 192, True, "latent attention's heads, shifted diagonal", Dv=128),
            case(1, 1024, 1024, 24, 192, False, "latent attention's heads, more work than multiprocessors", Dv=128),
            case(1, 1024, 1024, 24, 256, True, "the widest heads, more work than multiprocessors"),
            case(2, 1, 300, 6, 96, False, "one query over many keys, three heads read a key head", use=("smoke", "check"), G=2),
            case(2, 7, 515, 4, 128, True, "seven queries behind their keys, four heads read one key head", G=1),
            case(1, 16, 9, 2, 96, True, "sixteen queries, the first 7 see nothing"),
            case(1, 3, 5003, 2, 256, True, "the widest heads over a prime of keys"),
        ),
        case(1, 8192, 8192, 64, 128, True, "acceptance: eight heads read a key head", G=8, **BF16),
        case(1, 8192, 8192, 16, 192, True, "latent attention's training shape", Dv=128, **BF16),
        case(1, 4, 65536, 32, 128, True, "four queries over one long sequence", G=8, **BF16),
        case(16, 8, 8192, 32, 128, True, "eight queries at once, as speculation asks", G=8, **BF16),
        case(1, 2048, 16384, 32, 128, True, "a chunk of a prefill over what came before it", G=8, **BF16),
        case(16, 512, 2048, 16, 64, False, "a decoder's queries over its encoder's keys", **BF16),
        *(case(b, t, t, h, d, c, why, **BF16) for b, t, h, d, why in BENCH for c in (True, False)),
    ),
    peer=sdpa,
    validate=validate,
    unsaid=UNSAID,
    families=(),  # scores of 1e4 and more leave a gradient no digits in any precision; tests/ops has the forward at such scores
    flops=lambda d: 2 * pairs(d) * (d["D"] + d["Dv"]),
    autocast=True,
    backward=Backward(attention_backward, grads=("q", "k", "v"), flops=lambda d: pairs(d) * (6 * d["D"] + 4 * d["Dv"])),
)
