import torch
from torch import Tensor

from rooftile.ops._shared.philox import kept, scale
from rooftile.ops._shared.reference import normalised, normalised_backward, wide


def dropout_add_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, seed: Tensor, p: float, eps: float, norm: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dropped = torch.where(kept(x.shape, seed, p), wide(x) * scale(p), 0.0)
    sum = (dropped + wide(residual)).to(residual.dtype)
    a, mean, rstd = normalised(wide(sum), weight, bias, eps, norm == "layer")  # of the rounded sum, which is what backward reads
    return a.to(x.dtype), sum, mean if norm == "layer" else torch.zeros_like(rstd), rstd  # a row without columns has statistics too


def dropout_add_norm_backward(
    dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, seed: Tensor,
    p: float, norm: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    total, dweight, dbias = normalised_backward(dout, sum, weight, bias, mean, rstd, norm == "layer")
    total = total + wide(dsum)
    dx = torch.where(kept(sum.shape, seed, p), total * scale(p), 0.0)
    return dx.to(dout.dtype), total.to(sum.dtype), dweight, dbias
