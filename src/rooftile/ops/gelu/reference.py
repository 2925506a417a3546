import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.ops._shared.reference import wide

CUBIC = 0.044715


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(wide(x), approximate=approximate).to(x.dtype)


def gelu_backward(dout: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    g, v = wide(dout), wide(x)
    if approximate == "tanh":
        t = torch.tanh(math.sqrt(2 / math.pi) * (v + CUBIC * v**3))
        slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * CUBIC * v * v)
    else:
        slope = 0.5 * (1 + torch.erf(v / math.sqrt(2))) + v * torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
    return (g * slope).to(x.dtype)
