import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.dropout.reference import dropout, dropout_backward

X = Arg("...")


def seed(shape, dtype, gen, dims):
    """All 64 bits: a kernel that loses the upper half of the key must fail."""
    return torch.randint(-(2**63), 2**63 - 1, shape, dtype=dtype, generator=gen, device=gen.device)


def validate(call, dims):
    if not 0 <= call["p"] <= 1:
        raise ValueError(f"dropout: p is {call['p']}, it lies between 0 and 1")


# No peer: the gate measures PyTorch's error on the same mask, and F.dropout draws another one.
SPEC = OpSpec(
    "dropout",
    dropout,
    args={"x": X, "seed": Arg("", "i64", make=seed)},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"...": (3, 67)}, params={"p": 0.1}, use=("smoke", "check"), why="201 elements: the last counter is used by one lane"),
            Case({"...": (0, 4)}, params={"p": 0.5}, why="nothing to drop"),
            Case({"...": (1,)}, params={"p": 0.0}, why="one element, kept"),
            Case({"...": (5,)}, params={"p": 1.0}, why="all dropped, though 1/(1-p) is infinite"),
            Case({"...": (4099,)}, params={"p": 0.5}, why="prime, into a new tile"),
        ),
        Case({"...": (16384, 14336)}, torch.bfloat16, {"p": 0.1}, use=("bench",), why="anchor"),
        Case({"...": (32768, 768)}, torch.bfloat16, {"p": 0.1}, use=("bench",), why="GPT-2's training step"),
    ),
    validate=validate,
    flops=lambda d: d["M"],
    backward=Backward(dropout_backward, grads=("x",), flops=lambda d: d["M"]),
)
