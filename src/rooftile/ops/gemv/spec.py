import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.gemv.reference import gemv, gemv_backward

SHAPES = [(16384, 16384), (4096, 4096), (14336, 4096)]

SPEC = OpSpec(
    "gemv",
    gemv,
    args={"a": Arg("M K"), "x": Arg("K")},
    returns={"out": Arg("M")},
    cases=(
        *across(
            FLOATS,
            Case({"M": 67, "K": 131}, use=("smoke", "check"), why="primes: ragged rows, ragged columns"),
            Case({"M": 37, "K": 136}, use=("smoke", "check"), why="rows of whole 16-byte vectors, fewer than a warp takes"),
            Case({"M": 0, "K": 8}, why="no rows: the vector's gradient is zeros"),
            Case({"M": 8, "K": 0}, why="sums of nothing"),
            Case({"M": 7, "K": 1}, why="one column"),
            Case({"M": 128, "K": 256}, why="full tiles; the fewest rows whose gradients are made apart"),
            Case({"M": 203, "K": 1032}, why="gradients apart: a strip and a bit, blocks of the last 3 rows, of the last 8 columns"),
        ),
        Case({"M": 127, "K": 264}, torch.float32, why="the most rows whose gradients are made at once"),
        Case({"M": 3, "K": 8209}, torch.float32, use=("smoke", "check"), why="few wide rows: each is split over programs"),
        Case({"M": 3, "K": 40008}, torch.float16, why="few wide rows of whole vectors: slices, the last of them short"),
        Case({"M": 1, "K": 20011}, torch.bfloat16, why="one row: a dot product"),
        Case({"M": 1031, "K": 65}, torch.float16, why="a tall matrix: every program of the backward loops"),
        *(Case({"M": m, "K": k}, t, use=("bench",), why="anchor") for m, k in SHAPES for t in (torch.float16, torch.float32)),
        Case({"M": 16, "K": 4194304}, torch.bfloat16, use=("bench",), why="few wide rows"),
    ),
    peer=lambda a, x: torch.mv(a, x),
    linear=True,
    autocast=True,
    flops=lambda d: 2 * d["M"] * d["K"],
    backward=Backward(gemv_backward, grads=("a", "x"), flops=lambda d: 3 * d["M"] * d["K"]),
)
