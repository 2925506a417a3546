from dataclasses import replace

import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, positive
from rooftile.ops._shared.draw import exact_sums, parameters
from rooftile.ops.layernorm.reference import add_layernorm, add_layernorm_backward, layernorm, layernorm_backward

X, WEIGHT, ROW = Arg("... N"), Arg("N", "io|f32", make=positive, optional=True), Arg("...", "f32", saved=True)
EPS = {"eps": 1e-5}
MASTER = {**EPS, "affine": "float32"}
LACKS = {"lacks": "f32"}  # x is without its bias, which is float32
GPT2 = {**MASTER, "stream": "io", **LACKS}
SMALL = [(1, 1024), (1, 8192), (64, 1024), (64, 8192)]  # decoding
SHAPES = [(32768, 1024), (16384, 4096), (8192, 8192), (4096, 16384), (2048, 65536)]


def torch_layernorm(x, weight, bias, eps):
    if weight is None or weight.dtype == x.dtype:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return F.layer_norm(x.float(), x.shape[-1:], weight, bias, eps).to(x.dtype)  # CUDA refuses mixed dtypes


def torch_add_layernorm(x, residual, weight, bias, eps, x_bias):
    sum = x + residual if x_bias is None else (x + x_bias + residual).to(residual.dtype)
    return torch_layernorm(sum, weight, bias, eps).to(x.dtype), sum


def sums(call, case, gen):
    """exact_sums; of a stream of 16 bits with a bias of x, which its rows share, on one grid for all of them: three terms of 64 steps at most have
    8 bits. `stream` is io where it is no wider than x beside float32 parameters."""
    wide = call["x"].dtype == torch.float32 or (case.params.get("affine") == "float32" and case.params.get("stream") != "io")
    if call["x_bias"] is None or wide:
        return exact_sums(call, case, gen)
    terms = {n: call[n].float() for n in ("x", "residual", "x_bias")}
    top = torch.cat([t.flatten() for t in terms.values()]).abs().max()
    step = torch.exp2(torch.floor(torch.log2(top)) - 5)
    call |= {n: ((t / step).round() * step).to(call[n].dtype) for n, t in terms.items()}
    return parameters(call, case, gen)


def backward_bytes(call, results):
    """A bias is an argument for its dtype only."""
    read = [t for n, t in call.items() if n not in ("bias", "x_bias") and t is not None]
    return sum(t.numel() * t.itemsize for t in [*read, *results])


SPEC = OpSpec(
    "layernorm",
    layernorm,
    args={"x": X, "weight": WEIGHT, "bias": WEIGHT},
    returns={"out": X, "mean": ROW, "rstd": ROW},
    cases=(
        *across(
            FLOATS,
            Case({"M": 29, "N": 67}, params=EPS, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 13, "N": 264}, params=EPS, use=("smoke", "check"), why="rows of whole 16 bytes, and of no power of two"),
            Case({"M": 0, "N": 8}, params=EPS, why="no rows: the parameters' gradients are zeros"),
            Case({"M": 5, "N": 1}, params=EPS, why="one column: out is the bias, dx is zero"),
            Case({"...": (2, 3, 5), "N": 128}, params={**EPS, "affine": "none"}, why="leading axes, no parameters"),
            Case({"M": 7, "N": 1025}, params=EPS, why="one column into the next power of two"),
        ),
        *across(FLOATS[1:], Case({"M": 11, "N": 768}, params=MASTER, use=("smoke", "check"), why="GPT-2's width, float32 parameters")),
        Case({"M": 9, "N": 129}, torch.float16, {**EPS, "affine": "weight"}, why="a weight and no bias"),
        Case({"M": 1, "N": 264}, torch.bfloat16, EPS, use=("smoke", "check"), why="one row: nothing is to be added up"),
        Case({"M": 2, "N": 8200}, torch.float32, EPS, use=("smoke", "check"), why="a row that a whole block shares"),
        Case({"M": 1031, "N": 257}, torch.float32, EPS, why="every program of the persistent backward loops, the last one partly"),
        Case({"M": 3, "N": 65536 + 1}, torch.bfloat16, EPS, why="longer than a row in registers"),
        Case({"M": 2, "N": 262144}, torch.float32, EPS, why="the longest row promised"),
        Case({"M": 301, "N": 16384}, torch.float32, EPS, why="more wide rows than blocks a device holds: each takes several"),
        Case({"M": 5, "N": 131072}, torch.bfloat16, EPS, why="rows that a cluster of blocks shares"),
        *(Case({"M": m, "N": n}, torch.bfloat16, EPS, use=("bench",), why="anchor") for m, n in SHAPES),
        *(Case({"M": m, "N": n}, torch.bfloat16, EPS, use=("bench", "call"), why="decoding") for m, n in SMALL),
        Case({"M": 32768, "N": 768}, torch.bfloat16, MASTER, use=("bench",), why="GPT-2's training step"),
    ),
    peer=torch_layernorm,
    draw_with=parameters,
    flops=lambda d: 8 * d["M"] * d["N"],  # sum; subtract, square, add; subtract, scale, times weight, plus bias
    backward=Backward(
        layernorm_backward,
        grads=("x", "weight", "bias"),
        flops=lambda d: 14 * d["M"] * d["N"],  # x̂ 2, g 1, two sums 3, dx 4, dweight 2, dbias 1, and x̂ of dx once more
        moved=backward_bytes,
    ),
)

