"""Llama (Touvron et al., 2023; grouped heads as in Llama 2 and 3) from a table of operators.

x = embed[tokens]
x = x + o(attention(rope(q), rope(k), v)),   q k v = qkv(norm(x))       num_hidden_layers times: attention,
x = x + down(silu(gate) up),                 gate up = gate_up(norm(x)) then the gated perceptron
logits = norm(x) head^T                      the head is a matrix of its own, or the embedding again

A branch's last product adds the stream as it writes, and a norm hands the stream on, so that its gradient is added where the norm's is written.
Queries, keys and values are one product, and so are gate and up: x is read once, and their gradients are one tensor.
"""

import math
from os import PathLike

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rooftile.models import llama_pretrained, pretrained
from rooftile.models.gpt2 import GPT2, INIT_STD, context
from rooftile.models.llama_config import LlamaConfig
from rooftile.models.llama_operators import LlamaOperators, llama_operators
from rooftile.models.precision import Precision, held

__all__ = ["Llama"]


class Attention(nn.Module):
    """x, residual [B, T, hidden] -> their sum when each position of x has looked at itself and the past; H query heads share Hk of keys and values."""

    def __init__(self, config: LlamaConfig, precision: Precision):
        super().__init__()
        self.precision, self.dim, self.kv_heads = precision, config.dim, config.kv_heads
        self.qkv_proj = nn.Linear(config.hidden_size, (config.num_attention_heads + 2 * config.kv_heads) * config.dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, residual: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        qkv = self.precision.through(x, self.qkv_proj).view(B, T, -1, self.dim)
        y = self.precision.operators.rotary_attention(qkv, cos, sin, kv_heads=self.kv_heads, causal=True).reshape(B, T, -1)
        return self.precision.linear_add(y, self.o_proj, residual)


class MLP(nn.Module):
    """x, residual [B, T, hidden] -> their sum when x has been through `intermediate_size` gated features."""

    def __init__(self, config: LlamaConfig, precision: Precision):
        super().__init__()
        self.precision = precision
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.precision.gated_mlp(x, self.gate_up_proj, self.down_proj, residual)


class Block(nn.Module):
    """Pre-norm: each branch reads a normalised copy of the stream and adds to it."""

    def __init__(self, config: LlamaConfig, precision: Precision):
        super().__init__()
        self.precision = precision
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, precision)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config, precision)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.self_attn(*_norm(self.precision, x, self.input_layernorm), cos, sin)
        return self.mlp(*_norm(self.precision, x, self.post_attention_layernorm))


class Llama(nn.Module):
    """The model. The nn.* layers only hold parameters; every computation goes through the table.

    operators       the table of `llama_operators`, PyTorch's by default
    compute_dtype   float32, or bfloat16 for mixed precision
    checkpointing   keep only each block's input for the backward pass and compute the rest again
    weights         dtype the parameters are kept in; bfloat16 only with that compute dtype
    """

    def __init__(
        self,
        config: LlamaConfig,
        operators: LlamaOperators | None = None,
        compute_dtype: torch.dtype = torch.float32,
        checkpointing: bool = False,
        weights: torch.dtype = torch.float32,
    ):
        super().__init__()
        if weights not in (torch.float32, compute_dtype):
            raise ValueError(f"weights is {weights}, must be torch.float32 or the compute dtype, {compute_dtype}")
        self.config, self.checkpointing = config, checkpointing
        self.precision = Precision(operators or llama_operators("torch"), compute_dtype)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, self.precision) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, table in zip(("cos", "sin"), config.rotary()):
            self.register_buffer(name, table, persistent=False)
        self.register_load_state_dict_post_hook(_turning)
        self.initialise()
        self.to(weights)

    def _apply(self, fn, recurse=True):
        """Parameters may change their dtype; the table of angles stays float32. From the meta device no numbers come along."""
        blank = self.cos.is_meta
        super()._apply(fn, recurse)
        if blank or self.cos.dtype != torch.float32:
            self.cos, self.sin = self.config.rotary(self.cos.device)
        return self

    @torch.no_grad()
    def initialise(self) -> None:
        """Everything anew; after `to_empty` of a model made on the meta device too.

        Normal matrices of standard deviation 0.02; the two projections into the residual stream are scaled by 1/sqrt(2 layers), so that the
        stream's variance does not grow with the number of branches added to it.
        """
        self.cos, self.sin = self.config.rotary(self.cos.device)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                scaled = name.endswith(("o_proj.weight", "down_proj.weight"))
                p.normal_(std=INIT_STD / math.sqrt(2 * self.config.num_hidden_layers) if scaled else INIT_STD)
            else:
                p.fill_(1.0)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens [B, T] int64 -> logits [B, T, V] in the compute dtype; with targets [B, T] the mean loss, a float32 scalar.

        Targets of -100 count for nothing. Raises ValueError when T is 0 or more than max_position_embeddings.
        """
        with self.precision.region(tokens.device.type):
            x, head = self._hidden(tokens)
            if targets is None:
                return self.precision.linear(x, head)
            return self.precision.operators.linear_cross_entropy(x.flatten(0, 1), head, targets.flatten())

    def _hidden(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> the normalised residual stream [B, T, hidden], and the head [V, hidden]."""
        T, most = context(tokens), self.config.max_position_embeddings
        if most < T:
            raise ValueError(f"the context is {T} tokens, this model's max_position_embeddings is {most}")
        cos, sin = self.cos[:T], self.sin[:T]
        held(self.embed_tokens, nn.Embedding)
        if self.lm_head is None:
            x, head = self.precision.operators.tied_embedding(tokens, self.embed_tokens.weight)
        else:
            x, head = self.precision.operators.embedding(tokens, self.embed_tokens.weight), held(self.lm_head, nn.Linear).weight
        x = self.precision.stream(x)
        again = self.checkpointing and torch.is_grad_enabled()
        for block in self.layers:
            x = checkpoint(block, x, cos, sin, use_reentrant=False, preserve_rng_state=False) if again else block(x, cos, sin)
        return _norm(self.precision, x, self.norm)[0], head

    generate = GPT2.generate  # it asks for nothing but logits and config.n_positions

    @classmethod
    def from_pretrained(cls, folder: str | PathLike, **options) -> "Llama":
        """Read a Hugging Face Llama folder (config.json, model.safetensors whole or in parts). `options` go to the constructor."""
        config, tensors = llama_pretrained.load(folder)
        model = cls(config, **options)
        pretrained.fill(model, tensors, folder)
        return model

    def save_pretrained(self, folder: str | PathLike) -> None:
        """Write the folder Hugging Face transformers reads, whole or not at all."""
        llama_pretrained.save(self.state_dict(), self.config, folder)


def _turning(model: Llama, _: object) -> None:
    """The angles, which no state dict holds, where `load_state_dict(assign=True)` of a model on the meta device has put the weights."""
    where = model.norm.weight.device
    if model.cos.is_meta and where.type != "meta":
        model.cos, model.sin = model.config.rotary(where)


def _norm(precision: Precision, x: Tensor, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    """The stream x [..., D] -> (its norm, the stream)."""
    held(norm, nn.RMSNorm)
    return precision.operators.stream_rmsnorm(x, norm.weight, norm.eps)
