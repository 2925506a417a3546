"""GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners") from a table of operators.

x = wte[tokens] + wpe[0..T)
x = x + proj(attention(qkv(norm(x))))        n_layer times: attention,
x = x + proj(gelu(fc(norm(x))))              then the two-layer perceptron
logits = norm(x) wte^T                       the head is the token embedding again

A branch's last product adds the stream as it writes, and a norm hands the stream on, so that its gradient is added where the norm's is written. There the
rows of that gradient are in registers, and their sum is the gradient of the bias that the product added: so the stream takes the bias along to the
norm behind it. A branch with dropout is added by the norm instead.
"""

import math
from os import PathLike

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rooftile.models import pretrained
from rooftile.models.config import GELUS, GPT2Config
from rooftile.models.operators import Operators, torch_operators
from rooftile.models.precision import Precision, Stream, held

INIT_STD = 0.02


def context(tokens: Tensor) -> int:
    """T of tokens [B, T]."""
    if tokens.dim() != 2 or tokens.shape[1] < 1:
        raise ValueError(f"tokens have the shape {list(tokens.shape)}, a model takes [B, T] with T at least 1")
    return tokens.shape[1]


class Attention(nn.Module):
    """x, residual [B, T, n_embd] -> their sum when each position of x has looked at itself and the past; without a residual x alone."""

    def __init__(self, config: GPT2Config, precision: Precision):
        super().__init__()
        self.config, self.precision = config, precision
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if self.training and self.config.attn_pdrop > 0:
            raise ValueError(f"attn_pdrop is {self.config.attn_pdrop}, but attention here draws no dropout: train with 0")
        B, T, _ = x.shape
        qkv = self.precision.through(x, self.c_attn)
        y = self.precision.operators.self_attention(qkv.view(B, T, 3, self.config.n_head, -1), causal=True).reshape(B, T, -1)
        return self.precision.linear_add(y, self.c_proj, residual, self.precision.leaves(self))


class MLP(nn.Module):
    """x, residual [B, T, n_embd] -> their sum when x has been through `n_inner` features; without a residual x alone."""

    def __init__(self, config: GPT2Config, precision: Precision):
        super().__init__()
        self.precision, self.approximate = precision, GELUS[config.activation_function]
        self.c_fc = nn.Linear(config.n_embd, config.inner)
        self.c_proj = nn.Linear(config.inner, config.n_embd)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        return self.precision.mlp(x, self.c_fc, self.c_proj, self.approximate, residual, self.precision.leaves(self))


class Block(nn.Module):
    """Pre-norm: each branch reads a normalised copy of the stream and adds to it."""

    def __init__(self, config: GPT2Config, precision: Precision):
        super().__init__()
        self.precision, self.p = precision, config.resid_pdrop
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config, precision)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config, precision)

    def forward(self, stream: Stream) -> Stream:
        stream = self._added(self.attn, *self.precision.layernorm(stream, self.ln_1))
        return self._added(self.mlp, *self.precision.layernorm(stream, self.ln_2))

    def _added(self, branch: Attention | MLP, normed: Tensor, x: Tensor) -> Stream:
        """x + branch(normed)."""
        if self.training and self.p > 0:
            return Stream(x, branch=self.precision.operators.dropout(branch(normed, None), self.p, True))
        return Stream(branch(normed, x), self.precision.left(branch, branch.c_proj))


