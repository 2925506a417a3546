"""What type checkers read in the place of api.py: whether lse comes too is in the call. `tests/ops/test_types.py` holds the two to one another."""

from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from rooftile.core.kernel import Op

_attention_options: Op

class _Varlen(TypedDict, total=False):
    causal: bool
    scale: float | None
    window: tuple[int | None, int | None] | None
    softcap: float
    sinks: Tensor | None
    dropout_p: float
    seed: int | Tensor | None
    generator: torch.Generator | None
    deterministic: bool

class _Padded(_Varlen, total=False):
    bias: Tensor | None
    mask: Tensor | None
    layout: str

@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = ..., **how: Unpack[_Padded]) -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **how: Unpack[_Padded]) -> tuple[Tensor, Tensor]: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, **how: Unpack[_Padded]) -> Tensor | tuple[Tensor, Tensor]: ...
def attention_qkvpacked(qkv: Tensor, *, causal: bool = ..., scale: float | None = ...) -> Tensor: ...
@overload
def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *,
                     return_lse: Literal[False] = ..., **how: Unpack[_Varlen]) -> Tensor: ...  # fmt: skip
@overload
def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *,
                     return_lse: Literal[True], **how: Unpack[_Varlen]) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *,
                     return_lse: bool, **how: Unpack[_Varlen]) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
