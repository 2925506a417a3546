from torch import Tensor

from rooftile.ops._shared.reference import wide
from rooftile.ops.gemm.reference import flat


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return (wide(x) @ wide(weight.to(x.dtype)).t() + wide(residual)).to(x.dtype)


def linear_add_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    g = wide(dout)
    dx = (g @ wide(weight.to(x.dtype))).to(x.dtype)
    return dx, (flat(g).t() @ flat(wide(x))).to(weight.dtype)
