from torch import Tensor

from rooftile.ops._shared.reference import normalised, normalised_backward, wide


def rmsnorm(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    a, _, rstd = normalised(wide(x), weight, None, eps, False, offset)
    return a.to(x.dtype), rstd


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    sum = (wide(x) + wide(residual)).to(residual.dtype)
    out, rstd = rmsnorm(sum, weight, eps, offset)  # of the rounded sum, which is what backward reads
    return out.to(x.dtype), sum, rstd


def rmsnorm_backward(dout: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    dx, dweight, _ = normalised_backward(dout, x, weight, None, None, rstd, False, offset)
    return dx.to(x.dtype), dweight


def add_rmsnorm_backward(
    dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, rstd: Tensor, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    dx, dweight, _ = normalised_backward(dout, sum, weight, None, None, rstd, False, offset)
    return (dx + wide(dsum)).to(sum.dtype), dweight
