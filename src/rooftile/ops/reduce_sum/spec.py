import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.reduce_sum.reference import reduce_sum, reduce_sum_backward


def backward_bytes(call, results):
    """x is an argument for its shape only."""
    return sum(t.numel() * t.itemsize for t in (call["dout"], *results))


SPEC = OpSpec(
    "reduce_sum",
    reduce_sum,
    args={"x": Arg("...")},
    returns={"out": Arg("")},
    cases=(
        *across(
            (*FLOATS, torch.float64),
            Case({"...": (3, 67)}, use=("smoke", "check"), why="less than one tile"),
            Case({"...": (0, 4)}, why="nothing: the sum is 0"),
            Case({"...": (1,)}, why="one element"),
            Case({"...": (12289,)}, why="prime: programs with one tile more than others, the last of one element"),
            Case({"...": (2, 3, 1031)}, why="leading axes"),
        ),
        Case(
            {"...": (20483,)}, torch.float32, use=("smoke", "check"), why="every program loops, also interpreted; the last tile is ragged"
        ),
        Case({"...": (1000003,)}, torch.float32, why="every program loops on a GPU; a chain of float32 additions would lose four digits"),
        *across((*FLOATS, torch.float64), Case({"...": (2**28,)}, use=("bench",), why="anchor")),
    ),
    peer=lambda x: x.sum(),
    dtypes=(*FLOATS, torch.float64),
    linear=True,
    flops=lambda d: d["M"],
    backward=Backward(reduce_sum_backward, grads=("x",), shaped=("x",), moved=backward_bytes),
)
