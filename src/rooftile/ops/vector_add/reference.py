from torch import Tensor


def vector_add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def vector_add_backward(dout: Tensor) -> Tensor:
    return dout.clone()
