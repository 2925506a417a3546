import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.bias_mask_scale_add.reference import bias_mask_scale_add, bias_mask_scale_add_backward

X, HALF = Arg("... N"), {"scale": 0.5}


def nine_in_ten(shape, dtype, gen, dims):
    return torch.rand(shape, generator=gen, device=gen.device) > 0.1


def torch_bias_mask_scale_add(x, bias, mask, scale, residual):
    return ((x + bias).masked_fill(~mask, 0) * scale + residual).to(x.dtype)


def float32_bias(call, case, gen):
    """`affine` is the case's word, not the operator's: a float32 bias beside a narrower x."""
    if case.params.get("affine"):
        call["bias"] = call["bias"].float()
    return call


def backward_bytes(call, results):
    """The bias is an argument for its dtype only."""
    return sum(t.numel() * t.itemsize for t in [call["dout"], call["mask"], *results])


SPEC = OpSpec(
    "bias_mask_scale_add",
    bias_mask_scale_add,
    args={"x": X, "bias": Arg("N", "io|f32"), "mask": Arg("... N", "bool", make=nine_in_ten), "residual": X},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"M": 11, "N": 67}, params=HALF, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 5, "N": 264}, params=HALF, use=("smoke", "check"), why="rows of whole 16 bytes, and of no power of two"),
            Case({"M": 0, "N": 8}, params=HALF, why="no rows: the bias's gradient is zeros"),
            Case({"M": 3, "N": 0}, params=HALF, why="rows of nothing"),
            Case({"M": 41, "N": 1}, params={"scale": -0.3}, why="one column, a scale that rounds"),
            Case({"...": (2, 3, 5), "N": 128}, params={"scale": 1.25}, why="leading axes"),
            Case({"...": (), "N": 1031}, params=HALF, why="one row: the bias's gradient is dx"),
        ),
        *across(FLOATS[1:], Case({"M": 5, "N": 136}, params={**HALF, "affine": "float32"}, use=("smoke", "check"), why="a float32 bias")),
        Case({"M": 131, "N": 264}, torch.bfloat16, HALF, use=("smoke", "check"), why="a few rows in one launch, the last turn ragged"),
        Case({"M": 1031, "N": 1032}, torch.float32, HALF, why="every program of the backward loops, the last one partly"),
        Case({"M": 6607, "N": 1032}, torch.bfloat16, HALF, why="more turns of rows than stages on a whole GPU, the last one ragged; a strip short of a lane"),
        Case({"M": 3, "N": 65536 + 8}, torch.bfloat16, HALF, why="many strips of columns"),
        Case({"M": 16384, "N": 14336}, torch.bfloat16, HALF, use=("bench",), why="anchor"),
        Case({"M": 32768, "N": 768}, torch.bfloat16, {**HALF, "affine": "float32"}, use=("bench",), why="GPT-2's width, a float32 bias"),
        Case({"M": 64, "N": 4096}, torch.bfloat16, HALF, use=("bench",), why="64 tokens"),
    ),
    peer=torch_bias_mask_scale_add,
    draw_with=float32_bias,
    linear=True,
    flops=lambda d: 4 * d["M"] * d["N"],
    backward=Backward(
        bias_mask_scale_add_backward,
        grads=("x", "bias"),
        passes=("residual",),
        dtypes={"dx": "=dout"},
        flops=lambda d: 3 * d["M"] * d["N"],
        moved=backward_bytes,
    ),
)  # fmt: skip
