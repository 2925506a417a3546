"""`attention` as an `attn_implementation` of Hugging Face's transformers, which is imported here alone and only when asked."""

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from rooftile.ops.attention.api import attention


def register_attention(name: str = "rooftile") -> None:
    """After this, `AutoModel.from_pretrained(..., attn_implementation="rooftile")` and `model.set_attn_implementation("rooftile")` use `attention`:
    shared key heads without repeating them, windows, soft caps, sinks, position biases with a gradient, dropout, boolean and additive masks,
    the indices of keys that sparse attention gives.

    Raises:
        ImportError: transformers is not installed, or is older than 4.53, which lets others register.
        ValueError: when such a model is called whose attention is its own, as Bloom's, and asks no table; or says of its scores what is not known
            here (blocks of keys, a sink a token).
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
    except ImportError as error:
        raise ImportError(f"register_attention needs transformers 4.53 or later ({error}); pip install 'transformers>=4.53'") from error
    AttentionInterface.register(name, _attend)
    for about in (_boolean, _all_tell):  # by their names; nobody compiles a walk through a module
        torch.compiler.assume_constant_result(about)

    def mask(*args: Any, config: object = None, **words: Any) -> Tensor | None:
        if not torch.compiler.is_compiling() and not _asks(type(config)):
            raise ValueError(
                f"attn_implementation {name!r}: models of {type(config).__name__} compute attention by themselves, and know no masks but their own: "
                "use 'eager'"
            )
        # boolean, or None where causal says it all; of eager numbers to add, for all
        if not _boolean(type(config)):
            return eager_mask(*args, config=config, **words)
        window, both_ways = words.get("local_size"), words.get("allow_is_bidirectional_skip", False)
        if window is not None and not both_ways and window == getattr(config, "sliding_window", None) and _tells(config):
            words["local_size"] = None  # causal may say it all: `_attend` is told of the window
        return sdpa_mask(*args, config=config, **words)

    AttentionMaskInterface.register(name, mask)


def _beside(config: type) -> dict[str, Any]:
    """What the module of this config's models names; nothing where nobody knows which that is."""
    modelling = sys.modules.get(config.__module__.replace("configuration_", "modeling_"))
    return {} if modelling is None or "configuration_" not in config.__module__ else vars(modelling)


@functools.cache
def _asks(config: type) -> bool:
    """Whether models of this config ask the table of attention functions. Transformers does not look: it asks its table of masks for all."""
    names = _beside(config)
    said = (getattr(kind, "_supports_attention_backend", False) for kind in names.values() if isinstance(kind, type))
    return not names or "ALL_ATTENTION_FUNCTIONS" in names or any(said)


def _boolean(config: type) -> bool:
    """Whether models of this config take sdpa's masks: they say so, or miss only what sdpa has not (sinks, caps). Of others a part adds its mask to
    the scores itself, puts numbers behind it, or does not say that it is causal where there is none."""
    kinds = [kind for kind in _beside(config).values() if hasattr(kind, "_supports_sdpa")]
    own = [kind for kind in kinds if getattr(kind, "config_class", None) is config] or kinds
    said = (kind._supports_sdpa or (kind._supports_flex_attn and kind._supports_attention_backend) for kind in own)
    return not own or any(said)


def _tells(config: object) -> bool:
    """Whether a layer of this config has masks of a window where its attention tells of one: some tell of one that no mask of theirs has."""
    known = {"full_attention", "sliding_attention"}
    return known.issuperset(getattr(config, "layer_types", None) or known) and _all_tell(type(config))


def _all_tell(config: type) -> bool:
    """What was found, for compile, which would walk into a cache."""
    return _found_to_tell(config)


@functools.cache
def _found_to_tell(config: type) -> bool:
    """Whether models of this config have masks of a window, and in every attention of theirs it stands among the words of the call."""
    names = _beside(config)
    kinds = [kind for kind in names.values() if isinstance(kind, type) and "forward" in vars(kind)]
    codes = [
        code
        for kind in kinds
        if (code := getattr(inspect.unwrap(kind.forward), "__code__", None)) and "ALL_ATTENTION_FUNCTIONS" in code.co_names
    ]
    said = (any(x == "sliding_window" or (isinstance(x, tuple) and "sliding_window" in x) for x in code.co_consts) for code in codes)
    return "create_sliding_window_causal_mask" in names and bool(codes) and all(said)


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, dropout: float = 0.0,
            scaling: float | None = None, is_causal: bool | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
            position_bias: Tensor | None = None, cache: object = None, indices: Tensor | None = None, block_indices: Tensor | None = None,
            sinks: Tensor | None = None, sliding_window: int | None = None, **_: object) -> tuple[Tensor, None]:  # fmt: skip
    """query [B, H, T, D], key and value [B, G, S, D] -> [B, T, H, Dv]. A mask has the window in it; without one the last query stands beside the last key.
    indices [B, T, n]: the keys that a query of sparse attention sees of those, which sdpa would find in its mask."""
    if cache is not None:
        raise ValueError("rooftile's attn_implementation takes no paged cache: continuous batching is for attention_decode")
    for what, given in (("block_indices", block_indices), ("sinks", sinks)):
        if given is not None:
            raise ValueError(
                f"rooftile's attn_implementation: {type(module).__name__} gives {what} {list(given.shape)}; it takes indices of keys and a sink a head "
                "(s_aux): use 'eager'"
            )
    mask, bias = attention_mask, position_bias
    if mask is not None and mask.dtype != torch.bool:
        if not mask.is_floating_point():
            found = str(mask.dtype).removeprefix("torch.")
            raise ValueError(
                f"rooftile's attn_implementation: attention_mask is {found}, takes bool, True where a key is seen, or floats, which are added"
            )
        # What is added to keys that nobody sees is the least number, or once more of it. As a mask it hides a row of padding, which as numbers has no room for the
        # logarithm of its sum: its gradient would be as many times too large as it has keys.
        mask, bias = mask > torch.finfo(mask.dtype).min / 2, mask if bias is None else bias + mask
    if indices is not None:
        seen = torch.zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=key.device).scatter_(-1, indices.long(), True)
        mask = seen[:, None] if mask is None else mask & seen[:, None]
    causal = attention_mask is None and (getattr(module, "is_causal", False) if is_causal is None else is_causal)
    t = query.shape[2]
    if causal and 1 < t < key.shape[2]:  # an empty static cache: behind the prompt's keys are the places of tokens to come
        key, value, bias = key[:, :, :t], value[:, :, :t], None if bias is None else bias[..., :t]
    far = causal and sliding_window is not None and sliding_window < key.shape[2] and _tells(getattr(module, "config", None))
    window = (sliding_window - 1, 0) if far else None
    out = attention(query, key, value, layout="BHTD", causal=causal, window=window, scale=scaling, softcap=softcap or 0.0, sinks=s_aux, mask=mask,
                    bias=None if bias is None else bias.to(query.dtype), dropout_p=dropout)  # fmt: skip
    return out.transpose(1, 2), None
