"""What the Triton launchers share: who may be launched on, on which device, over which rows."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DRY = os.environ.get("ROOFTILE_DRY_GPU") == "1"  # compiled for a GPU that is not there, and not run


def off_gpu(x: Tensor) -> str | None:
    """Why Triton cannot run here, or None. The interpreter runs on CPU tensors."""
    if x.is_cuda or INTERPRETED or DRY:
        return None
    return f"it needs a CUDA device, the tensor is on {x.device}"


def launch(kernel: Any, grid: tuple[int, ...], first: Tensor, *args: Any, **meta: Any) -> None:
    """Launch on the device of the first tensor, whichever device is current; an empty grid launches nothing."""
    if 0 in grid:
        return
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            kernel[grid](first, *args, **meta)
    else:
        kernel[grid](first, *args, **meta)


@functools.lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def resident(x: Tensor, per: int) -> int:
    """Programs of a persistent grid: `per` on each multiprocessor. Interpreted: 2, so that every program loops."""
    return per * _processors(x.device) if x.is_cuda else 2 if INTERPRETED else 132 * per


def rows(x: Tensor) -> tuple[Tensor, int, int, int]:
    """x as M rows of N neighbouring elements: (x, M, N, row stride). Copies only what has no such view."""
    n = x.shape[-1]
    m = x.numel() // n if n else 0
    if x.is_contiguous():
        return x, m, n, n
    if x.dim() == 2 and x.stride(1) == 1:
        return x, m, n, x.stride(0)
    if x.stride(-1) == 1:
        x = x.reshape(m, n)  # a view where the leading axes collapse
        return x, m, n, x.stride(0)
    return x.contiguous(), m, n, n


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
