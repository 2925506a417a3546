import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def gemv(a: Tensor, x: Tensor) -> Tensor:
    return (wide(a).contiguous() @ wide(x)).to(a.dtype)  # one order of additions for every layout


def gemv_backward(dout: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    g = wide(dout)
    return torch.outer(g, wide(x)).to(a.dtype), (wide(a).t() @ g).to(x.dtype)
