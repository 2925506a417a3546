import torch
from torch import Tensor


def transpose(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def transpose_backward(dout: Tensor) -> Tensor:
    return dout.transpose(-1, -2).clone(memory_format=torch.contiguous_format)
