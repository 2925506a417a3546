"""Tables on the device that do not change from call to call, for CUDA graphs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rooftile.cuda.launch import relaxed
from rooftile.ops._shared.launch import constant

_held: dict[tuple[Any, ...], Tensor] = {}  # graphs have their addresses, so they are never given back


def lasting(make: Callable[..., tuple[int, ...]], about: tuple[Any, ...], device: torch.device) -> Tensor:
    """`constant`; while a graph is captured, one for all graphs that has arrived before it is returned: a copy inside the graph would be
    made again by every replay."""
    if device.type != "cuda" or not torch._C._cuda_isCurrentStreamCapturing():
        return constant(make, about, device)
    key = (make, about, device)
    if key not in _held:
        _held[key] = _aside(make, about, device)
    return _held[key]


def _aside(make: Callable[..., tuple[int, ...]], about: tuple[Any, ...], device: torch.device) -> Tensor:
    """By a stream that is not captured, whose memory is none of the graph's."""
    with relaxed():
        while True:  # streams come from a pool in turn: one of them is the graph's own
            with torch.cuda.stream(torch.cuda.Stream(device)):
                if not torch._C._cuda_isCurrentStreamCapturing():
                    made = constant(make, about, device)
                    torch.cuda.current_stream(device).synchronize()
                    return made
