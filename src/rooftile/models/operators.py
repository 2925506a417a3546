"""The operators a model is built from, as one table: swap the table and the same model runs on other kernels.

This is what makes the comparison honest. There is one model class; `--kernels` picks

    rooftile    every operator from `rooftile.ops`
    torch       the eager PyTorch calls
    compile     the torch table, and the model through `torch.compile`
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["KERNELS", "Operators", "operators", "rooftile_operators", "torch_operators"]

KERNELS = ("rooftile", "torch", "compile")
# Of the logits that exist at once. Each chunk of rows reads and writes the weight's float32 gradient: few chunks, and still far less than all logits.
HEAD_BYTES = 2**31


@dataclass(frozen=True)
class Operators:
    """One implementation of everything a GPT-2 calls. Letters: B T H D as in DESIGN.md, M rows, N K a weight, V the vocabulary.

    embedding(indices [...], weight [V, D]) -> [..., D]
    tied_embedding(indices [...], weight [V, D]) -> (embedding of them [..., D], the weight [V, D] as the model's head)
    stream_layernorm(x [..., D], weight [D], bias [D], eps) -> (layernorm of the stream [..., D], the stream x, which goes on); of a table that
        `completes` with x_bias [D] too
    add_layernorm(x, residual [..., D], weight [D], bias [D], eps) -> (layernorm of the sum, the sum x + residual)
    linear(x [..., K], weight [N, K], bias [N] | None) -> [..., N]
    linear_add(x [..., K], weight [N, K], residual [..., N], bias [N] | None) -> [..., N] = x weightᵀ + bias + residual
    self_attention(qkv [B, T, 3, H, D], causal=bool) -> [B, T, H, D]
    mlp(x [..., K], weight [F, K], bias [F], weight [N, F], bias [N], approximate="none" | "tanh", residual=[..., N] | None) -> [..., N]; gelu
        between two layers, and the residual added
    dropout(x, p, training)
    linear_cross_entropy(x [M, K], weight [V, K], target [M]) -> mean loss; the model's head and its loss as one operator
    adamw(groups, lr=, betas=, eps=, weight_decay=) -> torch.optim.Optimizer; rooftile's takes master=

    `autocast`: this table expects `torch.autocast` to choose dtypes; otherwise `Precision` casts the weights at their use.
    `clips`: its adamw takes max_norm=, scales gradients as it reads them and leaves their norm in `grad_norm`.
    `completes`: its stream_layernorm takes x_bias, a bias that x has in it, and sums its gradient from rows that it writes anyway.
    """

    name: str
    embedding: Callable[..., Tensor]
    tied_embedding: Callable[..., tuple[Tensor, Tensor]]
    stream_layernorm: Callable[..., tuple[Tensor, Tensor]]
    add_layernorm: Callable[..., tuple[Tensor, Tensor]]
    linear: Callable[..., Tensor]
    linear_add: Callable[..., Tensor]
    self_attention: Callable[..., Tensor]
    mlp: Callable[..., Tensor]
    dropout: Callable[..., Tensor]
    linear_cross_entropy: Callable[..., Tensor]
    adamw: Callable[..., torch.optim.Optimizer]
    autocast: bool
    clips: bool
    completes: bool


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
        tied_embedding=_torch_tied_embedding,
        stream_layernorm=_torch_stream_layernorm,
        add_layernorm=_torch_add_layernorm,
        linear=F.linear,
        linear_add=_torch_linear_add,
        self_attention=_torch_self_attention,
        mlp=_torch_mlp,
        dropout=F.dropout,
        linear_cross_entropy=_torch_linear_cross_entropy,
        adamw=_torch_adamw,
        autocast=True,
        clips=False,
        completes=False,
    )


def rooftile_operators() -> Operators:
    """This package's operators; on a CPU they run their plain PyTorch references. Imported only when asked for."""
    from rooftile.ops.attention.api import attention_qkvpacked
    from rooftile.ops.dropout.api import dropout
    from rooftile.ops.embedding.api import embedding, tied_embedding
    from rooftile.ops.gemm.api import linear
    from rooftile.ops.layernorm.api import add_layernorm, stream_layernorm
    from rooftile.ops.linear_add.api import linear_add
    from rooftile.ops.mlp.api import mlp

    return Operators(
        name="rooftile",
        embedding=embedding,
        tied_embedding=tied_embedding,
        stream_layernorm=stream_layernorm,
        add_layernorm=add_layernorm,
        linear=linear,
        linear_add=linear_add,
        self_attention=attention_qkvpacked,
        mlp=mlp,
        dropout=dropout,
        linear_cross_entropy=_rooftile_linear_cross_entropy,
        adamw=_rooftile_adamw,
        autocast=False,
        clips=True,
        completes=True,
    )


def _rooftile_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """In chunks of 2^n rows, as many as HEAD_BYTES hold."""
    from rooftile.ops.linear_cross_entropy.api import linear_cross_entropy

    rows = max(1, HEAD_BYTES // (weight.shape[0] * x.element_size()))
    return linear_cross_entropy(x, weight, target, chunk=1 << rows.bit_length() - 1)


def _rooftile_adamw(groups: list, *, master: bool = False, **options: Any) -> torch.optim.Optimizer:
    """bfloat16 weights without masters are rounded at random: an update below half a step would else be lost each time."""
    from rooftile.ops.adamw.api import AdamW

    return AdamW(groups, master=master, stochastic=not master, **options)


def _torch_tied_embedding(indices: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return F.embedding(indices, weight), weight


def _torch_stream_layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return F.layer_norm(x, weight.shape, weight, bias, eps), x


def _torch_add_layernorm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.layer_norm(s, weight.shape, weight, bias, eps), s


def _torch_self_attention(qkv: Tensor, *, causal: bool) -> Tensor:
    """PyTorch keeps the heads before the time; the transposes are views in both directions."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _torch_linear_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias) + residual


def _torch_mlp(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, *, approximate: str, residual: Tensor | None
) -> Tensor:
    out = F.linear(F.gelu(F.linear(x, weight1, bias1), approximate=approximate), weight2, bias2)
    return out if residual is None else out + residual


def _torch_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The usual two calls; the loss is taken in float32, which is what autocast does to it anyway."""
    return F.cross_entropy(F.linear(x, weight).float(), target)


def _torch_adamw(groups: list, **options: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, fused=True, **options)
