import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, positive
from rooftile.ops._shared.draw import exact_sums
from rooftile.ops.dropout_add_norm.reference import dropout_add_norm, dropout_add_norm_backward

X, WEIGHT, ROW = Arg("... N"), Arg("N", "io|f32", make=positive, optional=True), Arg("...", "f32", saved=True)
NORMS = ("layer", "rms")
LAYER = {"p": 0.5, "eps": 1e-5, "norm": "layer"}
RMS = {"p": 0.5, "eps": 1e-5, "norm": "rms", "affine": "weight"}
MASTER = {**LAYER, "affine": "float32"}


def seed(shape, dtype, gen, dims):
    """All 64 bits: a kernel that loses the upper half of the key must fail."""
    return torch.randint(-(2**63), 2**63 - 1, shape, dtype=dtype, generator=gen, device=gen.device)


def exact_sums_of_doubled(call, case, gen):
    """p = 1/2 doubles what it keeps: halves of what sums exactly. A sum that rounds would be another row to the truth."""
    call = exact_sums(call, case, gen)
    call["x"] = call["x"] / 2
    return call


def validate(call, dims):
    if not 0 <= call["p"] <= 1:
        raise ValueError(f"dropout_add_norm: p is {call['p']}, it lies between 0 and 1")
    if call["norm"] not in NORMS:
        raise ValueError(f"dropout_add_norm: norm is {call['norm']!r}, takes {' or '.join(NORMS)}")


def backward_bytes(call, results):
    """The bias is an argument for its dtype only."""
    read = [t for n, t in call.items() if n != "bias" and isinstance(t, torch.Tensor)]
    return sum(t.numel() * t.itemsize for t in [*read, *results])


# No peer: the gate measures PyTorch's error on the same mask, and F.dropout draws another one.
SPEC = OpSpec(
    "dropout_add_norm",
    dropout_add_norm,
    args={"x": X, "residual": Arg("... N", "io|f32"), "weight": WEIGHT, "bias": WEIGHT, "seed": Arg("", "i64", make=seed)},
    returns={"out": X, "sum": Arg("... N", "=residual"), "mean": ROW, "rstd": ROW},
    cases=(
        *across(
            FLOATS,
            Case({"M": 5, "N": 264}, params=RMS, use=("smoke", "check"), why="rows of whole 16 bytes, and of no power of two"),
            Case({"M": 11, "N": 132}, params=LAYER, why="whole counters, but of every other row half a 16-bit vector"),
            Case({"M": 0, "N": 8}, params=LAYER, why="no rows: the parameters' gradients are zeros"),
            Case({"M": 5, "N": 1}, params=LAYER, why="one column: out is the bias, dresidual is dsum"),
            Case({"...": (2, 3, 5), "N": 128}, params={**LAYER, "affine": "none"}, why="leading axes, no parameters"),
            Case({"M": 7, "N": 1025}, params=RMS, why="one column into the next power of two"),
        ),
        # a smoke case costs the interpreter seconds here, for the mask's integers: one each of these
        Case({"M": 7, "N": 67}, torch.float32, LAYER, use=("smoke", "check"), why="primes: rows begin at every word of a counter"),
        *across(FLOATS[1:], Case({"M": 29, "N": 67}, params=LAYER, why="the same, beside narrow types")),
        Case({"M": 5, "N": 136}, torch.bfloat16, MASTER, use=("smoke", "check"), why="a float32 stream and parameters"),
        Case({"M": 11, "N": 768}, torch.float16, MASTER, why="a float32 stream and parameters"),
        Case(
            {"M": 3, "N": 1028},
            torch.float32,
            LAYER,
            use=("smoke", "check"),
            why="a strip of columns and 4 more: its mask begins at the 1025th",
        ),
        Case({"M": 9, "N": 264}, torch.float32, {**LAYER, "p": 0.1}, why="a scale that rounds"),
        Case({"M": 9, "N": 129}, torch.float32, {**RMS, "p": 0.0}, why="nothing dropped"),
        Case({"M": 9, "N": 129}, torch.float32, {**LAYER, "p": 1.0}, why="all dropped: the residual's norm, dx is zero"),
        Case({"M": 1031, "N": 257}, torch.float32, LAYER, why="every program of the persistent backward loops, the last one partly"),
        Case({"M": 3, "N": 8192}, torch.float32, LAYER, why="the longest row of the persistent backward, in its widest dtype"),
        Case({"M": 3, "N": 16384}, torch.bfloat16, LAYER, why="the longest row that 1024 threads hold"),
        Case({"M": 3, "N": 20001}, torch.bfloat16, {**MASTER, "norm": "rms"}, why="a float32 stream longer than a row in registers"),
        Case({"M": 3, "N": 65536 + 1}, torch.bfloat16, LAYER, why="longer than a row in registers"),
        Case({"M": 2, "N": 262144}, torch.float32, LAYER, why="the longest row promised"),
        Case({"M": 16384, "N": 4096}, torch.bfloat16, {**LAYER, "p": 0.1}, use=("bench",), why="as add_layernorm's anchor"),
        Case({"M": 16384, "N": 4096}, torch.bfloat16, {**RMS, "p": 0.1}, use=("bench",), why="as add_rmsnorm's anchor"),
        Case({"M": 32768, "N": 768}, torch.bfloat16, {**MASTER, "p": 0.1}, use=("bench",), why="GPT-2's training step"),
        Case({"M": 8192, "N": 1024}, torch.bfloat16, {**LAYER, "p": 0.1}, use=("bench",), why="BERT large"),
    ),
    draw_with=exact_sums_of_doubled,
    validate=validate,
    flops=lambda d: 10 * d["M"] * d["N"],  # the factor and the sum beside layernorm's 8; the mask is integers
    backward=Backward(
        dropout_add_norm_backward,
        grads=("x", "residual", "weight", "bias"),
        dtypes={"dresidual": "=sum"},
        flops=lambda d: 16 * d["M"] * d["N"],
        moved=backward_bytes,
    ),
)
