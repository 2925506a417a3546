"""Every rounding is laid down here, so that all kernels give the same bits:

scale = max(amax * fl32(1 / largest), 2^-126), rounded up to a power of two on request     amax over the block, of what is no NaN
values = rounded(clamp(x * fl32(1 / scale)))                                               to nearest, ties to even, saturating
"""

import torch
from torch import Tensor

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
HUGE = torch.finfo(torch.float32).max
SMALLEST = 2.0**-126  # its reciprocal is finite, and no device flushes it to zero


def _blocks(x: Tensor, m: int, n: int) -> Tensor:
    """[M/m, m, N/n, n] of a matrix; what a block lacks is zeros."""
    down, across = -x.shape[0] % m, -x.shape[1] % n
    return torch.nn.functional.pad(x, (0, across, 0, down)).unflatten(1, (-1, n)).unflatten(0, (-1, m))


def extents(x: Tensor, block_m: int, block_n: int) -> tuple[int, int]:
    """A block's rows and columns; 0 stands for a whole axis."""
    return block_m or max(1, x.shape[0]), block_n or max(1, x.shape[1])


def scale_shape(m: int, n: int, block_m: int, block_n: int) -> tuple[int, ...]:
    """One number for each block; an axis that one block spans is left out."""
    return (*((-(-m // block_m),) if block_m else ()), *((-(-n // block_n),) if block_n else ()))


def _finite(x: Tensor) -> Tensor:
    return x.float().nan_to_num(nan=0.0, posinf=HUGE, neginf=-HUGE)


def _rounded(x: Tensor, to: str) -> Tensor:
    """Saturating. A NaN stays one in 8-bit floats and is 0 in int8."""
    largest = LARGEST[to]
    if to == "int8":
        return x.nan_to_num(nan=0.0).round().clamp(-largest, largest).to(torch.int8)
    return x.clamp(-largest, largest).to(getattr(torch, to))


def quantize(x: Tensor, to: str, block_m: int, block_n: int, power_of_2: bool) -> tuple[Tensor, Tensor]:
    m, n = extents(x, block_m, block_n)
    shape = scale_shape(*x.shape, block_m, block_n)
    if not x.numel():
        return x.to(getattr(torch, to)), x.new_full(shape, SMALLEST, dtype=torch.float32)
    amax = _blocks(_finite(x).abs(), m, n).amax((1, 3))
    scale = (amax * torch.tensor(1 / LARGEST[to], dtype=torch.float32, device="cpu")).clamp_min(SMALLEST)
    if power_of_2:
        scale = ((scale.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    inverse = (1.0 / scale).repeat_interleave(m, 0)[: x.shape[0]].repeat_interleave(n, 1)[:, : x.shape[1]]
    return _rounded(x.float() * inverse, to), scale.reshape(shape)


def quantize_affine(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """int8 between the smallest and the largest element, 0 among them: values = rounded(x / scale) + zero."""
    v = _finite(x)
    low, high = (v.amin().clamp_max(0), v.amax().clamp_min(0)) if x.numel() else (v.new_zeros(()), v.new_zeros(()))
    scale = ((0.5 * high - 0.5 * low) * torch.tensor(2 / 255, dtype=torch.float32, device="cpu")).clamp_min(SMALLEST)
    inverse = 1.0 / scale
    zero = (-128.0 - low * inverse).round().clamp(-128, 127)
    values = (x.float() * inverse).nan_to_num(nan=0.0).round() + zero
    return values.clamp(-128, 127).to(torch.int8), scale, zero.to(torch.int32)


def dequantize(values: Tensor, scale: Tensor, zero: Tensor | None, block_m: int, block_n: int, to: str) -> Tensor:
    m, n = extents(values, block_m, block_n)
    if not values.numel():
        return values.new_empty(values.shape, dtype=getattr(torch, to))
    spread = scale.reshape(-(-len(values) // m), -(-values.shape[1] // n)).repeat_interleave(m, 0)[: len(values)].repeat_interleave(n, 1)
    shifted = values.float() if zero is None else values.float() - zero.float()
    return (shifted * spread[:, : values.shape[1]]).to(getattr(torch, to))
