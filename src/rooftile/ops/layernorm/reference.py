from torch import Tensor

from rooftile.ops._shared.reference import wide


def layernorm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    a = wide(x)
    mean = a.mean(-1, keepdim=True)
    a = a - mean
    rstd = (a.square().mean(-1, keepdim=True) + eps).rsqrt()
    a = a * rstd
    if weight is not None:
        a = a * wide(weight)
    if bias is not None:
        a = a + wide(bias)
    return a.to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


def add_layernorm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sum = (wide(x) + wide(residual)).to(residual.dtype)
    out, mean, rstd = layernorm(sum, weight, bias, eps)  # of the rounded sum, which is what backward reads
    return out.to(x.dtype), sum, mean, rstd


def layernorm_backward(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = _backward(dout, x, weight, bias, mean, rstd)
    return dx.to(x.dtype), dweight, dbias


def add_layernorm_backward(
    dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = _backward(dout, sum, weight, bias, mean, rstd)
    return (dx + wide(dsum)).to(sum.dtype), dweight, dbias


def _backward(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    g, s = wide(dout), rstd.unsqueeze(-1)
    n = (wide(x) - mean.unsqueeze(-1)) * s  # the normalised row
    leading = tuple(range(x.dim() - 1))
    dweight = x.new_empty(0) if weight is None else ((g * n).sum(leading) if leading else g * n).to(weight.dtype)
    dbias = x.new_empty(0) if bias is None else (g.sum(leading) if leading else g).to(bias.dtype, copy=True)
    if weight is not None:
        g = g * wide(weight)
    return s * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True)), dweight, dbias
