"""The shape of a GPT-2."""

from dataclasses import dataclass

from rooftile.core.bind import fields

GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}  # Hugging Face's word -> our `approximate`


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a GPT-2, under Hugging Face's names. The defaults are the 124M model.

    The vocabulary V is `vocab_size`; the longest context is `n_positions`; `n_inner` None means 4 n_embd.
    Which tokens begin and end a text is nothing that the model computes: it is kept for whoever generates; None means the last of the vocabulary.
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu_new"
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None

    def __post_init__(self):
        fields(self)
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd is {self.n_embd}, not a multiple of n_head {self.n_head}")
        for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 0 and below 1")
        if self.activation_function not in GELUS:
            raise ValueError(f"activation_function is {self.activation_function!r}, must be one of {', '.join(GELUS)}")

    @property
    def inner(self) -> int:
        return self.n_inner or 4 * self.n_embd
