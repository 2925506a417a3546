from functools import partial

import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, index
from rooftile.ops.cross_entropy.spec import CAPPED, PLAIN, SMOOTH, ignored, torch_cross_entropy
from rooftile.ops.cross_entropy.spec import validate as of_cross_entropy
from rooftile.ops.linear_cross_entropy.reference import (
    linear_cross_entropy,
    linear_cross_entropy_ahead,
    linear_cross_entropy_ahead_backward,
    linear_cross_entropy_backward,
    linear_cross_entropy_frozen,
    linear_cross_entropy_frozen_backward,
)


def small(shape, dtype, gen, dims):
    """Logits of the size of 1: softmax of larger ones is one class, and its gradient nothing but the rounding of logits."""
    return torch.randn(shape, generator=gen, device=gen.device).div(max(1, dims["K"]) ** 0.5).to(dtype)


def validate(call, dims):
    of_cross_entropy(call, dims)
    if call["chunk"] is not None and call["chunk"] < 1:
        raise ValueError(f"linear_cross_entropy: chunk is {call['chunk']} rows, it must be 1 or more")


def validate_frozen(call, dims, name="linear_cross_entropy_frozen"):
    validate(call, dims)
    if call["reduction"] == "none":
        raise ValueError(f"{name}: reduction is 'none', whose gradient is not known ahead; it takes mean, sum")


def validate_ahead(call, dims):
    validate_frozen(call, dims, "linear_cross_entropy_ahead")
    m, at_once, given = dims["M"], call["chunk"] or dims["M"], call["x"].dtype
    if call["sums"] == "bfloat16" and (given == torch.float16 or at_once < m):
        raise ValueError(
            f"linear_cross_entropy_ahead: sums is bfloat16, for bfloat16 of {m} rows at once; x is {str(given).removeprefix('torch.')}, a chunk {at_once} rows"
        )
    if call["sums"] not in ("float32", "bfloat16"):
        raise ValueError(f"linear_cross_entropy_ahead: sums is {call['sums']!r}, it takes 'float32' and 'bfloat16'")
    dims["N"] = 0 if call["bias"] is None else dims["V"]  # of gbias


def drawn(call, case, gen):
    """Parameters that only a case knows: no bias, float32 weights beside narrow data, as a layer's master weights are."""
    if case.params.get("masters"):
        call["weight"], call["bias"] = call["weight"].float(), call["bias"].float()
    return ignored(call, case, gen)


def torch_linear_cross_entropy(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, chunk, sums="float32"):
    logits = F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return torch_cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)


def case(m, k, v, params, dtype=torch.float32, why="", use=("check",), chunk=6, **more):
    return Case({"M": m, "K": k, "V": v}, dtype, {**params, "chunk": chunk, **more}, use, why)


