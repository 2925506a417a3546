from functools import partial

import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.mlp.reference import gated_mlp, gated_mlp_backward, mlp, mlp_backward

FORMS, KEEPS = ("none", "tanh"), ("pre", "slope")
GATES = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu}


def small(shape, dtype, gen, dims):
    """As a layer's weights are: what comes out has the size of what goes in, so that gelu bends it."""
    return torch.randn(shape, generator=gen, device=gen.device).div(max(1, shape[-1]) ** 0.5).to(dtype)


def bias(shape, dtype, gen, dims):
    return torch.randn(shape, generator=gen, device=gen.device).to(dtype)


def validate(call, dims):
    if call["approximate"] not in FORMS:
        raise ValueError(f"mlp: approximate is {call['approximate']!r}, takes {' or '.join(FORMS)}")
    if call["keep"] not in KEEPS:
        raise ValueError(f"mlp: keep is {call['keep']!r}, takes {' or '.join(KEEPS)}")


def drawn(call, case, gen):
    """What only a case knows: no biases, float32 weights beside narrow data, as a layer's master weights are."""
    parameters = case.params.get("parameters")
    for name in [n for n in call if n.startswith(("weight", "bias"))]:
        if parameters == "float32":
            call[name] = call[name].float()
        elif parameters == "no bias" and name.startswith("bias"):
            call[name] = None
    return call


def torch_mlp(x, weight1, bias1, weight2, bias2, approximate, keep, residual):
    low = [None if t is None else t.to(x.dtype) for t in (weight1, bias1, weight2, bias2)]
    out = F.linear(F.gelu(F.linear(x, *low[:2]), approximate=approximate), *low[2:])
    return out if residual is None else out + residual


def case(m, k, f, n, dtype=torch.float32, approximate="tanh", why="", use=("check",), **more):
    return Case({"..." if isinstance(m, tuple) else "M": m, "K": k, "F": f, "N": n}, dtype, {"approximate": approximate, **more}, use, why)


BOTH = ("smoke", "check")

SPEC = OpSpec(
    "mlp",
    mlp,
    args={
        "x": Arg("... K"),
        "weight1": Arg("F K", "io|f32", make=small),
        "bias1": Arg("F", "io|f32", make=bias, optional=True),
        "weight2": Arg("N F", "io|f32", make=small),
        "bias2": Arg("N", "io|f32", make=bias, optional=True),
        "residual": Arg("... N", optional=True, word="stream"),
    },
    returns={"out": Arg("... N"), "kept": Arg("... F"), "h": Arg("... F")},
    cases=(
        *across(
            FLOATS,
            case(24, 32, 72, 40, use=BOTH, why="rows of whole 16 bytes, less than a tile"),
            case(24, 40, 72, 32, use=BOTH, why="gelu's slope is kept", keep="slope"),
            case(13, 19, 35, 22, use=BOTH, approximate="none", why="ragged everywhere, the exact form"),
            case(0, 16, 24, 8, why="no rows: zero gradients of the weights"),
            case(1, 1, 9, 1, why="one row of one number, and one number comes out"),
            case((2, 3, 5), 40, 48, 24, why="leading axes, no biases", parameters="no bias"),
        ),
        *across(
            FLOATS,
            case(24, 32, 72, 40, use=BOTH, why="added to a stream, rows of whole 16 bytes", stream="io"),
            case(13, 19, 35, 22, approximate="none", why="added to a stream, ragged", stream="io"),
            case(24, 40, 72, 32, why="gelu's slope is kept, added to a stream", keep="slope", stream="io"),
            case((2, 3, 5), 40, 48, 24, why="added to a stream, leading axes, no biases", parameters="no bias", stream="io"),
            case(0, 16, 24, 8, why="no rows of a stream", stream="io"),
        ),
        case(16, 24, 48, 32, torch.bfloat16, why="float32 weights beside narrow data", use=BOTH, parameters="float32"),
        case(16, 24, 48, 32, torch.bfloat16, why="the same into a stream", parameters="float32", stream="io"),
        case(263, 136, 520, 264, torch.bfloat16, why="several tiles each way, prime rows"),
        case(129, 64, 1032, 8, torch.float16, why="a short sum and a long one"),
        case(261, 72, 264, 136, torch.bfloat16, approximate="none", why="the exact form's slope is kept, several tiles", keep="slope"),
        case(32768, 768, 3072, 768, torch.bfloat16, why="GPT-2 124M, B=32 T=1024", use=("bench",), keep="slope"),
        case(32768, 768, 3072, 768, torch.bfloat16, why="the same into its stream", use=("bench",), keep="slope", stream="io"),
        case(8192, 4096, 16384, 4096, torch.bfloat16, why="anchor, a 7B model's width", use=("bench",), keep="slope"),
    ),
    peer=torch_mlp,
    families=("scaled_rows", "large", "all_equal", "nan"),
    draw_with=drawn,
    autocast=True,
    validate=validate,
    flops=lambda d: (2 * (d["K"] + d["N"]) + 10) * d["M"] * d["F"],
    backward=Backward(
        mlp_backward,
        grads=("x", "weight1", "bias1", "weight2", "bias2"),
        passes=("residual",),
        spared=("bias1", "bias2"),
        flops=lambda d: (4 * (d["K"] + d["N"]) + 18) * d["M"] * d["F"],
    ),
)


