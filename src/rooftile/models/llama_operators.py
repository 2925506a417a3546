"""What a Llama calls beside what a GPT-2 does: the same tables, three columns longer."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.models.operators import Operators, operators

__all__ = ["LlamaOperators", "llama_operators"]


@dataclass(frozen=True)
class LlamaOperators(Operators):
    """One implementation of everything a Llama calls: `Operators`, and

    stream_rmsnorm(x [..., D], weight [D], eps) -> (rmsnorm of the stream [..., D], the stream x, which goes on)
    rotary_attention(qkv [B, T, H + 2 Hk, D], cos, sin [T, D/2], kv_heads=Hk, causal=bool) -> [B, T, H, D]: queries and keys are turned, pairs are
        i and D/2 + i; query head h reads key head h Hk / H
    gated_mlp(x [..., K], weight1 [2 F, K], weight2 [N, F], residual [..., N]) -> [..., N] = silu(gate) up weight2ᵀ + residual, gate and up
        side by side in x weight1ᵀ
    """

    stream_rmsnorm: Callable[..., tuple[Tensor, Tensor]]
    rotary_attention: Callable[..., Tensor]
    gated_mlp: Callable[..., Tensor]


def llama_operators(kernels: str) -> LlamaOperators:
    """The table for a `--kernels` word."""
    table = operators(kernels)
    columns = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    return LlamaOperators(**columns | (_torch() if table.autocast else _rooftile()))


def _torch() -> dict[str, Callable]:
    return {
        "stream_rmsnorm": _torch_stream_rmsnorm,
        "rotary_attention": _torch_rotary_attention,
        "gated_mlp": _torch_gated_mlp,
    }


def _rooftile() -> dict[str, Callable]:
    from rooftile.ops.attention.rotary_api import rotary_attention
    from rooftile.ops.mlp.api import gated_mlp
    from rooftile.ops.rmsnorm.api import stream_rmsnorm

    return {
        "stream_rmsnorm": stream_rmsnorm,
        "rotary_attention": rotary_attention,
        "gated_mlp": gated_mlp,
    }


def _torch_stream_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return F.rms_norm(x, weight.shape, weight, eps), x


def _torch_gated_mlp(x: Tensor, weight1: Tensor, weight2: Tensor, residual: Tensor) -> Tensor:
    gate, up = F.linear(x, weight1).chunk(2, -1)
    return F.linear(F.silu(gate) * up, weight2) + residual


def _torch_rotary_attention(qkv: Tensor, cos: Tensor, sin: Tensor, *, kv_heads: int, causal: bool) -> Tensor:
    q, k, v = qkv.split([qkv.shape[2] - 2 * kv_heads, kv_heads, kv_heads], 2)
    cos, sin = cos[:, None], sin[:, None]

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    q, k, v = (x.transpose(1, 2) for x in (turn(q), turn(k), v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=bool(q.shape[1] != kv_heads)).transpose(1, 2)
