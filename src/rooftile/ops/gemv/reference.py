import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def gemv(a: Tensor, x: Tensor) -> Tensor:
    return (wide(a) @ wide(x)).to(a.dtype)


def gemv_backward(dout: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    g = wide(dout)
    return torch.outer(g, wide(x)).to(a.dtype), (wide(a).t() @ g).to(x.dtype)
