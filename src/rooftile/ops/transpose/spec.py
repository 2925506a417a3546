import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.transpose.reference import transpose, transpose_backward

SQUARE = {"N": 16384, "K": 16384}

SPEC = OpSpec(
    "transpose",
    transpose,
    args={"x": Arg("... N K")},
    returns={"out": Arg("... K N")},
    cases=(
        *across(
            FLOATS,
            Case({"N": 67, "K": 131}, use=("smoke", "check"), why="primes: ragged tiles on both sides"),
            Case({"...": (2, 3), "N": 5, "K": 37}, use=("smoke", "check"), why="a batch of matrices smaller than a tile"),
            Case({"...": (2,), "N": 72, "K": 136}, use=("smoke", "check"), why="rows of whole 16-byte vectors, ragged tiles"),
            Case({"...": (0,), "N": 4, "K": 8}, why="no matrices"),
            Case({"N": 0, "K": 8}, why="no rows"),
            Case({"N": 1, "K": 1031}, why="one row becomes one column"),
            Case({"N": 1031, "K": 1}, why="one column becomes one row"),
            Case({"N": 256, "K": 128}, why="full tiles"),
        ),
        Case({"...": (3,), "N": 129, "K": 65}, torch.int32, why="integers, one row and one column into the next tile"),
        Case({"N": 68, "K": 36}, torch.int32, why="integers, whole vectors"),
        *across((torch.bfloat16, torch.float32), Case(SQUARE, use=("bench",), why="anchor")),
        Case({"...": (64,), "N": 1024, "K": 4096}, torch.bfloat16, use=("bench",), why="a batch of matrices"),
    ),
    peer=lambda x: x.transpose(-1, -2).contiguous(),
    dtypes=(*FLOATS, torch.int32),
    linear=True,
    backward=Backward(transpose_backward, grads=("x",)),
)
