"""What the CUDA launchers share: how many blocks, and who may use wide accesses."""

from __future__ import annotations

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.spec import Call
from rooftile.ops._shared import launch

BLOCK = 256  # threads; 8 blocks fill a multiprocessor of sm_80 to sm_100
_RESIDENT = 2048 // BLOCK


def once(x: Tensor, width: int = 1) -> int:
    """Blocks for a thread to each `width` elements."""
    return -(-x.numel() // (BLOCK * width))


def resident(x: Tensor, width: int = 1) -> int:
    """Blocks of a grid that strides: no more than the device holds at a time. Simulated: 2, so that every thread strides."""
    return min(once(x, width), launch.resident(x, _RESIDENT))


def misaligned(to: int, call: Call) -> str | None:
    """Why accesses of `to` bytes cannot be used on this call, or None. What is not contiguous will be copied, and copies are aligned."""
    for name, t in call.items():
        if isinstance(t, Tensor) and t.is_contiguous() and not isinstance(t, FakeTensor) and t.data_ptr() % to:
            return f"{name} begins {t.data_ptr() % to} bytes past a multiple of {to}, and it reads {to} bytes at a time"
    return None
