"""The operators a model is built from, as one table: swap the table and the same model runs on other kernels.

This is what makes the comparison honest. There is one model class; `--kernels` picks

    rooftile    every operator from `rooftile.ops`
    torch       the eager PyTorch calls
    compile     the torch table, and the model through `torch.compile`
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.models.loss import chunked_linear_cross_entropy

__all__ = ["KERNELS", "Operators", "operators", "rooftile_operators", "torch_operators"]

KERNELS = ("rooftile", "torch", "compile")


@dataclass(frozen=True)
class Operators:
    """One implementation of everything a GPT-2 calls. Letters: B T H D as in DESIGN.md, M rows, N K a weight, V the vocabulary.

    embedding(indices [...], weight [V, D]) -> [..., D]
    layernorm(x [..., D], weight [D], bias [D], eps) -> [..., D]
    add_layernorm(x, residual [..., D], weight [D], bias [D], eps) -> (layernorm of the sum, the sum x + residual)
    linear(x [..., K], weight [N, K], bias [N] | None) -> [..., N]
    attention(q, k, v [B, T, H, D], causal=bool) -> [B, T, H, D]; any strides
    mlp(x [..., K], weight [F, K], bias [F], weight [N, F], bias [N], approximate="none" | "tanh") -> [..., N]; gelu between two layers
    dropout(x, p, training)
    cross_entropy(logits [M, V], target [M], reduction=...) -> scalar or [M]
    linear_cross_entropy(x [M, K], weight [V, K], target [M]) -> mean loss; the model's head and its loss as one operator
    adamw(groups, lr=, betas=, eps=, weight_decay=) -> torch.optim.Optimizer

    `autocast`: this table expects `torch.autocast` to choose dtypes; otherwise `Precision` casts the weights at their use.
    `clips`: its adamw takes max_norm=, scales gradients as it reads them and leaves their norm in `grad_norm`.
    """

    name: str
    embedding: Callable[..., Tensor]
    layernorm: Callable[..., Tensor]
    add_layernorm: Callable[..., tuple[Tensor, Tensor]]
    linear: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    mlp: Callable[..., Tensor]
    dropout: Callable[..., Tensor]
    cross_entropy: Callable[..., Tensor]
    linear_cross_entropy: Callable[..., Tensor]
    adamw: Callable[..., torch.optim.Optimizer]
    autocast: bool
    clips: bool


def operators(kernels: str) -> Operators:
    """The table for a `--kernels` word. `compile` shares the torch table: compiling is done to the model, not to the table."""
    if kernels not in KERNELS:
        raise ValueError(f"kernels is {kernels!r}, must be one of {', '.join(KERNELS)}")
    return rooftile_operators() if kernels == "rooftile" else torch_operators()


def torch_operators() -> Operators:
    """Eager PyTorch: F.* calls, scaled_dot_product_attention and the fused AdamW."""
    return Operators(
        name="torch",
        embedding=F.embedding,
        layernorm=_torch_layernorm,
        add_layernorm=_torch_add_layernorm,
        linear=F.linear,
        attention=_torch_attention,
        mlp=_torch_mlp,
        dropout=F.dropout,
        cross_entropy=F.cross_entropy,
        linear_cross_entropy=_torch_linear_cross_entropy,
        adamw=_torch_adamw,
        autocast=True,
        clips=False,
    )


def rooftile_operators() -> Operators:
    """This package's operators; on a CPU they run their plain PyTorch references. Imported only when asked for."""
    from rooftile.ops.adamw.api import AdamW
    from rooftile.ops.attention.api import attention
    from rooftile.ops.cross_entropy.api import cross_entropy
    from rooftile.ops.dropout.api import dropout
    from rooftile.ops.embedding.api import embedding
    from rooftile.ops.gemm.api import linear
    from rooftile.ops.layernorm.api import add_layernorm, layernorm
    from rooftile.ops.mlp.api import mlp

    def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return chunked_linear_cross_entropy(x, weight, target, linear=linear, cross_entropy=partial(cross_entropy, inplace_backward=True))

    return Operators(
        name="rooftile",
        embedding=embedding,
        layernorm=layernorm,
        add_layernorm=add_layernorm,
        linear=linear,
        attention=attention,
        mlp=mlp,
        dropout=dropout,
        cross_entropy=cross_entropy,
        linear_cross_entropy=linear_cross_entropy,
        adamw=AdamW,
        autocast=False,
        clips=True,
    )


def _torch_layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def _torch_add_layernorm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.layer_norm(s, weight.shape, weight, bias, eps), s


def _torch_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """PyTorch keeps the heads before the time; the transposes are views in both directions."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _torch_mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, *, approximate: str) -> Tensor:
    return F.linear(F.gelu(F.linear(x, weight1, bias1), approximate=approximate), weight2, bias2)


def _torch_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The usual two calls; the loss is taken in float32, which is what autocast does to it anyway."""
    return F.cross_entropy(F.linear(x, weight).float(), target)


def _torch_adamw(groups: list, **options: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, fused=True, **options)
