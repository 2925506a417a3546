import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rooftile.core.bind import dtype_name, has_rows, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.ops.quantize import cuda_kernels, fused_cuda_kernels, fused_kernels, triton_kernels
from rooftile.ops.quantize.fused_spec import ADD_SPEC, EIGHT_BIT_FLOATS, SWIGLU
from rooftile.ops.quantize.fused_spec import SPEC as NORM_SPEC
from rooftile.ops.quantize.reference import LARGEST
from rooftile.ops.quantize.spec import AFFINE, BLOCKS, DEQUANTIZE, SPEC, WIDE

_quantize = Op(SPEC, *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v2_vector"))
_affine = Op(AFFINE, *ranked((*triton_kernels.AFFINE, *cuda_kernels.AFFINE), "cuda.v3_packed"))
_rmsnorm = Op(NORM_SPEC, *ranked((*fused_kernels.NORM, *fused_cuda_kernels.NORM), "cuda.v4_fused_rows"))
_add_rmsnorm = Op(ADD_SPEC, *ranked((*fused_kernels.ADD_NORM, *fused_cuda_kernels.ADD_NORM), "cuda.v4_fused_rows"))
_swiglu = Op(SWIGLU, *ranked((*fused_kernels.GATED, *fused_cuda_kernels.GATED), "cuda.v4_fused_rows"))
_dequantize = Op(DEQUANTIZE, *triton_kernels.DEQUANTIZE, *cuda_kernels.DEQUANTIZE)


def _matrix(x: Tensor, block: str) -> Tensor:
    if block == "128x128" and x.dim() != 2:
        raise ValueError(f"quantize: blocks of 128x128 are a matrix's, but x has {x.dim()} axes {list(x.shape)}")
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1] if x.dim() else 1)


def quantize(x: Tensor, to: torch.dtype = torch.float8_e4m3fn, *, block: str = "tensor", power_of_2: bool = False) -> tuple[Tensor, Tensor]:
    """x as 8-bit values and float32 scales, x ~ values * scale, symmetric about 0:

        scale = amax / largest over each block      values = x / scale, to nearest (ties to even)

    largest is 127 for int8, 448 for e4m3, 57344 for e5m2; no scale is below 2^-126, that of zeros too. The bits are the same on every device:
    `reference.py` says each rounding.

    Args:
        x: float32, bfloat16 or float16, any strides.
        to: torch.int8, torch.float8_e4m3fn or torch.float8_e5m2.
        block: who shares a scale: "tensor" (all), "token" (a row of the last axis), "1x128" (128 neighbours of a row), "128x128" (of a matrix).
        power_of_2: scales are rounded up to powers of two, which makes undoing them exact.

    Returns:
        values of x's shape, and scales: [], x.shape[:-1], [..., ceil(N/128)], or [ceil(M/128), ceil(N/128)]. No gradient.
        A NaN is not counted for the maximum; it stays NaN in 8-bit floats and becomes 0 in int8. Infinity counts as the largest float32.

    Raises:
        ValueError: another dtype or block, with what it takes; x requires a gradient.

    Source: Micikevicius et al., FP8 formats for deep learning, 2022; blocks: DeepSeek-V3, 2024.

    Example:
        >>> quantize(torch.tensor([[1.0, -2.0]]), torch.int8)
        (tensor([[  64, -127]], dtype=torch.int8), tensor(0.0157))
    """
    name = dtype_name("quantize", "to", to, LARGEST)
    if not isinstance(block, str) or block not in BLOCKS:
        raise ValueError(f"quantize: block is {block!r}, it takes {', '.join(BLOCKS)}")
    tensors("quantize", x=x)
    values, scale = _quantize(_matrix(x, block), name, *BLOCKS[block], power_of_2)
    lead = x.shape[:-1]
    return values.view(x.shape), scale if block in ("tensor", "128x128") else scale.view((*lead, *scale.shape[1:]))


