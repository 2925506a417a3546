import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.linear_add.reference import linear_add, linear_add_backward


def drawn(call, case, gen):
    """What only a case knows: float32 weights beside narrow data."""
    if case.params.get("parameters") == "float32":
        call["weight"] = call["weight"].float()
    return call


def torch_linear_add(x, weight, residual, bias):
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype)) + residual


BIASED = {"biased": "io"}

SPEC = OpSpec(
    "linear_add",
    linear_add,
    args={
        "x": Arg("... K"),
        "weight": Arg("N K", "io|f32"),
        "residual": Arg("... N"),
        "bias": Arg("N", "io|f32", optional=True, word="biased"),
    },
    returns={"out": Arg("... N")},
    cases=(
        *across(
            FLOATS,
            Case({"M": 65, "N": 67, "K": 33}, use=("smoke", "check"), why="ragged everywhere"),
            Case({"M": 24, "N": 40, "K": 32}, use=("smoke", "check"), why="rows of whole 16 bytes"),
            Case({"M": 0, "N": 8, "K": 16}, why="no rows: a zero gradient of the weight"),
            Case({"M": 5, "N": 8, "K": 0}, why="sums of nothing: the residual"),
            Case({"...": (2, 3, 5), "N": 48, "K": 40}, why="leading axes"),
        ),
        *across(
            FLOATS,
            Case({"M": 65, "N": 67, "K": 33}, params=BIASED, use=("smoke", "check"), why="a bias, ragged everywhere"),
            Case({"M": 24, "N": 40, "K": 32}, params=BIASED, use=("smoke", "check"), why="a bias, rows of whole 16 bytes"),
            Case({"M": 0, "N": 8, "K": 16}, params=BIASED, why="no rows: a zero gradient of the bias"),
            Case({"M": 5, "N": 8, "K": 0}, params=BIASED, why="sums of nothing: the residual and the bias"),
            Case({"...": (2, 3, 5), "N": 48, "K": 40}, params=BIASED, why="a bias, leading axes"),
        ),
        Case({"M": 16, "N": 32, "K": 24}, torch.bfloat16, {"parameters": "float32", "biased": "f32"}, why="both float32 beside narrow data"),
        Case({"M": 263, "N": 264, "K": 136}, torch.bfloat16, BIASED, why="a bias, several tiles each way, prime rows"),
        Case({"M": 16, "N": 32, "K": 24}, torch.bfloat16, {"parameters": "float32"}, use=("smoke", "check"), why="a float32 weight beside narrow data"),
        Case({"M": 263, "N": 264, "K": 136}, torch.bfloat16, why="several tiles each way, prime rows"),
        Case({"M": 16384, "N": 2048, "K": 2048}, torch.bfloat16, use=("bench",), why="Llama 1.2B's heads into its stream, B=4 T=4096"),
        Case({"M": 16384, "N": 2048, "K": 8192}, torch.bfloat16, use=("bench",), why="its perceptron into its stream"),
        Case({"M": 32768, "N": 768, "K": 768}, torch.bfloat16, BIASED, use=("bench",), why="GPT-2's heads into its stream, B=32 T=1024"),
        Case({"M": 32768, "N": 768, "K": 3072}, torch.bfloat16, BIASED, use=("bench",), why="the last layer of its perceptron"),
    ),
    peer=torch_linear_add,
    draw_with=drawn,
    linear=True,
    autocast=True,
    flops=lambda d: 2 * d["M"] * d["N"] * d["K"],
    backward=Backward(
        linear_add_backward,
        grads=("x", "weight", "bias"),
        passes=("residual",),
        spared=("bias",),
        flops=lambda d: 4 * d["M"] * d["N"] * d["K"],
    ),
)  # fmt: skip
