from torch import Tensor

from rooftile.ops._shared.reference import wide
from rooftile.ops.gemm.reference import flat


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None = None) -> Tensor:
    out = wide(x) @ wide(weight.to(x.dtype)).t() + wide(residual)
    return (out if bias is None else out + wide(bias.to(x.dtype))).to(x.dtype)


def linear_add_backward(dout: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    g = wide(dout)
    dx = (g @ wide(weight.to(x.dtype))).to(x.dtype)
    rows = flat(g)
    dweight = (rows.t() @ flat(wide(x))).to(weight.dtype)
    return dx, dweight, dout.new_empty(0) if bias is None else rows.sum(0).to(bias.dtype)