class GPT2(nn.Module):
    """The model. The nn.* layers only hold parameters (under Hugging Face's names); every computation goes through the table.

    operators       the table, PyTorch's by default
    compute_dtype   float32, or bfloat16 for mixed precision
    checkpointing   keep only each block's input for the backward pass and compute the rest again
    weights         dtype the parameters are kept in; bfloat16 only with that compute dtype
    """

    def __init__(
        self,
        config: GPT2Config,
        operators: Operators | None = None,
        compute_dtype: torch.dtype = torch.float32,
        checkpointing: bool = False,
        weights: torch.dtype = torch.float32,
    ):
        super().__init__()
        if weights not in (torch.float32, compute_dtype):
            raise ValueError(f"weights is {weights}, must be torch.float32 or the compute dtype, {compute_dtype}")
        self.config, self.checkpointing = config, checkpointing
        self.precision = Precision(operators or torch_operators(), compute_dtype)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Block(config, self.precision) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.initialise()
        self.to(weights)

    @torch.no_grad()
    def initialise(self) -> None:
        """Everything anew; after `to_empty` of a model made on the meta device too.

        Normal matrices of standard deviation 0.02, zero biases. The two projections into the residual stream are scaled
        by 1/sqrt(2 n_layer), so that the stream's variance does not grow with the number of branches added to it."""
        for name, p in self.named_parameters():
            if p.dim() > 1:
                p.normal_(std=INIT_STD / math.sqrt(2 * self.config.n_layer) if name.endswith("c_proj.weight") else INIT_STD)
            else:
                p.fill_(0.0 if name.endswith("bias") else 1.0)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens [B, T] int64 -> logits [B, T, V] in the compute dtype; with targets [B, T] the mean loss, a float32 scalar.

        Targets of -100 count for nothing. Raises ValueError when T is 0 or more than n_positions.
        """
        with self.precision.region(tokens.device.type):
            x, head = self._hidden(tokens)
            if targets is None:
                return self.precision.linear(x, head)
            return self.precision.operators.linear_cross_entropy(x.flatten(0, 1), head, targets.flatten())

    def _hidden(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> the normalised residual stream [B, T, n_embd], and the head [V, n_embd]."""
        T = context(tokens)
        if self.config.n_positions < T:
            raise ValueError(f"the context is {T} tokens, this model's n_positions is {self.config.n_positions}")
        held(self.wte, nn.Embedding), held(self.wpe, nn.Embedding)
        # Of float32 weights the sum is rounded once. The embedding's gradient, hundreds of rows added into one, is summed in float32 either way.
        x, head = self.precision.operators.tied_embedding(tokens, self.wte.weight)
        x = self.precision.stream(x + self.wpe.weight[:T])
        if self.training and self.config.embd_pdrop > 0:
            x = self.precision.operators.dropout(x, self.config.embd_pdrop, True)
        again = self.checkpointing and torch.is_grad_enabled()
        stream = Stream(x)
        for block in self.h:
            # without dropout there is no random state to put back, and saving it costs a copy a block
            stream = checkpoint(block, stream, use_reentrant=False, preserve_rng_state=block.p > 0) if again else block(stream)
        return self.precision.layernorm(stream, self.ln_f)[0], head

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue tokens [B, T] by `count` drawn tokens -> [B, T + count]; temperature 0 takes the likeliest.

        The last n_positions tokens are read again for each new one: plain, and no cache to be wrong.
        `generator` must live on the tokens' device.
        """
        context(tokens)
        if count < 0:
            raise ValueError(f"count is {count}, must be at least 0")
        if not temperature >= 0:
            raise ValueError(f"temperature is {temperature}, must be at least 0")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k is {top_k}, must be at least 1, or None for all tokens")
        was_training = self.training
        self.eval()
        try:
            for _ in range(count):
                logits = self(tokens[:, -self.config.n_positions :])[:, -1].float()
                if temperature == 0:
                    drawn = logits.argmax(-1, keepdim=True)
                else:
                    scaled = (logits - logits.amax(-1, keepdim=True)).double() / temperature  # the largest is 0 however cold it is
                    if top_k is not None and top_k < logits.shape[-1]:
                        scaled = scaled.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
                    drawn = torch.multinomial(scaled.float().softmax(-1), 1, generator=generator)
                tokens = torch.cat([tokens, drawn], dim=1)
        finally:
            self.train(was_training)
        return tokens

    @classmethod
    def from_pretrained(cls, folder: str | PathLike, *, dropout: float | None = None, **options) -> "GPT2":
        """Read a Hugging Face GPT-2 folder (config.json, model.safetensors).

        `dropout` replaces the stored rates, of the embedding and of both branches (attention then has none); `options` go to the constructor.
        """
        config, tensors = pretrained.load(folder, dropout=dropout)
        model = cls(config, **options)
        pretrained.fill(model, tensors, folder)
        return model

    def save_pretrained(self, folder: str | PathLike) -> None:
        """Write the folder Hugging Face transformers reads, whole or not at all."""
        pretrained.save(self.state_dict(), self.config, folder)
