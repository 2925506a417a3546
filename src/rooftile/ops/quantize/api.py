from collections.abc import Sequence

import torch
from torch import Tensor

from rooftile.core.kernel import Op
from rooftile.ops.quantize import cuda_kernels, triton_kernels
from rooftile.ops.quantize.reference import LARGEST
from rooftile.ops.quantize.spec import AFFINE, BLOCKS, DEQUANTIZE, SPEC

_quantize = Op(SPEC, *triton_kernels.FORWARD, *cuda_kernels.FORWARD)
_affine = Op(AFFINE, *triton_kernels.AFFINE, *cuda_kernels.AFFINE)
_dequantize = Op(DEQUANTIZE, *triton_kernels.DEQUANTIZE, *cuda_kernels.DEQUANTIZE)


def _matrix(x: Tensor, block: str) -> Tensor:
    if block == "128x128" and x.dim() != 2:
        raise ValueError(f"quantize: blocks of 128x128 are a matrix's, but x has {x.dim()} axes {list(x.shape)}")
    return (
        x
        if x.dim() == 2
        else x.reshape(-1, x.shape[-1])
        if x.dim() and x.numel()
        else x.reshape(0 if not x.numel() else 1, x.shape[-1] if x.dim() else 1)
    )


def quantize(x: Tensor, to: torch.dtype = torch.float8_e4m3fn, *, block: str = "tensor", power_of_2: bool = False) -> tuple[Tensor, Tensor]:
    """x as 8-bit values and float32 scales, x ~ values * scale, symmetric about 0:

        scale = amax / largest over each block      values = x / scale, to nearest (ties to even)

    largest is 127 for int8, 448 for e4m3, 57344 for e5m2. The bits are the same on every device: `reference.py` says each rounding.

    Args:
        x: float32, bfloat16 or float16, any strides.
        to: torch.int8, torch.float8_e4m3fn or torch.float8_e5m2.
        block: who shares a scale: "tensor" (all), "token" (a row of the last axis), "1x128" (128 neighbours of a row), "128x128" (of a matrix).
        power_of_2: scales are rounded up to powers of two, which makes undoing them exact.

    Returns:
        values of x's shape, and scales: [], x.shape[:-1], [..., ceil(N/128)], or [ceil(M/128), ceil(N/128)]. No gradient.
        A NaN is not counted for the maximum; it stays NaN in 8-bit floats and becomes 0 in int8. Infinity counts as the largest float32.

    Raises:
        ValueError: another dtype or block, with what it takes.

    Source: Micikevicius et al., FP8 formats for deep learning, 2022; blocks: DeepSeek-V3, 2024.

    Example:
        >>> quantize(torch.tensor([[1.0, -2.0]]), torch.int8)
        (tensor([[  64, -127]], dtype=torch.int8), tensor(0.0157))
    """
    name = str(to).removeprefix("torch.")
    if name not in LARGEST:
        raise ValueError(f"quantize: to is {to}, it takes {', '.join(LARGEST)}")
    if block not in BLOCKS:
        raise ValueError(f"quantize: block is {block!r}, it takes {', '.join(BLOCKS)}")
    values, scale = _quantize(_matrix(x, block), name, *BLOCKS[block], power_of_2)
    lead = x.shape[:-1]
    return values.view(x.shape), scale if block in ("tensor", "128x128") else scale.view(*lead, *scale.shape[1:])


def quantize_affine(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x as int8 between its extremes, x ~ (values - zero) * scale:

        scale = (max(x, 0) - min(x, 0)) / 255      zero = -128 - min(x, 0) / scale      values = x / scale + zero

    each to nearest, ties to even; bit-exact on every device. A NaN becomes `zero` and is not counted.

    Args:
        x: float32, bfloat16 or float16, any shape and strides.

    Returns:
        values (int8, x's shape), scale (float32 []), zero (int32 []). No gradient.

    Raises:
        ValueError: another dtype.

    Example:
        >>> quantize_affine(torch.tensor([0.0, 255.0]))[0]
        tensor([-128,  127], dtype=torch.int8)
    """
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
        ValueError: a scale of another shape, with both; other dtypes.

    Example:
        >>> dequantize(torch.tensor([2], dtype=torch.int8), torch.tensor(0.5), to=torch.float32)
        tensor([1.])
    """
    block = _block_of(tuple(scale.shape), tuple(values.shape))
    x = _matrix(values, block)
    flat = scale if block in ("tensor", "128x128") else scale.reshape(-1) if block == "token" else scale.reshape(x.shape[0], -1)
    return _dequantize(x, flat, zero, *BLOCKS[block], str(to).removeprefix("torch.")).view(values.shape)


def _block_of(scale: Sequence[int], values: Sequence[int]) -> str:
    groups = tuple(-(-n // 128) for n in values)
    known = {(): "tensor", values[:-1]: "token", (*values[:-1], *groups[-1:]): "1x128"}
    if len(values) == 2:
        known.setdefault(groups, "128x128")
    if scale not in known:
        raise ValueError(f"dequantize: scale is {list(scale)}, for values {list(values)} it is {' or '.join(str(list(s)) for s in known)}")
    return known[scale]
