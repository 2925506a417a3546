from functools import partial

import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Call, Case, OpSpec, across, positive
from rooftile.ops._shared.draw import parameters
from rooftile.ops.quantize.fused_reference import add_rmsnorm_quantize, rmsnorm_quantize, swiglu_quantize
from rooftile.ops.quantize.reference import LARGEST, scale_shape
from rooftile.ops.quantize.spec import RUN, SCALE, torch_quantize

EIGHT_BIT_FLOATS = ("float8_e4m3fn", "float8_e5m2")
X, WEIGHT = Arg("M N"), Arg("N", "io|f32", make=positive, optional=True)
FAMILIES = ("scaled_rows", "large", "all_equal", "nan")


def how(to: str, block: str, power_of_2: bool = False, **more) -> dict:
    return {**more, "to": to, "block_n": {"token": 0, "1x128": 128}[block], "power_of_2": power_of_2}


TOKEN, GROUPS = how("float8_e4m3fn", "token"), how("float8_e4m3fn", "1x128")
E5M2, POWERS = how("float8_e5m2", "1x128"), how("float8_e5m2", "token", True)


def normed(params: dict, **more) -> dict:
    return {"eps": 1e-6, **params, **more}


def scales(name: str, columns: str, call: Call, dims: dict) -> None:
    """The scales' shape follows from the blocks."""
    if call["to"] not in EIGHT_BIT_FLOATS:
        raise ValueError(f"{name}: to is {call['to']!r}, it takes {', '.join(EIGHT_BIT_FLOATS)}")
    if call["block_n"] not in (0, 128):
        raise ValueError(f"{name}: a block is 1 x {call['block_n']}, it is 1 x 0 (a row) or 1 x 128")
    dims["..."] = scale_shape(dims["M"], dims[columns], 1, call["block_n"])


def halves(call: Call, dims: dict) -> None:
    """K of the result: up's, which is also gate's N; or half of N where gate is both."""
    n = dims["N"]
    if call["up"] is None and n % 2:
        raise ValueError(f"swiglu_quantize: N is {n} in gate, which without up is gate and up side by side: N must be even")
    k = dims["K"] if call["up"] is not None else n // 2
    if call["up"] is not None and n != k:
        raise ValueError(f"swiglu_quantize: N is {k} in up, but {n} in gate")
    dims["K"] = k
    scales("swiglu_quantize", "K", call, dims)


def torch_rmsnorm_quantize(x, weight, eps, to, block_n, power_of_2):
    """As it is written by hand, for whole blocks: the norm, and then the quantisation."""
    same = weight is None or weight.dtype == x.dtype
    y = F.rms_norm(x, x.shape[-1:], weight, eps) if same else F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)
    return torch_quantize(y, to, 1, block_n, power_of_2)


def torch_add_rmsnorm_quantize(x, residual, weight, eps, to, block_n, power_of_2):
    sum = x + residual
    return *torch_rmsnorm_quantize(sum, weight, eps, to, block_n, power_of_2), sum


def torch_swiglu_quantize(gate, up, to, block_n, power_of_2):
    """A NaN is not counted here either, or there would be nothing to measure by."""
    g, u = (gate, up) if up is not None else gate.chunk(2, -1)
    y = F.silu(g.float()) * u.float()
    n = y.shape[1]
    blocks = F.pad(y, (0, -n % (block_n or n))).unflatten(1, (-1, block_n or n))
    scale = (blocks.abs().nan_to_num(0.0).amax(2, keepdim=True) / LARGEST[to]).clamp_min(1e-30)
    if power_of_2:
        scale = torch.exp2(torch.log2(scale).ceil())
    return (blocks / scale).to(getattr(torch, to)).flatten(1)[:, :n], scale.reshape(scale_shape(*y.shape, 1, block_n))


SPEC = OpSpec(
    "rmsnorm_quantize",
    rmsnorm_quantize,
    args={"x": X, "weight": WEIGHT},
    returns={"values": Arg("M N", "@to"), "scale": SCALE},
    cases=(
        *across(FLOATS, Case({"M": 5, "N": 136}, params=normed(GROUPS), use=RUN, why="rows of whole 16 bytes, a ragged second group")),
        *across(FLOATS, Case({"M": 7, "N": 67}, params=normed(TOKEN), use=("check",), why="primes")),
        Case({"M": 3, "N": 67}, torch.float32, normed(POWERS), use=RUN, why="primes; scales that are powers of two"),
        Case({"M": 3, "N": 520}, torch.bfloat16, normed(TOKEN, affine="float32"), use=RUN, why="a float32 weight, rows of 16 bits"),
        Case({"M": 2, "N": 256}, torch.float16, normed(E5M2, affine="none"), why="no weight"),
        Case({"M": 0, "N": 64}, torch.float32, normed(TOKEN), why="nothing"),
        Case({"M": 3, "N": 0}, torch.float32, normed(TOKEN), why="rows of nothing"),
        Case({"M": 4, "N": 1}, torch.float32, normed(GROUPS), why="one column: the sign of x times the weight"),
        Case({"M": 3, "N": 20008}, torch.bfloat16, normed(TOKEN), why="longer than a row in Triton's registers"),
        Case({"M": 2, "N": 40000}, torch.bfloat16, normed(GROUPS), why="longer than a row in any registers"),
        *(Case({"M": 16384, "N": n}, torch.bfloat16, normed(p), use=("bench",), why="anchor's shapes") for n in (4096, 8192) for p in (TOKEN, GROUPS)),
        Case({"M": 64, "N": 8192}, torch.bfloat16, normed(TOKEN), use=("bench",), why="decoding"),
    ),
    peer=torch_rmsnorm_quantize,
    families=FAMILIES,
    exact=True,
    draw_with=parameters,
    validate=partial(scales, "rmsnorm_quantize", "N"),
    flops=lambda d: 8 * d["M"] * d["N"],
)  # fmt: skip

