"""The activations that gate, and their slopes, as plain PyTorch says them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CUBIC = 0.044715


def activate(x: Tensor, name: str) -> Tensor:
    if name == "silu":
        return F.silu(x)
    if name == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def slope(x: Tensor, name: str) -> Tensor:
    """d activate / dx."""
    if name == "silu":
        s = torch.sigmoid(x)
        return s * (1 + x * (1 - s))
    if name == "relu":
        return torch.where(x <= 0, 0.0, 1.0).to(x.dtype)
    if name == "gelu_tanh":
        t = torch.tanh(math.sqrt(2 / math.pi) * (x + CUBIC * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * CUBIC * x * x)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
