"""The model of a run: which one, of what shape, on which table."""

from pathlib import Path

from torch import Tensor, nn

from rooftile.models import GPT2, LLAMA_1_2B, GPT2Config, Llama, LlamaConfig, llama_operators, llama_pretrained, operators, pretrained
from rooftile.training.config import TrainConfig
from rooftile.training.data import Data
from rooftile.training.errors import TrainError

__all__ = ["NAMED", "build_model", "export", "new_model"]

NAMED = {"llama-1.2b": LLAMA_1_2B}
WIDTH = 64  # sizes of a matrix are multiples of this: the matrix units like them


def new_model(shape: GPT2Config | LlamaConfig, config: TrainConfig) -> nn.Module:
    """Freshly drawn, on the host, so that every device starts from the same."""
    if isinstance(shape, LlamaConfig):
        return Llama(shape, **_llama_options(config))
    return GPT2(shape, **_gpt2_options(config))


def build_model(config: TrainConfig, data: Data) -> nn.Module:
    """A new model of the config's shape, or the one in `init`."""
    llama = config.model != "gpt2"
    if config.init:
        shape = (llama_pretrained if llama else pretrained).read_config(Path(config.init))
        _agree(config, shape)
    elif config.model in NAMED:
        shape = NAMED[config.model]
    else:
        shape = (_llama_shape if llama else _gpt2_shape)(config, data.tokenizer.vocab_size)
    if shape.n_positions < config.context:
        where = f"the model in {config.init}" if config.init else config.model
        raise TrainError(f"context is {config.context}, {where} has n_positions {shape.n_positions}")
    data.check_vocabulary(shape.vocab_size)
    if not config.init:
        return new_model(shape, config)
    if llama:
        return Llama.from_pretrained(config.init, **_llama_options(config))
    return GPT2.from_pretrained(config.init, dropout=config.dropout, **_gpt2_options(config))


def export(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Write a Hugging Face folder of the model with these weights: its own, or what processes have of it together."""
    (llama_pretrained if isinstance(model, Llama) else pretrained).save(weights, model.config, folder)


def _agree(config: TrainConfig, shape: GPT2Config | LlamaConfig) -> None:
    """TrainError where a knob of the shape is not at its default, and not what the model in `init` has."""
    has = {"n_layer": shape.n_layer, "n_head": shape.n_head, "n_embd": shape.n_embd} if isinstance(shape, GPT2Config) else {
        "n_layer": shape.num_hidden_layers, "n_head": shape.num_attention_heads, "n_kv_head": shape.kv_heads, "n_embd": shape.hidden_size,
    }  # fmt: skip
    for name, theirs in has.items():
        if getattr(config, name) not in (TrainConfig.__dataclass_fields__[name].default, theirs):
            raise TrainError(
                f"{name} is {getattr(config, name)}, the model in {config.init} has {theirs}: leave it out, init gives the shape"
            )


def _gpt2_options(config: TrainConfig) -> dict:
    return {
        "operators": operators(config.kernels),
        "compute_dtype": config.torch_dtype,
        "checkpointing": config.checkpointing,
        "weights": config.built_dtype,
    }


def _llama_options(config: TrainConfig) -> dict:
    return {**_gpt2_options(config), "operators": llama_operators(config.kernels)}


def _round_up(n: int) -> int:
    return n + -n % WIDTH


def _gpt2_shape(config: TrainConfig, vocab: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=_round_up(vocab),  # 50257 becomes 50304
        n_positions=config.context,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
    )


def _llama_shape(config: TrainConfig, vocab: int) -> LlamaConfig:
    """Gated features are 8/3 of the width: three matrices then weigh what two of four times the width do."""
    half = config.n_head // 2 if config.n_head % 2 == 0 else config.n_head
    return LlamaConfig(
        vocab_size=_round_up(vocab),
        hidden_size=config.n_embd,
        intermediate_size=_round_up(8 * config.n_embd // 3),
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.n_kv_head or half,
        max_position_embeddings=config.context,
    )
