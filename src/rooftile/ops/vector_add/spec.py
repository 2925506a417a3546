import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.vector_add.reference import vector_add, vector_add_backward

X = Arg("...")

SPEC = OpSpec(
    "vector_add",
    vector_add,
    args={"x": X, "y": X},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"...": (3, 67)}, use=("smoke", "check"), why="one tile, ragged"),
            Case({"...": (0, 4)}, use=("check",), why="nothing to add"),
            Case({"...": (1,)}, use=("check",), why="one element"),
            Case({"...": (4099,)}, use=("check",), why="prime, one element into a new tile"),
            Case({"...": (2**28,)}, use=("bench",), why="three tensors far beyond the L2"),
        ),
        Case({"...": (4099,)}, torch.int32, use=("check",), why="whole numbers, bit-exact"),
        Case({"...": (2**28,)}, torch.int32, use=("bench",), why="the bytes of float32, no floating point"),
    ),
    dtypes=(*FLOATS, torch.int32),
    peer=vector_add,
    linear=True,
    flops=lambda d: d["M"],
    backward=Backward(vector_add_backward, grads=("x y",), identity=True),
)
