from torch import Tensor

from rooftile.ops._shared.reference import wide


def residual_add(x: Tensor, residual: Tensor) -> Tensor:
    return (wide(x) + wide(residual)).to(residual.dtype)


def residual_add_backward(dout: Tensor) -> Tensor:
    return dout.clone()


def residual_add_overwrite(x: Tensor, residual: Tensor) -> None:
    residual.copy_(residual_add(x, residual))
