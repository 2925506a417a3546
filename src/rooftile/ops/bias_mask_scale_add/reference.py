import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def bias_mask_scale_add(x: Tensor, bias: Tensor, mask: Tensor, scale: float, residual: Tensor) -> Tensor:
    kept = torch.where(mask, (wide(x) + wide(bias)) * scale, 0.0)
    return (kept + wide(residual)).to(x.dtype)


def bias_mask_scale_add_backward(dout: Tensor, bias: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    dx = torch.where(mask, wide(dout) * scale, 0.0)
    leading = tuple(range(dx.dim() - 1))
    return dx.to(dout.dtype), (dx.sum(leading) if leading else dx).to(bias.dtype, copy=True)
