from torch import Tensor

from rooftile.ops._shared.reference import normalised, normalised_backward, wide


def layernorm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    a, mean, rstd = normalised(wide(x), weight, bias, eps)
    return a.to(x.dtype), mean, rstd


def add_layernorm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, x_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    branch = wide(x) if x_bias is None else wide(x) + wide(x_bias)
    sum = (branch + wide(residual)).to(residual.dtype)
    out, mean, rstd = layernorm(sum, weight, bias, eps)  # of the rounded sum, which is what backward reads
    return out.to(x.dtype), sum, mean, rstd


def layernorm_backward(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = normalised_backward(dout, x, weight, bias, mean, rstd)
    return dx.to(x.dtype), dweight, dbias


def add_layernorm_backward(
    dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor,
    x_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dx, dweight, dbias = normalised_backward(dout, sum, weight, bias, mean, rstd)
    dx = (dx + wide(dsum)).to(sum.dtype)
    dx_bias = dout.new_empty(0) if x_bias is None else wide(dx)[None].flatten(0, -2).sum(0).to(x_bias.dtype)
    return dx, dweight, dbias, dx_bias  # dx_bias of the rounded dx, which is what the branch's own gradients are made of
