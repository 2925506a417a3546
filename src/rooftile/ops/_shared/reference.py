"""What the references share."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """To the dtype arithmetic is done in: float32, and float64 when the gate asks for the truth."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def normalised(
    a: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, layer: bool = True, offset: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(a - mean) rstd (offset + weight) + bias over rows, and both statistics; the mean of an RMSNorm is zero."""
    mean = a.mean(-1, keepdim=True) if layer else torch.zeros_like(a[..., :1])
    if layer:
        a = a - mean
    rstd = (a.square().mean(-1, keepdim=True) + eps).rsqrt()
    a = a * rstd
    if weight is not None:
        a = a * _shifted(weight, offset)
    if bias is not None:
        a = a + wide(bias)
    return a, mean.squeeze(-1), rstd.squeeze(-1)


def normalised_backward(
    dout: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    layer: bool = True,
    offset: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx before it is rounded, dweight, dbias."""
    g, s = wide(dout), rstd.unsqueeze(-1)
    n = (wide(x) if mean is None else wide(x) - mean.unsqueeze(-1)) * s  # the normalised row
    leading = tuple(range(x.dim() - 1))
    dweight = x.new_empty(0) if weight is None else ((g * n).sum(leading) if leading else g * n).to(weight.dtype)
    dbias = x.new_empty(0) if bias is None else (g.sum(leading) if leading else g).to(bias.dtype, copy=True)
    if weight is not None:
        g = g * _shifted(weight, offset)
    along = (g * n).mean(-1, keepdim=True)
    if layer:
        g = g - g.mean(-1, keepdim=True)
    return s * (g - n * along), dweight, dbias


def _shifted(weight: Tensor, offset: float | None) -> Tensor:
    return wide(weight) if offset is None else offset + wide(weight)
