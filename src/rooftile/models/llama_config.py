"""The shape of a Llama, and the angles of its rotary embedding."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rooftile.core.bind import fields

__all__ = ["LLAMA_1_2B", "LlamaConfig"]

SCALED = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # what "llama3" asks for


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama, under Hugging Face's names. The defaults are Llama 2 of 7B parameters.

    The heads H are `num_attention_heads`, of `head_dim` dimensions each (None: hidden_size / H); `num_key_value_heads` None means H.
    `rope_scaling` is None or Llama 3.1's {"rope_type": "llama3", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings"}. Which tokens begin and end a text is nothing that the model computes: it is kept for whoever generates; None means
    the last of the vocabulary.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None

    def __post_init__(self):
        fields(self)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size is {self.hidden_size}, not a multiple of num_attention_heads {self.num_attention_heads}")
        if self.kv_heads < 1 or self.num_attention_heads % self.kv_heads:
            raise ValueError(f"num_attention_heads is {self.num_attention_heads}, not a multiple of num_key_value_heads {self.kv_heads}")
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"a head has {self.dim} dimensions, rotary embedding turns them in pairs: it must be even and 2 at least")
        if not self.rope_theta > 0:
            raise ValueError(f"rope_theta is {self.rope_theta}, must be above 0")
        kind = (self.rope_scaling or {}).get("rope_type", "none")
        if self.rope_scaling is not None and kind != "llama3":
            raise ValueError(f"rope_scaling has rope_type {kind!r}, this model computes llama3 or none")
        if lacking := [name for name in SCALED if self.rope_scaling is not None and name not in self.rope_scaling]:
            raise ValueError(f"rope_scaling lacks {lacking[0]} ({len(lacking)} such of the {len(SCALED)} that llama3 needs)")

    @property
    def dim(self) -> int:
        """D, of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def n_positions(self) -> int:
        """GPT-2's word for the longest context."""
        return self.max_position_embeddings

    def rotary(self, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 [max_position_embeddings, D / 2]; the angles are computed in float64, for position 100000 is no float32 angle."""
        frequencies = self.rope_theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float64, device=device) / self.dim)
        if self.rope_scaling is not None:
            frequencies = _llama3(frequencies, *(self.rope_scaling[name] for name in SCALED))
        angles = torch.arange(self.max_position_embeddings, dtype=torch.float64, device=device)[:, None] * frequencies
        return angles.cos().float(), angles.sin().float()


def _llama3(frequencies: Tensor, factor: float, low: float, high: float, trained: int) -> Tensor:
    """Llama 3.1: slow pairs, which turn less than `low` times in the `trained` context, are slowed by `factor`; fast ones, more than `high`
    times, stay; between them it is a straight line in the number of turns."""
    turns = trained * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


# Llama 3.2's 1B, with a context of 8192 and plain rotary angles
LLAMA_1_2B = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    tie_word_embeddings=True,
)
