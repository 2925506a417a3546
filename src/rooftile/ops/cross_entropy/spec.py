import math

import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, index
from rooftile.ops.cross_entropy.reference import cross_entropy, cross_entropy_ahead, cross_entropy_backward, cross_entropy_overwrite

ROW, ONE = Arg("M", "f32"), Arg("", "f32")
REDUCTIONS = ("mean", "sum", "none")
PLAIN = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "softcap": 0.0, "reduction": "mean"}
SMOOTH = {**PLAIN, "ignore_index": 2, "label_smoothing": 0.1, "reduction": "none"}
CAPPED = {**PLAIN, "z_loss": 0.01, "softcap": 3.0}
SHAPES = [(16384, 32000), (8192, 50304), (8192, 128256), (4096, 262144)]


def validate(call, dims):
    if call["reduction"] not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is {call['reduction']!r}, it takes {', '.join(REDUCTIONS)}")
    if not 0 <= call["label_smoothing"] <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {call['label_smoothing']}, it lies between 0 and 1")
    for name in ("z_loss", "softcap"):
        if not 0 <= call[name] < math.inf:
            raise ValueError(f"cross_entropy: {name} is {call[name]}, it must be 0 (none) or above, and finite")
    if dims["V"] == 0:
        raise ValueError(f"cross_entropy: logits is [{dims['M']}, 0], there is no class to choose")
    dims["..."] = (dims["M"],) if call["reduction"] == "none" else ()  # the loss: a number for each row, or one


def ignored(call, case, gen):
    """Every third row is padding where the case's ignore_index is a class, but not the first: there the families put what spreads."""
    target, padding = call["target"], call["ignore_index"]
    if case.params.get("padding") == "all":
        target.fill_(padding)
    elif padding >= 0 and target.numel():
        target.copy_(torch.where(target == padding, padding + 1, target))
        target[1::3] = padding
    return call