BOTH = ("smoke", "check")
SUM = {**PLAIN, "ignore_index": 2, "label_smoothing": 0.1, "reduction": "sum"}
SUMMED = (
    case(11, 24, 67, PLAIN, torch.float32, "primes: the last chunk is short, rows are not whole 16 bytes", BOTH),
    *across(
        FLOATS,
        case(11, 24, 68, PLAIN, why="the last chunk is short"),
        case(0, 16, 8, {**PLAIN, "reduction": "sum"}, why="no rows: the loss is 0, and so is the weight's gradient"),
        case(1, 16, 40, PLAIN, why="one row", bias=None),
        case(5, 16, 40, PLAIN, why="a chunk longer than the rows", chunk=64),
        case(9, 40, 300, SUM, why="padding and smoothing"),
    ),
    case(9, 24, 72, {**CAPPED, "ignore_index": 0, "label_smoothing": 0.1}, torch.float32, "all of it, and padding", BOTH),
    case(10, 32, 64, SUM, torch.bfloat16, "float32 weights beside narrow data", BOTH, masters=True),
    case(3, 16, 11, PLAIN, torch.float32, "nothing but padding: the mean is 0/0, as PyTorch has it", padding="all"),
    case(300, 16, 500, PLAIN, torch.float32, "the chunk that the shape asks for", chunk=None),
)
AT_ONCE = (
    case(11, 24, 68, PLAIN, torch.bfloat16, "all rows at once: the weight's gradient in 16 bits", BOTH, chunk=None, sums="bfloat16"),
    case(9, 40, 300, SUM, torch.bfloat16, "the same, with padding and smoothing, in a chunk that is longer", chunk=16, sums="bfloat16"),
    case(0, 16, 8, {**PLAIN, "reduction": "sum"}, torch.bfloat16, "no rows at once", chunk=None, sums="bfloat16"),
)
NONE = (
    case(10, 24, 67, {**SMOOTH, "z_loss": 0.01}, torch.float32, "a loss for each row", BOTH),
    *across(FLOATS, case(10, 24, 67, {**SMOOTH, "softcap": 2.0}, why="a loss for each row, capped")),
    case(7, 16, 40, {**CAPPED, "reduction": "none"}, torch.float32, "soft cap and z-loss, a loss for each row", bias=None),
)
ANCHOR = {"dtype": torch.bfloat16, "use": ("bench",), "chunk": None, "bias": None}
LLAMA = partial(case, 8192, 4096, 128256, PLAIN, why="anchor, Llama 3's head", **ANCHOR)
GPT2 = case(16384, 768, 50304, PLAIN, why="anchor, GPT-2's head: a short K, the logits' bytes count", **ANCHOR)
ONE = Arg("", "f32")
ARGS = {
    "x": Arg("M K"),
    "weight": Arg("V K", "io|f32", make=small),
    "target": Arg("M", "i64", make=index("V")),
    "bias": Arg("V", "io|f32", make=small, optional=True),
}
COMMON = {
    "args": ARGS,
    "peer": torch_linear_cross_entropy,
    "families": ("scaled_rows", "all_equal", "nan"),
    "draw_with": drawn,
    "autocast": True,
}


def product(times):
    """Operations of so many products, and 4 an element of the logits for the loss."""
    return lambda d: (2 * times * d["K"] + 4) * d["M"] * d["V"]


SPEC = OpSpec(
    "linear_cross_entropy",
    linear_cross_entropy,
    returns={"loss": Arg("...", "f32"), "count": ONE},
    cases=(*NONE, *SUMMED, LLAMA(), GPT2),
    validate=validate,
    flops=product(1),
    backward=Backward(linear_cross_entropy_backward, grads=("x", "weight", "bias"), flops=product(3)),
    **COMMON,
)

# Of a sum or a mean the gradient is known up to one number when the loss is: it is made while the logits are there.
AHEAD = OpSpec(
    "linear_cross_entropy_ahead",
    linear_cross_entropy_ahead,
    returns={"loss": Arg("...", "f32"), "count": ONE, "gx": Arg("M K"), "gweight": Arg("V K", "@sums"), "gbias": Arg("N", "f32")},
    cases=(*SUMMED, *AT_ONCE, LLAMA(sums="bfloat16"), GPT2),
    validate=validate_ahead,
    flops=product(3),
    backward=Backward(
        linear_cross_entropy_ahead_backward,
        grads=("x", "weight", "bias"),
        flops=lambda d: d["M"] * d["K"] + d["V"] * d["K"],
        moved=lambda call, results: sum(t.numel() * t.itemsize for t in (call["gx"], call["gweight"], call["gbias"], *results)),
    ),
    **COMMON,
)

# Where weight and bias get no gradient, as a head beside LoRA's adapters: a product less, and no sums.
FROZEN = OpSpec(
    "linear_cross_entropy_frozen",
    linear_cross_entropy_frozen,
    returns={"loss": Arg("...", "f32"), "count": ONE, "gx": Arg("M K")},
    cases=(*SUMMED, LLAMA(), GPT2),
    validate=validate_frozen,
    flops=product(2),
    backward=Backward(
        linear_cross_entropy_frozen_backward,
        grads=("x",),
        flops=lambda d: d["M"] * d["K"],
        moved=lambda call, results: sum(t.numel() * t.itemsize for t in (call["gx"], *results)),
    ),
    **COMMON,
)
