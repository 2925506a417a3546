import torch

from rooftile.core.spec import FLOATS, Arg, Call, Case, OpSpec, across
from rooftile.ops.quantize.reference import LARGEST, dequantize, quantize, quantize_affine, scale_shape

BLOCKS = {"tensor": (0, 0), "token": (1, 0), "1x128": (1, 128), "128x128": (128, 128)}
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
WIDE = ("float32", "bfloat16", "float16")
X, SCALE = Arg("M N"), Arg("...", "f32")
RUN = ("smoke", "check")


def how(to: str, block: str, power_of_2: bool = False) -> dict:
    return {"to": to, "block_m": BLOCKS[block][0], "block_n": BLOCKS[block][1], "power_of_2": power_of_2}


def scales(call: Call, dims: dict) -> None:
    """The scales' shape follows from the blocks."""
    if call["to"] not in LARGEST:
        raise ValueError(f"quantize: to is {call['to']!r}, it takes {', '.join(LARGEST)}")
    dims["..."] = _scale_shape(call, dims)


def _scale_shape(call: Call, dims: dict) -> tuple[int, ...]:
    if (call["block_m"], call["block_n"]) not in BLOCKS.values():
        raise ValueError(f"quantize: a block is {call['block_m']} x {call['block_n']}, it is one of {', '.join(map(str, BLOCKS.values()))}")
    return scale_shape(dims["M"], dims["N"], call["block_m"], call["block_n"])


def scales_fit(call: Call, dims: dict) -> None:
    if call["to"] not in WIDE:
        raise ValueError(f"dequantize: to is {call['to']!r}, it takes {', '.join(WIDE)}")
    want = _scale_shape(call, dims)
    if tuple(call["scale"].shape) != want:
        raise ValueError(f"dequantize: scale is {list(call['scale'].shape)}, the blocks of {list(call['values'].shape)} need {list(want)}")


def moved(call, results):
    """x is read twice where its scale is not known before its last element."""
    whole = "block_m" not in call or (call["block_m"], call["block_n"]) == (0, 0)
    return call["x"].numel() * call["x"].itemsize * (2 if whole else 1) + sum(t.numel() * t.itemsize for t in results)


def torch_quantize(x, to, block_m, block_n, power_of_2):
    """As it is written by hand, for whole blocks."""
    blocks = x.float().unflatten(1, (-1, block_n or x.shape[1])).unflatten(0, (-1, block_m or x.shape[0]))
    scale = (blocks.abs().amax((1, 3), keepdim=True) / LARGEST[to]).clamp_min(1e-30)
    if power_of_2:
        scale = torch.exp2(torch.log2(scale).ceil())
    values = blocks / scale
    values = values.round().to(torch.int8) if to == "int8" else values.to(getattr(torch, to))
    return values.view(x.shape), scale.reshape(scale_shape(*x.shape, block_m, block_n))


def torch_quantize_affine(x):
    low, high = x.aminmax()
    low, high = low.float().clamp_max(0), high.float().clamp_min(0)
    scale = ((high - low) / 255).clamp_min(1e-30)
    zero = (-128 - low / scale).round()
    return ((x.float() / scale).round() + zero).clamp(-128, 127).to(torch.int8), scale, zero.to(torch.int32)


def torch_dequantize(values, scale, zero, block_m, block_n, to):
    shifted = values.float() if zero is None else values.float() - zero
    if scale.dim() == 0:
        return (shifted * scale).to(getattr(torch, to))
    blocks = shifted.unflatten(1, (-1, block_n or values.shape[1])).unflatten(0, (-1, block_m))
    return (blocks * scale.view(blocks.shape[0], 1, blocks.shape[2], 1)).to(getattr(torch, to)).view(values.shape)


