import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.residual_add.reference import residual_add, residual_add_backward, residual_add_overwrite

X, STREAM = Arg("..."), Arg("...", "io|f32")
FLOAT32 = {"stream": "float32"}


def torch_residual_add(x, residual):
    return torch.add(residual, x)


def stream(call, case, gen):
    """`stream` is the case's word, not the operator's: a float32 residual beside a narrower x."""
    if case.params.get("stream"):
        call["residual"] = call["residual"].float()
    return call


CASES = (
    *across(
        FLOATS,
        Case({"...": (3, 67)}, use=("smoke", "check"), why="one ragged tile"),
        Case({"...": (0, 4)}, why="nothing to add"),
        Case({"...": (1,)}, why="one element"),
        Case({"...": ()}, why="no axis"),
        Case({"...": (16411,)}, why="prime, into a new tile of every size"),
        Case({"...": (2, 5, 264)}, why="leading axes, rows of 16 bytes"),
    ),
    *across(FLOATS[1:], Case({"...": (7, 264)}, params=FLOAT32, use=("smoke", "check"), why="a float32 stream")),
    Case({"...": (16384, 14336)}, torch.bfloat16, use=("bench",), why="as the other activations"),
    Case({"...": (16384, 4096)}, torch.bfloat16, FLOAT32, use=("bench",), why="a float32 stream"),
    Case({"...": (64, 4096)}, torch.bfloat16, use=("bench", "call"), why="64 tokens"),
    Case({"...": (1, 8192)}, torch.bfloat16, use=("bench", "call"), why="a token"),
)

SPEC = OpSpec(
    "residual_add",
    residual_add,
    args={"x": X, "residual": STREAM},
    returns={"out": Arg("...", "=residual")},
    cases=CASES,
    peer=torch_residual_add,
    draw_with=stream,
    linear=True,
    flops=lambda d: d["M"],
    backward=Backward(residual_add_backward, grads=("x residual",), dtypes={"dx": "=dout"}, identity=True),
)

OVERWRITE = OpSpec(
    "residual_add_overwrite",
    residual_add_overwrite,
    args={"x": X, "residual": Arg("...", "io|f32", mutated=True)},
    returns={},
    cases=CASES,
    draw_with=stream,
    linear=True,
    flops=lambda d: d["M"],
)
