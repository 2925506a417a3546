from torch import Tensor

from rooftile.ops._shared.reference import wide


def rmsnorm(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    a = wide(x)
    rstd = (a.square().mean(-1, keepdim=True) + eps).rsqrt()
    a = a * rstd
    if weight is not None:
        a = a * (offset + wide(weight))
    return a.to(x.dtype), rstd.squeeze(-1)


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    sum = (wide(x) + wide(residual)).to(residual.dtype)
    out, rstd = rmsnorm(sum, weight, eps, offset)  # of the rounded sum, which is what backward reads
    return out.to(x.dtype), sum, rstd


def rmsnorm_backward(dout: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    dx, dweight = _backward(dout, x, weight, rstd, offset)
    return dx.to(x.dtype), dweight


def add_rmsnorm_backward(
    dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, rstd: Tensor, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    dx, dweight = _backward(dout, sum, weight, rstd, offset)
    return (dx + wide(dsum)).to(sum.dtype), dweight


def _backward(dout: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    g, s = wide(dout), rstd.unsqueeze(-1)
    n = wide(x) * s  # the normalised row
    leading = tuple(range(x.dim() - 1))
    dweight = x.new_empty(0) if weight is None else ((g * n).sum(leading) if leading else g * n).to(weight.dtype)
    if weight is not None:
        g = g * (offset + wide(weight))
    return s * (g - n * (g * n).mean(-1, keepdim=True)), dweight
