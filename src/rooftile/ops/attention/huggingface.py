"""`attention` as an `attn_implementation` of Hugging Face's transformers, which is imported here alone and only when asked."""

import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from rooftile.ops.attention.api import attention


def register_attention(name: str = "rooftile") -> None:
    """After this, `AutoModel.from_pretrained(..., attn_implementation="rooftile")` and `model.set_attn_implementation("rooftile")` use `attention`:
    shared key heads without repeating them, soft caps, sinks, position biases with a gradient, dropout, boolean and additive masks.

    Raises:
        ImportError: transformers is not installed, or is older than 4.53, which lets others register.
        ValueError: when such a model is called whose attention is its own, as Bloom's, and asks no table.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError as error:
        raise ImportError(f"register_attention needs transformers 4.53 or later ({error}); pip install 'transformers>=4.53'") from error
    AttentionInterface.register(name, _attend)

    def mask(*args: Any, config: object = None, **words: Any) -> Tensor | None:
        if not torch.compiler.is_compiling() and not _asks(type(config)):
            raise ValueError(
                f"attn_implementation {name!r}: models of {type(config).__name__} compute attention by themselves, and know no masks but their own: "
                "use 'eager'"
            )
        return sdpa_mask(*args, config=config, **words)  # boolean, or None where causal says it all

    AttentionMaskInterface.register(name, mask)


@functools.cache
def _asks(config: type) -> bool:
    """Whether models of this config ask the table of attention functions. Transformers does not look: it asks its table of masks for all."""
    modelling = sys.modules.get(config.__module__.replace("configuration_", "modeling_"))
    if modelling is None or "configuration_" not in config.__module__:  # nobody knows
        return True
    names = vars(modelling)
    said = (getattr(kind, "_supports_attention_backend", False) for kind in names.values() if isinstance(kind, type))
    return "ALL_ATTENTION_FUNCTIONS" in names or any(said)


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, dropout: float = 0.0,
            scaling: float | None = None, is_causal: bool | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
            position_bias: Tensor | None = None, cache: object = None, **_: object) -> tuple[Tensor, None]:  # fmt: skip
    """query [B, H, T, D], key and value [B, G, S, D] -> [B, T, H, Dv]. A window comes in the mask, which is None only where no key lies outside it."""
    if cache is not None:
        raise ValueError("rooftile's attn_implementation takes no paged cache: continuous batching is for attention_decode")
    mask, bias = attention_mask, position_bias
    if mask is not None and mask.dtype != torch.bool:
        if not mask.is_floating_point():
            found = str(mask.dtype).removeprefix("torch.")
            raise ValueError(
                f"rooftile's attn_implementation: attention_mask is {found}, takes bool, True where a key is seen, or floats, which are added"
            )
        mask, bias = None, mask if bias is None else bias + mask
    causal = attention_mask is None and (getattr(module, "is_causal", False) if is_causal is None else is_causal)
    t = query.shape[2]
    if causal and 1 < t < key.shape[2]:  # an empty static cache: behind the prompt's keys are the places of tokens to come
        key, value, bias = key[:, :, :t], value[:, :, :t], None if bias is None else bias[..., :t]
    out = attention(query, key, value, layout="BHTD", causal=causal, scale=scaling, softcap=softcap or 0.0, sinks=s_aux, mask=mask,
                    bias=None if bias is None else bias.to(query.dtype), dropout_p=dropout)  # fmt: skip
    return out.transpose(1, 2), None
