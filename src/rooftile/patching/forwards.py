"""The forwards that take the place of a model's own, each for one kind of module.

Where a call asks for what our operator does not do, the model's own forward answers it; the report says when. So it does where weights or what comes in are
DTensors, as tensor parallelism makes them. Attention keeps the model's own
text: `rebound` gives its forward other meanings for some of the names it uses.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from rooftile.core.register import sharded
from rooftile.ops import attention, cross_entropy, embedding, gelu, layernorm, linear_cross_entropy, rmsnorm, rope
from rooftile.ops._shared.layers import bare, plain
from rooftile.patching.again import linear_of

__all__ = [
    "LARGEST_HEAD",
    "ROTATIONS",
    "Interfaces",
    "attend",
    "causal_lm",
    "causal_lm_loss",
    "embed",
    "gated",
    "layer_norm",
    "plain_mlp",
    "rebound",
    "rms_norm",
]

LARGEST_HEAD = 256  # dimensions of a head that `attention` takes
IGNORE = -100


def rms_norm(eps_name: str, offset: float) -> Callable[..., Tensor]:
    """Hugging Face's result has the wider of the two dtypes (with an offset: x's), and so has ours."""

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        x, weight = hidden_states, self.weight
        if sharded((x, weight)):
            return type(self).forward(self, x)
        dtype = x.dtype if offset else torch.promote_types(x.dtype, weight.dtype)
        if weight.dtype not in (x.dtype, torch.float32):
            weight = weight.to(x.dtype)
        return rmsnorm(x, weight, getattr(self, eps_name), offset).to(dtype)

    return forward


def layer_norm() -> Callable[..., Tensor]:
    def forward(self: nn.Module, input: Tensor) -> Tensor:
        if sharded((input, self.weight)):
            return type(self).forward(self, input)
        return layernorm(input, self.weight, self.bias, self.eps)

    return forward


def gated(kind: type, activation: Callable[..., Tensor], again: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """The projections are called as modules, for LoRA or a hook may be around them, and so is an activation that is not the bare one of this `kind`.
    Where none is around the last one, it does not keep what it reads: gate and up are kept anyway."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
        if not bare(self.act_fn, kind) or sharded((gate, up)):
            return down(self.act_fn(gate) * up)
        if _plain(down) and down.bias is None and down.weight.requires_grad and down.weight.dtype == gate.dtype and not _autocast(gate):
            return linear_of(activation, again, (gate, up), down.weight, nn.functional.linear)
        return down(activation(gate, up))

    return forward


def plain_mlp(kind: type, approximate: str) -> Callable[..., Tensor]:
    """GPT-2's."""

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        x = self.c_fc(hidden_states)
        return self.dropout(self.c_proj(gelu(x, approximate) if bare(self.act, kind) and not sharded(x) else self.act(x)))

    return forward


def embed(scaled: bool) -> Callable[..., Tensor]:
    def forward(self: nn.Module, input: Tensor) -> Tensor:
        if sharded((input, self.weight)):
            return type(self).forward(self, input)
        indices = input.long() if input.dtype == torch.int32 else input  # PyTorch's takes both, and refuses others too: 1.5 is no token
        out = embedding(indices, self.weight, self.padding_idx)
        return out * self.embed_scale.to(self.weight.dtype) if scaled else out

    return forward


def rebound(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """The same function with other meanings for some of the global names in it. ValueError where it uses one of them nowhere.

    The new globals have no `__name__`: torch.compile would look the names up in the module of that name instead.
    """
    function = inspect.unwrap(function)
    absent = [name for name in names if name not in function.__code__.co_names]
    if absent:
        raise ValueError(f"its forward does not call {absent[0]} by that name")
    scope = {name: value for name, value in function.__globals__.items() if name != "__name__"} | names
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, unsqueeze_dim: int = 1, **__: Any) -> tuple[Tensor, Tensor]:
    """In the place of `apply_rotary_pos_emb`. cos and sin are [B or 1, T, D] with each angle twice; a row for each token is a table too."""
    return _turned(q, k, cos, sin, unsqueeze_dim, interleaved=False)


def rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, unsqueeze_dim: int = 1, **__: Any) -> tuple[Tensor, Tensor]:
    """In the place of DeepSeek's `apply_rotary_pos_emb_interleave`: a pair's numbers are neighbours before, and half a head apart after."""
    q, k = _turned(q, k, cos, sin, unsqueeze_dim, interleaved=True)
    return tuple(x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in (q, k))  # type: ignore[return-value]


ROTATIONS = {"apply_rotary_pos_emb": rotate, "apply_rotary_pos_emb_interleave": rotate_pairs}


def _turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    half = cos.shape[-1] // 2
    positions = None
    if cos.shape[0] > 1:
        positions = torch.arange(cos.shape[0] * cos.shape[1], device=cos.device).view(cos.shape[:2])
    cos, sin = (t[..., :half].reshape(-1, half) for t in (cos, sin))
    if cos.dtype != q.dtype:
        cos, sin = cos.float(), sin.float()
    return rope(q, k, cos, sin, positions, interleaved=interleaved, layout="BHTD" if unsqueeze_dim == 1 else "BTHD")