def quantize_affine(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x as int8 between its extremes, x ~ (values - zero) * scale:

        scale = (max(x, 0) - min(x, 0)) / 255      zero = -128 - min(x, 0) / scale      values = x / scale + zero

    each to nearest, ties to even, the scale no less than 2^-126; bit-exact on every device. A NaN becomes `zero` and is not counted.

    Args:
        x: float32, bfloat16 or float16, any shape and strides.

    Returns:
        values (int8, x's shape), scale (float32 []), zero (int32 []). No gradient.

    Raises:
        ValueError: another dtype; x requires a gradient.

    Example:
        >>> quantize_affine(torch.tensor([0.0, 255.0]))[0]
        tensor([-128,  127], dtype=torch.int8)
    """
    tensors("quantize_affine", x=x)
    values, scale, zero = _affine(_matrix(x, "tensor"))
    return values.view(x.shape), scale, zero


def dequantize(values: Tensor, scale: Tensor, zero: Tensor | None = None, *, to: torch.dtype = torch.bfloat16) -> Tensor:
    """values * scale, or (values - zero) * scale, in float32 and rounded once to `to`.

    Args:
        values: int8, float8_e4m3fn or float8_e5m2.
        scale: float32, of one of the shapes that `quantize` returns; its shape says who shares a scale.
        zero: int32 [], for `quantize_affine`.
        to: float32, bfloat16 or float16.

    Raises:
        ValueError: a scale of another shape, with both; other dtypes; the scale requires a gradient.

    Example:
        >>> dequantize(torch.tensor([2], dtype=torch.int8), torch.tensor(0.5), to=torch.float32)
        tensor([1.])
    """
    tensors("dequantize", values=values, scale=scale)
    block = _block_of(tuple(scale.shape), tuple(values.shape))
    x = _matrix(values, block)
    flat = (
        scale if block in ("tensor", "128x128") else scale.reshape(-1) if block == "token" else scale.reshape(x.shape[0], scale.shape[-1])
    )
    return _dequantize(x, flat, zero, *BLOCKS[block], dtype_name("dequantize", "to", to, WIDE)).view(values.shape)


def rmsnorm_quantize(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, to: torch.dtype = torch.float8_e4m3fn, *,
                     block: str = "token", power_of_2: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    """quantize(rmsnorm(x, weight, eps), to), in one pass: what stands before a matrix product in 8 bits.

    The norm stays float32 until it is rounded to its byte, so it is rounded once where the two calls round twice; the bits are the same on every
    device.

    Args:
        x: [..., N] float32, bfloat16 or float16, any strides.
        weight: [N] in x's dtype or float32; may be absent.
        eps: added to the mean square.
        to: torch.float8_e4m3fn or torch.float8_e5m2.
        block: who shares a scale: "token" (a row) or "1x128" (128 neighbours of a row).
        power_of_2: scales are rounded up to powers of two.

    Returns:
        values of x's shape, and scales: x.shape[:-1] or [..., ceil(N/128)]. No gradient.

    Raises:
        ValueError: another dtype or block, with what it takes; N differs between x and weight; an argument requires a gradient.

    Source: as `rmsnorm` and `quantize`.

    Example:
        >>> rmsnorm_quantize(torch.tensor([[3.0, 3.0]]), eps=0.0)[0].float()
        tensor([[448., 448.]])
    """
    name, block_n = _eight_bits("rmsnorm_quantize", to, block)
    tensors("rmsnorm_quantize", {"weight": weight}, x=x)
    has_rows("rmsnorm_quantize", "x", x)
    values, scale = _rmsnorm(_matrix(x, block), weight, eps, name, block_n, power_of_2)
    return values.view(x.shape), scale.view((*x.shape[:-1], *scale.shape[1:]))


def add_rmsnorm_quantize(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6, to: torch.dtype = torch.float8_e4m3fn, *,
                         block: str = "token", power_of_2: bool = False) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """sum = x + residual, rounded once, and `rmsnorm_quantize` of that sum, in one pass.

    Args:
        x, residual: [..., N] of one shape, any strides; residual has x's dtype or float32. The others as in `rmsnorm_quantize`.

    Returns:
        (values, scales, sum), the sum in residual's dtype. No gradient.

    Raises:
        ValueError: x and residual differ in shape or dtype; else as `rmsnorm_quantize`.

    Example:
        >>> add_rmsnorm_quantize(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 0.0]]), eps=0.0)[2]
        tensor([[3., 3.]])
    """
    name, block_n = _eight_bits("add_rmsnorm_quantize", to, block)
    tensors("add_rmsnorm_quantize", {"weight": weight}, x=x, residual=residual)
    has_rows("add_rmsnorm_quantize", "x", x)
    if x.shape != residual.shape:
        raise ValueError(f"add_rmsnorm_quantize: x is {list(x.shape)}, but residual {list(residual.shape)}")
    values, scale, sum = _add_rmsnorm(_matrix(x, block), _matrix(residual, block), weight, eps, name, block_n, power_of_2)
    return values.view(x.shape), scale.view((*x.shape[:-1], *scale.shape[1:])), sum.view(x.shape)


def swiglu_quantize(gate: Tensor, up: Tensor | None = None, to: torch.dtype = torch.float8_e4m3fn, *, block: str = "token",
                    power_of_2: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    """quantize(silu(gate) * up, to), in one pass: what stands before the last matrix product of a gated layer in 8 bits.

    The product stays float32 until it is rounded to its byte. SiLU's exponential is the device's own, so on two devices a value near a tie may
    go either way.

    Args:
        gate, up: [..., K] of one shape and dtype (float32, bfloat16, float16); rows may lie apart. Without up, gate is [..., 2 K]: the gate and,
            beside it, up. The others as in `rmsnorm_quantize`.

    Returns:
        values [..., K], and scales: [...] or [..., ceil(K/128)]. No gradient.

    Raises:
        ValueError: shapes or dtypes differ, or a gate without up has an odd last axis; another `to` or block; an argument requires a gradient.

    Source: as `swiglu` and `quantize`.

    Example:
        >>> swiglu_quantize(torch.tensor([[20.0, 20.0]]), torch.tensor([[1.0, 2.0]]))[0].float()
        tensor([[224., 448.]])
    """
    name, block_n = _eight_bits("swiglu_quantize", to, block)
    tensors("swiglu_quantize", {"up": up}, gate=gate)
    has_rows("swiglu_quantize", "gate", gate)
    if up is not None and gate.shape != up.shape:
        raise ValueError(f"swiglu_quantize: gate is {list(gate.shape)}, but up {list(up.shape)}")
    values, scale = _swiglu(_matrix(gate, block), None if up is None else _matrix(up, block), name, block_n, power_of_2)
    lead = gate.shape[:-1]
    return values.view(*lead, values.shape[1]), scale.view((*lead, *scale.shape[1:]))


def _eight_bits(name: str, to: torch.dtype, block: str) -> tuple[str, int]:
    said = dtype_name(name, "to", to, EIGHT_BIT_FLOATS)
    if block not in ("token", "1x128"):
        raise ValueError(f"{name}: block is {block!r}, it takes token, 1x128")
    return said, BLOCKS[block][1]


def _block_of(scale: Sequence[int], values: Sequence[int]) -> str:
    groups = tuple(-(-n // 128) for n in values or (1,))  # a number alone is a row of one
    known = [("tensor", ()), ("token", values[:-1]), ("1x128", (*values[:-1], groups[-1]))] + [("128x128", groups)] * (len(values) == 2)
    for block, shape in known:  # compared and not looked up: under torch.export sizes are symbols, which have no hash
        if len(scale) == len(shape) and scale == shape:
            return block
    raise ValueError(
        f"dequantize: scale is {list(scale)}, for values {list(values)} it is {' or '.join(dict.fromkeys(str(list(s)) for _, s in known))}"
    )
