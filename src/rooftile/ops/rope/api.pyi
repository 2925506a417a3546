"""As attention/api.pyi: whether there are keys beside the queries is in the call."""

from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

class _How(TypedDict, total=False):
    interleaved: bool
    layout: str
    inplace: bool

def rope_table(length: int, rotary_dim: int, base: float = ..., *, device: torch.device | str | None = ...) -> tuple[Tensor, Tensor]: ...
@overload
def rope(q: Tensor, k: None, cos: Tensor, sin: Tensor, positions: Tensor | None = ..., **how: Unpack[_How]) -> Tensor: ...
@overload
def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = ..., **how: Unpack[_How]) -> tuple[Tensor, Tensor]: ...
@overload
def rope(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, positions: Tensor | None = ...,
         **how: Unpack[_How]) -> tuple[Tensor, Tensor] | Tensor: ...  # fmt: skip
