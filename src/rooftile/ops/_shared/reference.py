"""What the references share."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """To the dtype arithmetic is done in: float32, and float64 when the gate asks for the truth."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
