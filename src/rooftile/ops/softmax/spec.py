from dataclasses import replace

import torch
from torch import Tensor

from rooftile.core.spec import FLOATS, Arg, Backward, Call, Case, OpSpec, across
from rooftile.ops.softmax.reference import (
    allowed,
    log_softmax,
    log_softmax_backward,
    masked_softmax,
    masked_softmax_backward,
    softmax,
    softmax_backward,
)

X = Arg("... N")
SMALL = [(1, 1024), (1, 8192), (64, 1024), (64, 8192)]
SHAPES = [(32768, 1024), (16384, 4096), (8192, 8192), (4096, 32768), (1024, 131072)]

SPEC = OpSpec(
    "softmax",
    softmax,
    args={"x": X},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"...": (3, 5), "N": 67}, use=("smoke", "check"), why="ragged rows narrower than a tile"),
            Case({"M": 5, "N": 264}, use=("smoke", "check"), why="rows of whole 16 bytes, and of no power of two"),
            Case({"M": 0, "N": 8}, why="no rows"),
            Case({"M": 3, "N": 1}, why="one column: all ones, all-zero gradient"),
            Case({"...": (2, 3, 5), "N": 128}, why="leading axes, a full tile"),
            Case({"M": 7, "N": 1025}, why="one column into the next power of two"),
        ),
        Case(
            {"M": 3, "N": 8200},
            torch.bfloat16,
            use=("smoke", "check"),
            why="a row that a block shares, 16 bytes into the next power of two",
        ),
        Case({"M": 2, "N": 50257}, torch.bfloat16, why="a vocabulary, not a power of two"),
        Case({"M": 2, "N": 131072 + 1}, torch.float32, why="longer than a row in registers"),
        Case({"M": 301, "N": 32768}, torch.bfloat16, why="more wide rows than blocks a device holds: each takes several"),
        Case({"M": 5, "N": 131072}, torch.float32, why="rows that a cluster of blocks shares"),
        *(Case({"M": m, "N": n}, torch.bfloat16, use=("bench",), why="anchor") for m, n in SHAPES),
        *(Case({"M": m, "N": n}, torch.bfloat16, use=("bench", "call"), why="few rows") for m, n in SMALL),
    ),
    peer=lambda x: torch.softmax(x, -1),
    families=("scaled_rows", "large", "all_equal", "nan", "masked_rows"),
    flops=lambda d: 5 * d["M"] * d["N"],
    backward=Backward(softmax_backward, grads=("x",), flops=lambda d: 4 * d["M"] * d["N"]),
)

LOG = replace(
    SPEC,
    name="log_softmax",
    reference=log_softmax,
    peer=lambda x: torch.log_softmax(x, -1),
    families=("scaled_rows", "large", "all_equal", "nan"),  # a class that is masked has -inf, and its gradient is none
    backward=Backward(log_softmax_backward, grads=("x",), flops=lambda d: 4 * d["M"] * d["N"]),
)

SCORES = Arg("B H T N")
FREE, CAUSAL = {"scale": 0.125, "causal": False}, {"scale": 0.125, "causal": True}
MASKED = {"masked": True}
RUN = ("smoke", "check")


def drawn(shape, dtype, gen, dims):
    """Two of three columns, and of the first row none."""
    mask = torch.rand(shape, generator=gen, device=gen.device) < 2 / 3
    if mask.numel():
        mask.view(-1, shape[-1])[0] = False
    return mask


def covered(call, case, gen):
    """`masked`: one mask for all heads, or one of its own for every head where the case says so."""
    kind = case.params.get("masked")
    if not kind:
        return call | {"mask": None}
    return call if kind == "heads" else call | {"mask": call["mask"][:, :1].expand(call["x"].shape)}


def torch_masked_softmax(x, mask, scale, causal):
    scores = (x.float() * scale).masked_fill(~allowed(x, mask, causal), float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0).to(x.dtype)


def seen(x: Tensor, causal: bool) -> int:
    """Elements that rows may look at, a mask aside."""
    b, h, t, n = x.shape
    return sum(min(n, max(0, i + 1 + n - t)) for i in range(t)) * b * h if causal else x.numel()


def looked_at(call: Call, results) -> int:
    """Of causal rows what they may look at; a mask for all heads once."""
    x, mask = call["x"], call["mask"]
    read = seen(x, call["causal"])
    masks = 0 if mask is None else read // (x.shape[1] if mask.stride(1) == 0 else 1)
    return read * x.itemsize + masks + sum(r.numel() * r.itemsize for r in results)


def looked_at_again(call: Call, results) -> int:
    out = call["out"]
    return (2 * seen(out, call["causal"]) + out.numel()) * out.itemsize


def scores(b, h, t, n):
    return dict(zip("BHTN", (b, h, t, n)))


MASK = OpSpec(
    "masked_softmax",
    masked_softmax,
    args={"x": SCORES, "mask": Arg("B H T N", "bool", make=drawn, optional=True)},
    returns={"out": SCORES},
    cases=(
        *across(
            FLOATS,
            Case(scores(2, 3, 5, 19), params={**FREE, **MASKED}, use=RUN, why="one mask for all heads, a row with nothing"),
            Case(scores(1, 2, 23, 17), params=CAUSAL, use=RUN, why="more queries than keys: the first see nothing"),
            Case(
                scores(2, 2, 11, 24),
                params={**CAUSAL, "masked": "heads"},
                use=RUN,
                why="both masks, one for each head; rows of whole 16 bytes",
            ),
            Case(scores(1, 1, 0, 8), params=FREE, why="no rows"),
            Case(scores(1, 2, 7, 1), params=CAUSAL, why="one column"),
        ),
        Case(scores(1, 1, 2, 16400), torch.float32, {**FREE, **MASKED}, use=RUN, why="longer than a row in registers"),
        Case(scores(2, 3, 130, 257), torch.bfloat16, CAUSAL, why="several tiles"),
        Case(scores(1, 2, 1100, 2048), torch.bfloat16, {**CAUSAL, **MASKED}, why="rows that a block shares, causal ones of many lengths"),
        Case(scores(1, 3, 2, 131072), torch.bfloat16, {**FREE, **MASKED}, why="longer than shared memory holds"),
        Case(scores(8, 16, 1024, 1024), torch.bfloat16, CAUSAL, use=("bench",), why="scores of a causal model"),
        Case(scores(8, 16, 1024, 1024), torch.bfloat16, {**FREE, **MASKED}, use=("bench",), why="a padded batch"),
    ),
    peer=torch_masked_softmax,
    families=("scaled_rows", "large", "all_equal", "nan"),
    draw_with=covered,
    moved=looked_at,
    flops=lambda d: 7 * d["B"] * d["H"] * d["T"] * d["N"],
    backward=Backward(masked_softmax_backward, grads=("x",), moved=looked_at_again, flops=lambda d: 5 * d["B"] * d["H"] * d["T"] * d["N"]),
)