SPEC = OpSpec(
    "quantize",
    quantize,
    args={"x": X},
    returns={"values": Arg("M N", "@to"), "scale": SCALE},
    cases=(
        *(
            c
            for to in LARGEST
            for block in BLOCKS
            for c in (
                Case({"M": 19, "N": 137}, torch.bfloat16, how(to, block), why="ragged blocks"),
                Case({"M": 4, "N": 256}, torch.float32, how(to, block), use=RUN, why="whole blocks"),
                Case({"M": 0, "N": 64}, torch.float32, how(to, block), why="nothing"),
                Case({"M": 3, "N": 0}, torch.float32, how(to, block), why="rows of nothing"),
                Case({"M": 1, "N": 1}, torch.float16, how(to, block), why="one element"),
            )
        ),
        *across(FLOATS, Case({"M": 7, "N": 131}, params=how("int8", "tensor"), use=RUN, why="ragged, one scale")),
        Case({"M": 3, "N": 200}, torch.float32, how("float8_e4m3fn", "1x128", True), use=RUN, why="scales that are powers of two"),
        Case({"M": 3, "N": 200}, torch.bfloat16, how("float8_e5m2", "token", True), why="scales that are powers of two"),
        Case({"M": 130, "N": 300}, torch.bfloat16, how("float8_e4m3fn", "128x128", True), why="ragged in both directions"),
        Case({"M": 3, "N": 20001}, torch.bfloat16, how("float8_e4m3fn", "token"), use=RUN, why="longer than a row in registers"),
        Case({"M": 65, "N": 8193}, torch.float32, how("int8", "tensor"), why="every program of the persistent first pass"),
        Case({"M": 16384, "N": 8192}, torch.bfloat16, how("int8", "tensor"), use=("bench",), why="anchor"),
        *(
            Case({"M": 16384, "N": 8192}, torch.bfloat16, how("float8_e4m3fn", block), use=("bench",), why="anchor")
            for block in ("tensor", "token", "1x128", "128x128")
        ),
        Case({"M": 64, "N": 8192}, torch.bfloat16, how("float8_e4m3fn", "token"), use=("bench",), why="decoding"),
    ),
    peer=torch_quantize,
    families=("scaled_rows", "large", "all_equal", "nan"),
    exact=True,
    moved=moved,
    validate=scales,
    flops=lambda d: 4 * d["M"] * d["N"],
)
AFFINE = OpSpec(
    "quantize_affine",
    quantize_affine,
    args={"x": Arg("M N")},
    returns={"values": Arg("M N", "i8"), "scale": Arg("", "f32"), "zero": Arg("", "i32")},
    cases=(
        *across(FLOATS, Case({"M": 7, "N": 131}, use=RUN, why="ragged")),
        Case({"M": 0, "N": 64}, torch.float32, why="nothing"),
        Case({"M": 1, "N": 1}, torch.float32, why="one element"),
        Case({"M": 65, "N": 8193}, torch.float32, why="every program of the persistent first pass"),
        Case({"M": 16384, "N": 8192}, torch.bfloat16, use=("bench",), why="anchor"),
    ),
    peer=torch_quantize_affine,
    families=("scaled_rows", "large", "all_equal", "nan"),
    exact=True,
    moved=moved,
    flops=lambda d: 6 * d["M"] * d["N"],
)


def spread(shape, dtype, gen, dims):
    """Numbers that use the whole range of 8 bits."""
    return (torch.rand(shape, generator=gen, device=gen.device) * 240 - 120).to(dtype)


def scaled(call, case, gen):
    m, n = call["values"].shape
    shape = scale_shape(m, n, call["block_m"], call["block_n"])
    call["scale"] = torch.rand(shape, generator=gen, device=gen.device) + 0.01
    call["zero"] = torch.full((), -7, dtype=torch.int32, device=gen.device) if case.params.get("shifted") else None
    return call


def back(to: str, block: str) -> dict:
    return {"to": to, "block_m": BLOCKS[block][0], "block_n": BLOCKS[block][1]}


DEQUANTIZE = OpSpec(
    "dequantize",
    dequantize,
    args={"values": Arg("M N", make=spread), "scale": SCALE, "zero": Arg("", "i32", optional=True)},
    returns={"out": Arg("M N", "@to")},
    cases=(
        *(Case({"M": 9, "N": 137}, t, back("float32", b), use=RUN, why="ragged blocks") for t in NARROW for b in BLOCKS),
        Case({"M": 9, "N": 137}, torch.int8, {**back("bfloat16", "tensor"), "shifted": True}, use=RUN, why="a zero that is not 0"),
        *(Case({"M": 260, "N": 300}, NARROW[0], back(to, "128x128"), why="several tiles") for to in ("bfloat16", "float16")),
        Case({"M": 0, "N": 5}, NARROW[0], back("float32", "token"), why="nothing"),
        *(Case({"M": 16384, "N": 8192}, NARROW[0], back("bfloat16", b), use=("bench",), why="anchor's way back") for b in BLOCKS),
    ),
    peer=torch_dequantize,
    dtypes=NARROW,
    families=(),
    draw_with=scaled,
    exact=True,
    validate=scales_fit,
    flops=lambda d: d["M"] * d["N"],
)
