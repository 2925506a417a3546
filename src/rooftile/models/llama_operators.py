"""What a Llama calls beside what a GPT-2 does: the same tables, four columns longer."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.models.operators import Operators, operators

__all__ = ["LlamaOperators", "llama_operators"]


@dataclass(frozen=True)
class LlamaOperators(Operators):
    """One implementation of everything a Llama calls: `Operators`, and

    rmsnorm(x [..., D], weight [D], eps) -> [..., D]
    add_rmsnorm(x, residual [..., D], weight [D], eps) -> (rmsnorm of the sum, the sum x + residual)
    rope(q [B, T, H, D], k [B, T, Hk, D], cos, sin [T, D/2]) -> (q, k); pairs are i and D/2 + i
    gated_mlp(x [..., K], weight1 [2 F, K], weight2 [N, F]) -> [..., N] = silu(gate) up weight2ᵀ, gate and up side by side in x weight1ᵀ
    attention(q [B, T, H, D], k, v [B, T, Hk, D], causal=bool) -> [B, T, H, D]; query head h reads key head h Hk / H
    """

    rmsnorm: Callable[..., Tensor]
    add_rmsnorm: Callable[..., tuple[Tensor, Tensor]]
    rope: Callable[..., tuple[Tensor, Tensor]]
    gated_mlp: Callable[..., Tensor]
    attention: Callable[..., Tensor]


def llama_operators(kernels: str) -> LlamaOperators:
    """The table for a `--kernels` word."""
    table = operators(kernels)
    columns = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    return LlamaOperators(**columns | (_torch() if table.autocast else _rooftile()))


def _torch() -> dict[str, Callable]:
    return {
        "rmsnorm": _torch_rmsnorm,
        "add_rmsnorm": _torch_add_rmsnorm,
        "rope": _torch_rope,
        "gated_mlp": _torch_gated_mlp,
        "attention": _torch_attention,
    }


def _rooftile() -> dict[str, Callable]:
    from rooftile.ops.attention.api import attention
    from rooftile.ops.mlp.api import gated_mlp
    from rooftile.ops.rmsnorm.api import add_rmsnorm, rmsnorm
    from rooftile.ops.rope.api import rope

    return {
        "rmsnorm": rmsnorm,
        "add_rmsnorm": add_rmsnorm,
        "rope": partial(rope, layout="BTHD"),
        "gated_mlp": gated_mlp,
        "attention": attention,
    }


def _torch_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _torch_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, weight.shape, weight, eps), s


def _torch_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    return turn(q), turn(k)


def _torch_gated_mlp(x: Tensor, weight1: Tensor, weight2: Tensor) -> Tensor:
    gate, up = F.linear(x, weight1).chunk(2, -1)
    return F.linear(F.silu(gate) * up, weight2)


def _torch_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped).transpose(1, 2)
