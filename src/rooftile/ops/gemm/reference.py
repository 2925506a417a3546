import math

from torch import Tensor

from rooftile.ops._shared.reference import wide


def flat(x: Tensor) -> Tensor:
    """All leading axes as one: [M, last]. A view where they collapse."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    out = wide(a) @ wide(b)
    return (out if bias is None else out + wide(bias)).to(a.dtype)


def gemm_backward(dout: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    g = wide(dout)
    da = (g @ wide(b).t()).to(a.dtype)
    db = (flat(wide(a)).t() @ flat(g)).to(b.dtype)
    return da, db, dout.new_empty(0) if bias is None else flat(g).sum(0).to(bias.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return gemm(x, weight.t(), bias)


def linear_backward(dout: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    g = wide(dout)
    dx = (g @ wide(weight)).to(x.dtype)
    dweight = (flat(g).t() @ flat(wide(x))).to(weight.dtype)
    return dx, dweight, dout.new_empty(0) if bias is None else flat(g).sum(0).to(bias.dtype)