ADD_SPEC = OpSpec(
    "add_layernorm",
    add_layernorm,
    args={"x": X, "residual": Arg("... N", "io|f32"), "weight": WEIGHT, "bias": WEIGHT, "x_bias": replace(WEIGHT, word="lacks")},
    returns={"out": X, "sum": Arg("... N", "=residual"), "mean": ROW, "rstd": ROW},
    cases=(
        *across(
            FLOATS,
            Case({"M": 29, "N": 67}, params=EPS, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 0, "N": 8}, params=EPS, why="no rows: the parameters' gradients are zeros"),
            Case({"M": 5, "N": 1}, params=EPS, why="one column: out is the bias, dx is dsum"),
            Case({"...": (2, 3, 5), "N": 128}, params={**EPS, "affine": "none"}, why="leading axes, no parameters"),
        ),
        *across(
            FLOATS[1:], Case({"M": 11, "N": 768}, params=MASTER, use=("smoke", "check"), why="GPT-2's width, float32 stream and parameters")
        ),
        Case({"M": 9, "N": 129}, torch.float16, {**EPS, "affine": "weight"}, why="a weight and no bias"),
        Case({"M": 1031, "N": 257}, torch.float32, EPS, why="every program of the persistent backward loops, the last one partly"),
        Case({"M": 3, "N": 20001}, torch.bfloat16, MASTER, why="a float32 stream longer than a row in registers"),
        Case({"M": 3, "N": 8192}, torch.float32, EPS, why="the longest row of the persistent backward, in its widest dtype"),
        Case({"M": 3, "N": 65536 + 1}, torch.bfloat16, EPS, why="longer than a row in registers"),
        *across(
            FLOATS[:2],
            Case({"M": 29, "N": 264}, params={**MASTER, **LACKS}, use=("smoke", "check"), why="x lacks its bias, beside a float32 stream"),
        ),
        Case({"M": 1, "N": 67}, params={**EPS, "lacks": "io"}, use=("smoke", "check"), why="x lacks its bias: one row is its gradient"),
        *across(
            FLOATS,
            Case({"M": 0, "N": 8}, params={**EPS, "lacks": "io"}, why="no rows: all three gradients are zeros"),
            Case({"...": (2, 3, 5), "N": 128}, params={**EPS, "affine": "none", "lacks": "io"}, why="a bias for x and no parameters"),
        ),
        Case({"M": 1031, "N": 257}, torch.float32, {**EPS, "lacks": "io"}, why="every program has partial rows of three gradients"),
        Case({"M": 67, "N": 136}, torch.bfloat16, {**EPS, "lacks": "io"}, why="three gradients in 16 bits"),
        Case({"M": 37, "N": 768}, torch.bfloat16, GPT2, why="GPT-2's width, dtypes and bias"),
        Case(
            {"M": 37, "N": 129}, torch.float16, {**EPS, "affine": "weight", **LACKS}, why="a weight and x's bias: two partial rows of three"
        ),
        Case({"M": 5, "N": 1}, torch.float32, {**EPS, "lacks": "io"}, why="one column: dx is dsum, and x's bias has its sum"),
        Case({"M": 5, "N": 20001}, torch.bfloat16, {**MASTER, **LACKS}, why="x's bias, longer than a row in registers"),
        Case({"M": 16384, "N": 4096}, torch.bfloat16, EPS, use=("bench",), why="anchor"),
        Case({"M": 32768, "N": 768}, torch.bfloat16, MASTER, use=("bench",), why="GPT-2's training step, of a float32 stream"),
        Case(
            {"M": 32768, "N": 768},
            torch.bfloat16,
            GPT2,
            use=("bench",),
            why="GPT-2's training step: a bfloat16 stream, a branch without its bias",
        ),
    ),
    peer=torch_add_layernorm,
    draw_with=sums,
    flops=lambda d: 9 * d["M"] * d["N"],
    backward=Backward(
        add_layernorm_backward,
        grads=("x residual", "weight", "bias", "x_bias"),
        dtypes={"dx": "=sum"},
        flops=lambda d: 15 * d["M"] * d["N"],
        moved=backward_bytes,
    ),
)
