"""As attention/api.pyi: whether lse comes too is in the call."""

from typing import Literal, TypedDict, Unpack, overload

from torch import Tensor

class _How(TypedDict, total=False):
    block_table: Tensor | None
    scale: float | None
    window: int | None
    softcap: float
    sinks: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None

@overload
def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *, return_lse: Literal[False] = ...,
                     **how: Unpack[_How]) -> Tensor: ...  # fmt: skip
@overload
def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *, return_lse: Literal[True],
                     **how: Unpack[_How]) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *, return_lse: bool,
                     **how: Unpack[_How]) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
