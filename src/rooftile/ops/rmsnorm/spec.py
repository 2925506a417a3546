import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, positive
from rooftile.ops._shared.draw import exact_sums, parameters
from rooftile.ops.rmsnorm.reference import add_rmsnorm, add_rmsnorm_backward, rmsnorm, rmsnorm_backward

X, WEIGHT, ROW = Arg("... N"), Arg("N", "io|f32", make=positive, optional=True), Arg("...", "f32", saved=True)
EPS = {"eps": 1e-6}
GEMMA = {**EPS, "offset": 1.0}
MASTER = {**EPS, "affine": "float32"}
SMALL = [(1, 1024), (1, 8192), (64, 1024), (64, 8192)]  # decoding
SHAPES = [(32768, 1024), (16384, 4096), (8192, 8192), (4096, 16384), (2048, 65536)]


def torch_rmsnorm(x, weight, eps, offset):
    if weight is not None and offset:  # in float32: 1 + w of a small bfloat16 w would round
        weight = weight.float() + offset
    if weight is None or weight.dtype == x.dtype:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)  # the fused kernel takes one dtype


def torch_add_rmsnorm(x, residual, weight, eps, offset):
    sum = x + residual
    return torch_rmsnorm(sum, weight, eps, offset).to(x.dtype), sum


SPEC = OpSpec(
    "rmsnorm",
    rmsnorm,
    args={"x": X, "weight": WEIGHT},
    returns={"out": X, "rstd": ROW},
    cases=(
        *across(
            FLOATS,
            Case({"M": 29, "N": 67}, params=EPS, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 13, "N": 264}, params=EPS, use=("smoke", "check"), why="rows of whole 16 bytes, and of no power of two"),
            Case({"M": 0, "N": 8}, params=EPS, why="no rows: the weight's gradient is zeros"),
            Case({"M": 5, "N": 1}, params=EPS, why="one column: out is the sign of x times the weight, dx almost nothing"),
            Case({"...": (2, 3, 5), "N": 128}, params={**EPS, "affine": "none"}, why="leading axes, no weight"),
            Case({"M": 7, "N": 1025}, params=EPS, why="one column into the next power of two"),
        ),
        *across(FLOATS[1:], Case({"M": 11, "N": 768}, params=MASTER, use=("smoke", "check"), why="a float32 weight, rows of 16 bits")),
        Case({"M": 1, "N": 264}, torch.bfloat16, EPS, use=("smoke", "check"), why="one row: nothing is to be added up"),
        Case(
            {"M": 2, "N": 8209},
            torch.float32,
            GEMMA,
            use=("smoke", "check"),
            why="several tiles of the kernels that read a row twice; 1 + weight",
        ),
        Case({"M": 9, "N": 264}, torch.bfloat16, GEMMA, use=("smoke", "check"), why="1 + weight"),
        Case({"M": 1031, "N": 257}, torch.float32, EPS, why="every program of the persistent backward loops, the last one partly"),
        Case({"M": 3, "N": 8192}, torch.float32, EPS, why="the longest row of the persistent backward, in its widest dtype"),
        Case({"M": 3, "N": 65536 + 1}, torch.bfloat16, EPS, why="longer than a row in registers"),
        Case({"M": 2, "N": 262144}, torch.float32, EPS, why="the longest row promised"),
        Case({"M": 301, "N": 32768}, torch.bfloat16, EPS, why="more wide rows than blocks a device holds: each takes several"),
        Case({"M": 5, "N": 131072}, torch.bfloat16, EPS, why="rows that a cluster of blocks shares"),
        *(Case({"M": m, "N": n}, torch.bfloat16, EPS, use=("bench",), why="anchor") for m, n in SHAPES),
        *(Case({"M": m, "N": n}, torch.bfloat16, EPS, use=("bench", "call"), why="decoding") for m, n in SMALL),
        Case({"M": 32768, "N": 768}, torch.bfloat16, MASTER, use=("bench",), why="GPT-2's width, a float32 weight"),
    ),
    peer=torch_rmsnorm,
    draw_with=parameters,
    flops=lambda d: 4 * d["M"] * d["N"],  # square, add; scale, times weight
    backward=Backward(
        rmsnorm_backward,
        grads=("x", "weight"),
        flops=lambda d: 9 * d["M"] * d["N"],  # the normalised x 1, dweight 2, g 1, the row's sum 2, dx 3
    ),
)

ADD_SPEC = OpSpec(
    "add_rmsnorm",
    add_rmsnorm,
    args={"x": X, "residual": Arg("... N", "io|f32"), "weight": WEIGHT},
    returns={"out": X, "sum": Arg("... N", "=residual"), "rstd": ROW},
    cases=(
        *across(
            FLOATS,
            Case({"M": 29, "N": 67}, params=EPS, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 0, "N": 8}, params=EPS, why="no rows: the weight's gradient is zeros"),
            Case({"M": 5, "N": 1}, params=EPS, why="one column: dx is dsum and almost nothing more"),
            Case({"...": (2, 3, 5), "N": 128}, params={**EPS, "affine": "none"}, why="leading axes, no weight"),
        ),
        *across(FLOATS[1:], Case({"M": 11, "N": 768}, params=MASTER, use=("smoke", "check"), why="a float32 stream and weight")),
        Case(
            {"M": 2, "N": 8209},
            torch.float32,
            GEMMA,
            use=("smoke", "check"),
            why="several tiles of the kernels that read a row twice; 1 + weight",
        ),
        Case({"M": 9, "N": 264}, torch.bfloat16, GEMMA, use=("smoke", "check"), why="1 + weight"),
        Case({"M": 1031, "N": 257}, torch.float32, EPS, why="every program of the persistent backward loops, the last one partly"),
        Case({"M": 3, "N": 20001}, torch.bfloat16, MASTER, why="a float32 stream longer than a row in registers"),
        Case({"M": 3, "N": 8192}, torch.float32, EPS, why="the longest row of the persistent backward, in its widest dtype"),
        Case({"M": 3, "N": 65536 + 1}, torch.bfloat16, EPS, why="longer than a row in registers"),
        Case({"M": 16384, "N": 4096}, torch.bfloat16, EPS, use=("bench",), why="anchor"),
        Case({"M": 32768, "N": 768}, torch.bfloat16, MASTER, use=("bench",), why="GPT-2's width, a float32 stream and weight"),
    ),
    peer=torch_add_rmsnorm,
    draw_with=exact_sums,
    flops=lambda d: 5 * d["M"] * d["N"],
    backward=Backward(add_rmsnorm_backward, grads=("x residual", "weight"), dtypes={"dx": "=sum"}, flops=lambda d: 10 * d["M"] * d["N"]),
)
