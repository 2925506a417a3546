import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Call, Case, OpSpec, across
from rooftile.ops.gelu.reference import gelu, gelu_backward

X = Arg("...")
FORMS = ("none", "tanh")


def _known_form(call: Call, dims: object) -> None:
    if call["approximate"] not in FORMS:
        raise ValueError(f"gelu: approximate is {call['approximate']!r}, takes {' or '.join(FORMS)}")


SPEC = OpSpec(
    "gelu",
    gelu,
    args={"x": X},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"...": (3, 67)}, params={"approximate": "tanh"}, use=("smoke", "check"), why="one ragged tile"),
            Case({"...": (3, 67)}, params={"approximate": "none"}, use=("smoke", "check"), why="the exact form"),
            Case({"...": (0,)}, why="nothing"),
            Case({"...": (4099,)}, params={"approximate": "tanh"}, why="prime, beyond one tile"),
            Case({"...": (2, 3, 1031)}, params={"approximate": "none"}, why="leading axes"),
        ),
        Case({"...": (16384, 14336)}, torch.bfloat16, {"approximate": "tanh"}, ("bench",), "anchor"),
        Case({"...": (32768, 3072)}, torch.bfloat16, {"approximate": "tanh"}, ("bench",), "GPT-2 124M, B=32 T=1024"),
        Case({"...": (16384, 14336)}, torch.bfloat16, {"approximate": "none"}, ("bench",), "anchor, exact form"),
        *(Case({"...": (m, 8192)}, torch.bfloat16, {"approximate": "tanh"}, ("bench", "call"), "few rows") for m in (1, 64)),
    ),
    peer=F.gelu,
    flops=lambda d: 10 * d["M"],
    validate=_known_form,
    backward=Backward(gelu_backward, grads=("x",), flops=lambda d: 18 * d["M"]),
)