ADD_SPEC = OpSpec(
    "add_rmsnorm_quantize",
    add_rmsnorm_quantize,
    args={"x": X, "residual": Arg("M N", "io|f32"), "weight": WEIGHT},
    returns={"values": Arg("M N", "@to"), "scale": SCALE, "sum": Arg("M N", "=residual")},
    cases=(
        Case({"M": 5, "N": 136}, torch.float32, normed(GROUPS), use=RUN, why="rows of whole 16 bytes, a ragged second group"),
        *across(FLOATS[1:], Case({"M": 3, "N": 136}, params=normed(TOKEN), use=RUN, why="a sum rounded to 16 bits before the norm")),
        Case({"M": 7, "N": 67}, torch.bfloat16, normed(E5M2), why="primes"),
        Case({"M": 0, "N": 64}, torch.float32, normed(TOKEN), why="nothing"),
        Case({"M": 3, "N": 264}, torch.bfloat16, normed(TOKEN, stream="float32"), why="a float32 stream"),
        Case({"M": 16384, "N": 4096}, torch.bfloat16, normed(TOKEN), use=("bench",), why="as add_rmsnorm's anchor"),
        Case({"M": 16384, "N": 4096}, torch.bfloat16, normed(GROUPS), use=("bench",), why="as add_rmsnorm's anchor"),
    ),
    peer=torch_add_rmsnorm_quantize,
    families=FAMILIES,
    exact=True,
    draw_with=lambda call, case, gen: {**call, "residual": call["residual"].float()} if case.params.get("stream") else call,
    validate=partial(scales, "add_rmsnorm_quantize", "N"),
    flops=lambda d: 9 * d["M"] * d["N"],
)

SWIGLU = OpSpec(
    "swiglu_quantize",
    swiglu_quantize,
    args={"gate": X, "up": Arg("M K", optional=True)},
    returns={"values": Arg("M K", "@to"), "scale": SCALE},
    cases=(
        *across(FLOATS, Case({"M": 5, "N": 136, "K": 136}, params=GROUPS, use=RUN, why="rows of whole 16 bytes, a ragged second group")),
        *across(FLOATS, Case({"M": 7, "N": 67, "K": 67}, params=TOKEN, use=("check",), why="primes")),
        Case({"M": 3, "N": 67, "K": 67}, torch.float32, POWERS, use=RUN, why="primes; scales that are powers of two"),
        Case({"M": 3, "N": 528, "K": 264}, torch.bfloat16, {**TOKEN, "up": None}, use=RUN, why="side by side, rows of 16 bytes"),
        Case({"M": 3, "N": 134, "K": 67}, torch.float16, {**E5M2, "up": None}, why="side by side, primes"),
        Case({"M": 0, "N": 64, "K": 64}, torch.float32, TOKEN, why="nothing"),
        *(Case({"M": 3, "N": 0, "K": 0}, torch.float32, p, why="rows of nothing") for p in (TOKEN, GROUPS)),
        Case({"M": 1, "N": 1, "K": 1}, torch.float32, GROUPS, why="one element"),
        Case({"M": 3, "N": 20008, "K": 20008}, torch.bfloat16, TOKEN, why="longer than a row in Triton's registers"),
        *(Case({"M": 16384, "N": 14336, "K": 14336}, torch.bfloat16, p, use=("bench",), why="swiglu's anchor") for p in (TOKEN, GROUPS)),
        Case({"M": 16384, "N": 28672, "K": 14336}, torch.bfloat16, {**GROUPS, "up": None}, use=("bench",), why="one projection of both"),
        Case({"M": 64, "N": 14336, "K": 14336}, torch.bfloat16, TOKEN, use=("bench",), why="64 tokens"),
    ),
    peer=torch_swiglu_quantize,
    families=FAMILIES,
    validate=halves,
    flops=lambda d: 9 * d["M"] * d["K"],
)