def validate_gated(call, dims):
    if call["activation"] not in GATES:
        raise ValueError(f"gated_mlp: activation is {call['activation']!r}, takes {', '.join(GATES)}")
    if dims["G"] != 2 * dims["F"]:
        raise ValueError(
            f"gated_mlp: weight1 has {dims['G']} rows, those of gate and of up: they must be twice the F of weight2, {dims['F']}"
        )


def torch_gated_mlp(x, weight1, weight2, activation, residual):
    gate, up = F.linear(x, weight1.to(x.dtype)).chunk(2, -1)
    out = F.linear(GATES[activation](gate) * up, weight2.to(x.dtype))
    return out if residual is None else out + residual


def gated(m, k, f, n, dtype=torch.float32, activation="silu", why="", use=("check",), **more):
    sizes = {"..." if isinstance(m, tuple) else "M": m, "K": k, "G": 2 * f, "F": f, "N": n}
    return Case(sizes, dtype, {"activation": activation, **more}, use, why)


GATED_SPEC = OpSpec(
    "gated_mlp",
    gated_mlp,
    args={
        "x": Arg("... K"),
        "weight1": Arg("G K", "io|f32", make=small),
        "weight2": Arg("N F", "io|f32", make=small),
        "residual": Arg("... N", optional=True, word="stream"),
    },
    returns={"out": Arg("... N"), "pre": Arg("... G", saved=True)},
    cases=(
        *across(
            FLOATS,
            gated(24, 32, 72, 40, use=BOTH, why="rows of whole 16 bytes, less than a tile"),
            gated(13, 19, 35, 22, use=BOTH, activation="gelu", why="ragged everywhere, the exact gelu"),
            gated(0, 16, 24, 8, why="no rows: zero gradients of the weights"),
            gated((2, 3, 5), 40, 48, 24, activation="gelu_tanh", why="leading axes"),
            gated(9, 16, 24, 16, activation="relu", why="a gate that shuts"),
        ),
        gated(1, 1, 9, 1, why="one row of one number, and one comes out: of one number PyTorch's error is a coin in 16 bits"),
        gated(16, 24, 48, 32, torch.bfloat16, why="float32 weights beside narrow data", use=BOTH, parameters="float32"),
        *across(
            FLOATS,
            gated(13, 24, 35, 22, use=BOTH, why="added to a stream, ragged", stream="io"),
            gated((2, 3, 5), 40, 48, 24, why="added to a stream, leading axes", stream="io"),
        ),
        gated(263, 136, 264, 264, torch.bfloat16, why="several tiles each way, prime rows"),
        gated(129, 64, 520, 8, torch.float16, why="a short sum and a long one"),
        gated(16384, 2048, 8192, 2048, torch.bfloat16, why="Llama 1.2B, B=4 T=4096", use=("bench",)),
        gated(8192, 4096, 14336, 4096, torch.bfloat16, why="Llama 3 8B, 8192 tokens", use=("bench",)),
    ),
    peer=torch_gated_mlp,
    families=("scaled_rows", "large", "all_equal", "nan"),
    draw_with=drawn,
    autocast=True,
    validate=validate_gated,
    flops=lambda d: (4 * d["K"] + 2 * d["N"] + 5) * d["M"] * d["F"],
    backward=Backward(
        gated_mlp_backward,
        grads=("x", "weight1", "weight2"),
        passes=("residual",),
        flops=lambda d: (8 * d["K"] + 4 * d["N"] + 15) * d["M"] * d["F"],
    ),
)
