"""Whom a whole step is timed beside, other than PyTorch on our own model: transformers' Llama with Liger's kernels in it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rooftile.models import LlamaConfig, llama_operators, llama_pretrained
from rooftile.models.precision import Precision
from rooftile.training.config import TrainConfig
from rooftile.training.errors import TrainError
from rooftile.training.model import new_model

__all__ = ["PEERS", "HuggingFaceLlama", "peer_model"]

PEERS = ("liger",)


class HuggingFaceLlama(nn.Module):
    """transformers' model, called as ours is, with the weights that ours would begin with. `change` puts kernels into it."""

    def __init__(self, shape: LlamaConfig, config: TrainConfig, change: Callable[[nn.Module], object] = lambda model: None):
        from transformers import LlamaConfig as TheirConfig
        from transformers import LlamaForCausalLM

        super().__init__()
        self.config, self.precision = shape, Precision(llama_operators("torch"), config.torch_dtype)
        drawn = llama_pretrained.theirs(new_model(shape, config).state_dict(), shape)
        self.model = LlamaForCausalLM(TheirConfig(**llama_pretrained.their_config(shape), attn_implementation="sdpa"))
        self.model.load_state_dict(drawn, strict=not shape.tie_word_embeddings)
        self.model.to(config.built_dtype).train()
        change(self.model)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        in_float32 = self.precision.dtype == self.model.dtype
        with torch.autocast(tokens.device.type, self.precision.dtype, enabled=not in_float32):
            targets = targets.contiguous()  # transformers views them
            return self.model(input_ids=tokens, labels=targets, shift_labels=targets, use_cache=False).loss


def peer_model(name: str, shape: object, config: TrainConfig) -> nn.Module:
    """The model of a peer, or TrainError."""
    if not isinstance(shape, LlamaConfig):
        raise TrainError(f"the peer {name} is timed beside a llama, the model is a {type(shape).__name__}")
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
    except ImportError:
        raise TrainError(f"the peer {name} is not installed: pip install liger-kernel transformers") from None
    return HuggingFaceLlama(shape, config, lambda model: apply_liger_kernel_to_llama(model=model))
