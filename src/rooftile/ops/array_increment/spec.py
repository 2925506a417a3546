import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Call, Case, OpSpec, across
from rooftile.ops.array_increment.reference import array_increment, array_increment_backward

X = Arg("...")


def _whole(call: Call, dims: object) -> None:
    value = call["value"]
    if not call["x"].is_floating_point() and (value != value // 1 or not -(2**31) <= value < 2**31):
        raise ValueError(f"array_increment: x is int32, value must be a whole number from {-(2**31)} to {2**31 - 1}, got {value}")


SPEC = OpSpec(
    "array_increment",
    array_increment,
    args={"x": X},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"...": (3, 67)}, use=("smoke", "check"), why="one tile, ragged"),
            Case({"...": (0,)}, use=("check",), why="nothing to increment"),
            Case({"...": (1,)}, params={"value": -2.0}, use=("check",), why="one element"),
            Case({"...": (4099,)}, params={"value": 0.5}, use=("check",), why="prime, beyond one tile"),
            Case({"...": (2**28,)}, use=("bench",), why="two tensors far beyond the L2"),
        ),
        Case({"...": (4099,)}, torch.int32, {"value": 3.0}, use=("check",), why="whole numbers, bit-exact"),
    ),
    dtypes=(*FLOATS, torch.int32),
    peer=array_increment,
    flops=lambda d: d["M"],
    validate=_whole,
    backward=Backward(array_increment_backward, grads=("x",), identity=True),
)