class Interfaces:
    """In the place of transformers' table of attention functions: "sdpa" is ours, anything else is theirs."""

    def __init__(self, theirs: Any):
        self.theirs = theirs
        self.ours = attend(theirs["sdpa"])

    def get_interface(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return self.ours if name == "sdpa" else self.theirs.get_interface(name, default)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self.ours if name == "sdpa" else self.theirs[name]


def attend(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Attention over [B, H, T, D]: ours where there is no dropout and no mask but a boolean one, or a soft cap, which PyTorch's own has not, and a mask
    that is not trained; any other call is `theirs`, and one query over a cache, which PyTorch's own splits along the keys under a mask too."""

    def attention_forward(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
                          scaling: float | None = None, softcap: float | None = None, **kwargs: Any) -> tuple[Tensor, None]:  # fmt: skip
        weights = kwargs.get("output_attentions", getattr(module.config, "output_attentions", False))
        asks_more = weights or any(kwargs.get(name) is not None for name in ("position_bias", "cache", "s_aux"))
        t, s = query.shape[2], key.shape[2]
        plain = t == s if attention_mask is None else attention_mask.dtype == torch.bool and (t > 1 or s == 1)
        trained = attention_mask is not None and attention_mask.requires_grad
        if dropout or asks_more or trained or not (plain or softcap) or sharded((query, key, value)):
            capped = {} if softcap is None else {"softcap": softcap}
            return theirs(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **capped, **kwargs)
        causal, mask = kwargs.get("is_causal"), attention_mask
        if mask is not None:
            causal, mask = False, (mask if mask.dtype == torch.bool else mask >= 0)[..., : key.shape[2]]
        elif causal is None:
            causal = getattr(module, "is_causal", True)
        out = attention(query, key, value, causal=bool(causal), scale=scaling, softcap=softcap or 0.0, mask=mask, layout="BHTD")
        return out.transpose(1, 2), None

    return attention_forward


def causal_lm_loss(logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Tensor | int | None = None,
                   ignore_index: int = IGNORE, shift_labels: Tensor | None = None, **_: Any) -> Tensor:  # fmt: skip
    """In the place of transformers' loss of shifted labels. No float32 copy of the logits is made: the operator computes in float32."""
    target = _shifted(labels, ignore_index) if shift_labels is None else shift_labels
    options, share = _reduction(num_items_in_batch, logits.device)
    return cross_entropy(logits.reshape(-1, vocab_size), target.reshape(-1).to(logits.device), ignore_index=ignore_index, **options) / share


def causal_lm(original: Callable[..., Any], base: str) -> Callable[..., Any]:
    """The whole model's forward: labels in training mode make a loss straight from the hidden states, and `logits` is None. A loss function that was
    set since goes by logits."""
    names = list(inspect.signature(original).parameters)[1:]
    output = _output_class(original)
    others = [f.name for f in fields(output) if f.name not in ("loss", "logits")]

    @functools.wraps(original)  # Trainer reads the signature
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = dict(zip(names, args)) | kwargs
        if not (self.training and call.get("labels") is not None and _head_is_plain(self, call) and self.loss_function is causal_lm_loss):
            return original(self, *args, **kwargs)
        labels, ignore = call.pop("labels"), call.get("ignore_index", IGNORE)
        call.pop("logits_to_keep", None)
        made = getattr(self, base)(**call)
        hidden, shift = made.last_hidden_state, call.get("shift_labels")
        target = _shifted(labels, ignore) if shift is None else shift
        options, share = _reduction(call.get("num_items_in_batch"), hidden.device)
        softcap = getattr(self.config, "final_logit_softcapping", None) or 0.0
        rows, target = hidden.flatten(0, -2), target.reshape(-1).to(hidden.device)  # labels may come flat
        loss = linear_cross_entropy(rows, self.lm_head.weight, target, self.lm_head.bias, ignore_index=ignore, softcap=softcap, **options)
        kept = {name: made.get(name) for name in others}
        return output(loss=loss / share, logits=None, **kept)

    forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    del forward.__wrapped__  # accelerate takes its wrapper away until there is nothing to unwrap
    return forward


def _output_class(original: Callable[..., Any]) -> Any:
    """What its forward says that it returns, where not a tuple."""
    said = inspect.unwrap(original).__annotations__.get("return")
    kinds = [kind for kind in get_args(said) or (said,) if kind is not tuple and is_dataclass(kind)]
    if len(kinds) != 1:
        raise ValueError(f"its forward says that it returns {said}, which is not one output of transformers'")
    return kinds[0]


def _plain(layer: nn.Module) -> bool:
    """Whether its weight may be read where it lies: no LoRA around it, no shards, and it is there."""
    return plain(layer) and not layer.weight.is_meta


def _autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _head_is_plain(model: nn.Module, call: Mapping[str, Any]) -> bool:
    if not _plain(model.lm_head):
        return False
    as_usual = call.get("return_dict") is not False and getattr(model.config, "return_dict", True)
    kept = call.get("logits_to_keep", 0)
    return as_usual and isinstance(kept, int) and kept == 0


def _shifted(labels: Tensor, ignore: int) -> Tensor:
    """Position t predicts label t + 1; the last predicts nothing."""
    return nn.functional.pad(labels[..., 1:], (0, 1), value=ignore)


def _reduction(count: Tensor | int | None, device: torch.device) -> tuple[dict[str, str], Any]:
    """Trainer counts the labels of a whole accumulated batch: then it is a sum over that number."""
    if count is None:
        return {"reduction": "mean"}, 1
    return {"reduction": "sum"}, count.to(device) if isinstance(count, Tensor) else count
