import torch
from torch import Tensor

from rooftile.ops._shared.philox import kept, scale
from rooftile.ops._shared.reference import wide


def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, seed: Tensor, p: float, eps: float, norm: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dropped = torch.where(kept(x.shape, seed, p), wide(x) * scale(p), 0.0)
    sum = (dropped + wide(residual)).to(residual.dtype)
    a = wide(sum)  # of the rounded sum, which is what backward reads
    mean = a.mean(-1, keepdim=True) if norm == "layer" else torch.zeros_like(a[..., :1])
    a = a - mean
    rstd = (a.square().mean(-1, keepdim=True) + eps).rsqrt()
    a = a * rstd
    if weight is not None:
        a = a * wide(weight)
    if bias is not None:
        a = a + wide(bias)
    return a.to(x.dtype), sum, mean.squeeze(-1), rstd.squeeze(-1)


def dropout_add_norm_backward(
    dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, seed: Tensor,
    p: float, norm: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    g, s = wide(dout), rstd.unsqueeze(-1)
    n = (wide(sum) - mean.unsqueeze(-1)) * s  # the normalised row
    leading = tuple(range(sum.dim() - 1))
    dweight = sum.new_empty(0) if weight is None else ((g * n).sum(leading) if leading else g * n).to(weight.dtype)
    dbias = sum.new_empty(0) if bias is None else (g.sum(leading) if leading else g).to(bias.dtype, copy=True)
    if weight is not None:
        g = g * wide(weight)
    if norm == "layer":
        g = g - g.mean(-1, keepdim=True)
    total = s * (g - n * (g * n).mean(-1, keepdim=True)) + wide(dsum)
    dx = torch.where(kept(sum.shape, seed, p), total * scale(p), 0.0)
    return dx.to(dout.dtype), total.to(sum.dtype), dweight, dbias
