import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.softmax.reference import softmax, softmax_backward

X = Arg("... N")
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
    ),
    peer=lambda x: torch.softmax(x, -1),
    families=("scaled_rows", "large", "all_equal", "nan", "masked_rows"),
    flops=lambda d: 5 * d["M"] * d["N"],
    backward=Backward(softmax_backward, grads=("x",), flops=lambda d: 4 * d["M"] * d["N"]),
)
