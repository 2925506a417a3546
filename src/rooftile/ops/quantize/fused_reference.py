"""What comes before a quantised matrix product, and the quantisation, in one pass. The values between the two are float32 and rounded by
nothing but their own arithmetic. RMSNorm's is laid down to the last bit, so that all kernels give the same bytes; SiLU's exponential is each
device's own, so there the gate measures."""

import torch
from torch import Tensor

from rooftile.ops._shared.activation_reference import activate
from rooftile.ops._shared.reference import wide
from rooftile.ops.quantize.reference import LARGEST, SMALLEST, quantize, scale_shape


def inverse_root(a: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean a^2 + eps) of each row of a float32 matrix. Squares of 4 neighbours are added in float32, these sums in float64: in 53 bits
    the order of a row's sums does not reach the float32 they are rounded to. The root is taken in float64 too, for PyTorch's of float32 is not
    always the nearest number on a CPU."""
    q = torch.nn.functional.pad(a * a, (0, -a.shape[1] % 4)).unflatten(1, (-1, 4))
    q = (q[..., 0] + q[..., 1]) + (q[..., 2] + q[..., 3])
    mean = q.double().sum(1).float() * torch.tensor(1 / max(1, a.shape[1]), dtype=torch.float32, device="cpu")
    return 1.0 / (mean + eps).double().sqrt().float()


def rmsnorm_quantize(x: Tensor, weight: Tensor | None, eps: float, to: str, block_n: int, power_of_2: bool) -> tuple[Tensor, Tensor]:
    y = x.float()
    y = y * inverse_root(y, eps)[:, None]
    return quantize(y if weight is None else y * weight.float(), to, 1, block_n, power_of_2)


def add_rmsnorm_quantize(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, to: str, block_n: int, power_of_2: bool
) -> tuple[Tensor, Tensor, Tensor]:
    sum = (x.float() + residual.float()).to(residual.dtype)
    return *rmsnorm_quantize(sum, weight, eps, to, block_n, power_of_2), sum


def swiglu_quantize(gate: Tensor, up: Tensor | None, to: str, block_n: int, power_of_2: bool) -> tuple[Tensor, Tensor]:
    k = gate.shape[1] // 2 if up is None else gate.shape[1]
    y = activate(wide(gate[:, :k]), "silu") * wide(gate[:, k:] if up is None else up)
    return unrounded(y, to, block_n, power_of_2) if y.dtype == torch.float64 else quantize(y, to, 1, block_n, power_of_2)


def unrounded(y: Tensor, to: str, block_n: int, power_of_2: bool) -> tuple[Tensor, Tensor]:
    """What values and scales would be if nothing were rounded: the truth that the gate measures from."""
    m, n = y.shape
    shape = scale_shape(m, n, 1, block_n)
    if not y.numel():
        return y, y.new_full(shape, SMALLEST)
    side = block_n or n
    blocks = torch.nn.functional.pad(y, (0, -n % side)).unflatten(1, (-1, side)).nan_to_num(nan=0.0)
    scale = (blocks.abs().amax(2) / LARGEST[to]).clamp_min(SMALLEST)
    scale = torch.exp2(torch.log2(scale).ceil()) if power_of_2 else scale
    values = (y / scale.repeat_interleave(side, 1)[:, :n]).clamp(-LARGEST[to], LARGEST[to])
    return values, scale.reshape(shape)