def torch_cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction):
    """On float32 logits: PyTorch's loss has the logits' dtype, and three digits of a loss are no measure of ours."""
    x = logits.float()
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    loss = F.cross_entropy(x, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    if not z_loss:
        return loss
    counts = target != ignore_index
    z = torch.where(counts, z_loss * x.logsumexp(1).square(), 0.0)
    return loss + (z if reduction == "none" else z.sum() / (counts.sum() if reduction == "mean" else 1))


SPEC = OpSpec(
    "cross_entropy",
    cross_entropy,
    args={"logits": Arg("M V"), "target": Arg("M", "i64", make=index("V"))},
    returns={"loss": Arg("...", "f32"), "count": ONE, "peak": ROW, "logsum": ROW, "miss": ROW},
    cases=(
        *across(
            FLOATS,
            Case({"M": 11, "V": 67}, params=PLAIN, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 0, "V": 8}, params={**PLAIN, "reduction": "sum"}, why="no rows: the loss is 0"),
            Case({"M": 5, "V": 1}, params={**PLAIN, "reduction": "none"}, why="one class: nothing to lose"),
            Case({"M": 7, "V": 8193}, params={**PLAIN, "reduction": "none"}, why="one class into the next tile"),
            Case({"M": 9, "V": 300}, params={**PLAIN, "ignore_index": 2, "label_smoothing": 0.1}, why="padding and smoothing"),
        ),
        Case({"M": 6, "V": 257}, torch.float32, SMOOTH, use=("smoke", "check"), why="padding and smoothing, a loss for each row"),
        Case(
            {"M": 4, "V": 9000}, torch.bfloat16, {**PLAIN, "ignore_index": 0, "reduction": "sum"}, use=("smoke", "check"), why="two tiles"
        ),
        *across(
            FLOATS,
            Case({"M": 5, "V": 4104}, params=PLAIN, use=("smoke", "check"), why="rows of whole 16 bytes, one vector into the next tile"),
            Case(
                {"M": 4, "V": 1032},
                params={**CAPPED, "softcap": 1.0, "ignore_index": 0, "label_smoothing": 0.1},
                use=("smoke", "check"),
                why="all of it on such rows, and a cap that bites",
            ),
            Case(
                {"M": 21, "V": 72},
                params={**SMOOTH, "z_loss": 0.01},
                use=("smoke", "check"),
                why="short rows of whole 16 bytes, several a warp, the last block ragged",
            ),
        ),
        *across(FLOATS[:2], Case({"M": 6, "V": 70}, params=CAPPED, use=("smoke", "check"), why="soft cap and z-loss, short rows")),
        Case(
            {"M": 6, "V": 9001},
            torch.float32,
            {**CAPPED, "ignore_index": 0, "label_smoothing": 0.1},
            use=("smoke", "check"),
            why="the same and all the rest, two tiles; of three rows one was large, and the last bit of its logarithm decided",
        ),
        Case({"M": 3, "V": 11}, torch.float32, {**PLAIN, "padding": "all"}, why="nothing but padding: the mean is 0/0, as PyTorch has it"),
        Case({"M": 5, "V": 262144 + 3}, torch.bfloat16, PLAIN, why="the longest vocabulary in use, misaligned rows"),
        Case({"M": 32768, "V": 50304}, torch.bfloat16, PLAIN, use=("bench",), why="GPT-2's training step"),
        Case({"M": 32768, "V": 256}, torch.bfloat16, PLAIN, use=("bench",), why="bytes as tokens"),
        Case({"M": 8192, "V": 128256}, torch.bfloat16, {**PLAIN, "z_loss": 1e-4, "softcap": 30.0}, use=("bench",), why="an anchor, capped"),
        *(Case({"M": m, "V": v}, torch.bfloat16, PLAIN, use=("bench",), why="anchor") for m, v in SHAPES),
    ),
    peer=torch_cross_entropy,
    families=("scaled_rows", "large", "all_equal", "nan", "masked_rows"),
    draw_with=ignored,
    validate=validate,
    flops=lambda d: 4 * d["M"] * d["V"],  # maximum, subtract, exponential, add
    backward=Backward(cross_entropy_backward, grads=("logits",), flops=lambda d: 4 * d["M"] * d["V"]),
)


def saved(call, case, gen):
    """What the forward leaves behind for these logits."""
    results = cross_entropy(
        call["logits"],
        call["target"],
        *(call[n] for n in ("ignore_index", "label_smoothing", "z_loss", "softcap")),
        case.params["reduction"],
    )
    return call | dict(zip(SPEC.returns, results)) | {"dloss": torch.randn(results[0].shape, generator=gen, device=gen.device)}


OVERWRITE = OpSpec(
    "cross_entropy_overwrite",
    cross_entropy_overwrite,
    args={
        "dloss": Arg("...", "f32"),
        "logits": Arg("M V", mutated=True),
        "target": Arg("M", "i64", make=index("V")),
        "count": ONE,
        "peak": ROW,
        "logsum": ROW,
        "miss": ROW,
    },
    returns={},
    cases=tuple(c for c in SPEC.cases if c.params.get("padding") is None and c.params["ignore_index"] < 0),
    families=(),
    draw_with=saved,
    flops=lambda d: 4 * d["M"] * d["V"],
)

# Where dloss is known up to one number when the loss is made, the gradient is too, and the logits are there.
AHEAD = OpSpec(
    "cross_entropy_ahead",
    cross_entropy_ahead,
    args={"logits": Arg("M V", mutated=True), "target": Arg("M", "i64", make=index("V"))},
    returns={"loss": ROW},
    cases=tuple(c for c in SPEC.cases if c.params.get("padding") is None),
    families=("scaled_rows", "large", "all_equal", "nan", "masked_rows"),
    draw_with=ignored,
    flops=lambda d: 8 * d["M"] * d["V"],
)
