import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.gemm.reference import gemm, gemm_backward, linear, linear_backward

BENCH = (
    (8192, 8192, 8192, "anchor, compute bound"),
    (4096, 4096, 4096, "anchor, 1024 tiles of 128 x 128: few waves"),
    (16384, 14336, 4096, "anchor, an MLP of a 7B model"),
    (32768, 2304, 768, "GPT-2's qkv projection: a short K, the epilogue counts"),
    (32768, 50304, 768, "GPT-2's output layer: writes 3.3 GB"),
    (128, 8192, 8192, "anchor, one row of tiles: too few programs, the weight's bytes decide"),
)
CASES = (
    *across(
        FLOATS,
        Case({"M": 65, "N": 67, "K": 33}, use=("smoke", "check"), why="one past a tile of 64 in M, ragged in N and K"),
        Case({"M": 0, "N": 8, "K": 16}, why="no rows: an empty product, a zero gradient of b"),
        Case({"M": 1, "N": 1, "K": 1}, why="one element"),
        Case({"M": 127, "N": 129, "K": 65}, why="one short of a tile, one past it, a K tail of one"),
        Case({"M": 128, "N": 256, "K": 128}, why="whole tiles only: the unmasked K loop"),
        Case({"...": (2, 3, 5), "N": 48, "K": 40}, params={"bias": None}, why="leading axes, no bias, all below one tile"),
    ),
    *across(
        (torch.bfloat16, torch.float16),
        Case({"M": 72, "N": 88, "K": 104}, use=("smoke", "check"), why="rows of whole 16 bytes however they lie, less than a tile"),
        Case({"M": 200, "N": 328, "K": 136}, why="the same, several tiles each way, each with a ragged edge"),
    ),
    Case({"M": 263, "N": 521, "K": 1031}, torch.bfloat16, why="primes: several tiles each way, nothing divides"),
    Case({"M": 16, "N": 16, "K": 8209}, torch.bfloat16, params={"bias": None}, why="a long sum: float32 accumulation shows"),
    *(Case({"M": m, "N": n, "K": k}, torch.bfloat16, params={"bias": None}, use=("bench",), why=why) for m, n, k, why in BENCH),
)
OUT = Arg("... N")
FLOPS = {"flops": lambda d: 2 * d["M"] * d["N"] * d["K"], "linear": True, "autocast": True}

SPEC = OpSpec(
    "gemm",
    gemm,
    args={"a": Arg("... K"), "b": Arg("K N"), "bias": Arg("N", optional=True)},
    returns={"out": OUT},
    cases=CASES,
    peer=lambda a, b, bias=None: F.linear(a, b.t(), bias),
    backward=Backward(gemm_backward, grads=("a", "b", "bias"), spared=("bias",), flops=lambda d: 4 * d["M"] * d["N"] * d["K"]),
    **FLOPS,
)

# The same product with b stored as a layer stores it, [N, K]: its gradient then comes out in that layout, and weight.grad is
# dense without a copy. Through gemm(x, weight.t()) it would be a transposed view, and AccumulateGrad would clone it every step.
LINEAR = OpSpec(
    "linear",
    linear,
    args={"x": Arg("... K"), "weight": Arg("N K"), "bias": Arg("N", optional=True)},
    returns={"out": OUT},
    cases=(
        *CASES,
        Case(
            {"M": 32768, "N": 2304, "K": 768}, torch.bfloat16, use=("bench",), why="GPT-2's qkv projection as it is trained, with its bias"
        ),
    ),
    peer=F.linear,
    backward=Backward(linear_backward, grads=("x", "weight", "bias"), spared=("bias",), flops=lambda d: 4 * d["M"] * d["N"] * d["K"]),
    **FLOPS,
)
