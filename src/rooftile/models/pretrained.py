"""Hugging Face GPT-2 folders, read and written: config.json and model.safetensors.

Two things differ from our own state dict. Their linear layers ("Conv1D") keep the weight as [K, N], ours as [N, K]; and the
names begin with "transformer." when the file was saved from the language model rather than from its trunk. The head is tied
to the token embedding, so `lm_head.weight` is not stored.
"""

import dataclasses
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Module

from rooftile.models.atomic import atomic_folder
from rooftile.models.config import GPT2Config
from rooftile.models.stored import check_dtypes, ends, read_config_of, shaped

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
MASKS = (".attn.bias", ".attn.masked_bias")  # constant buffers that old versions stored beside the weights
# Variants of GPT-2 that this model does not compute: a folder asking for one is refused, not misread.
FIXED = {
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "add_cross_attention": False,
}


def read_config(folder: Path) -> GPT2Config:
    """config.json -> GPT2Config. FileNotFoundError or ValueError with the path in it."""
    path, stored = read_config_of("GPT-2", folder, FIXED)
    return shaped(GPT2Config, stored, path)


def load(folder: str | PathLike, *, dropout: float | None = None) -> tuple[GPT2Config, dict[str, Tensor]]:
    """The model a folder describes, and its tensors under our names. `dropout`: instead of the stored rates; attention then has none."""
    folder = Path(folder)
    config = read_config(folder)
    if dropout is not None:
        config = dataclasses.replace(config, embd_pdrop=dropout, resid_pdrop=dropout, attn_pdrop=0.0)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no model.safetensors (other formats and sharded checkpoints are not read)")
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read, it holds {path.stat().st_size} bytes: {error}") from None
    return config, _ours(stored)


def save(state: Mapping[str, Tensor], shape: GPT2Config, folder: str | PathLike) -> None:
    """Write config.json and model.safetensors, in the dtype the weights have, so that transformers reads them; a new folder appears whole."""
    stored = {f"transformer.{name}": _turn(name, p.detach().cpu()).contiguous() for name, p in state.items()}
    config = {
        **FIXED,
        **dataclasses.asdict(shape),
        "architectures": ["GPT2LMHeadModel"],
        "torch_dtype": str(state["wte.weight"].dtype).removeprefix("torch."),
        **ends(shape),
    }
    with atomic_folder(folder) as made:
        save_file(stored, made / "model.safetensors", metadata={"format": "pt"})
        (made / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _turn(name: str, tensor: Tensor) -> Tensor:
    """[N, K] <-> [K, N] for the four matrices of a block; its own inverse."""
    return tensor.t() if name.endswith(TRANSPOSED) else tensor


def _ours(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their names and layouts -> ours."""
    plain = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    return {name: _turn(name, tensor) for name, tensor in plain.items() if name != "lm_head.weight" and not name.endswith(MASKS)}


@torch.no_grad()
def fill(model: Module, tensors: Mapping[str, Tensor], folder: str | PathLike) -> None:
    """Copy the tensors in; stored half precision becomes float32. ValueError where one is missing, unknown, of another shape or quantised."""
    path = Path(folder) / "model.safetensors"
    parameters = dict(model.named_parameters())
    for kind, names in (("lacks", parameters.keys() - tensors.keys()), ("has the unknown", tensors.keys() - parameters.keys())):
        if names:
            raise ValueError(f"{path} {kind} {sorted(names)[0]} ({len(names)} such of {len(parameters)} tensors)")
    check_dtypes(tensors, path)
    for name, p in parameters.items():
        if p.shape != tensors[name].shape:
            raise ValueError(f"{path}: {name} has shape {tuple(tensors[name].shape)}, config.json says {tuple(p.shape)}")
        p.copy_(tensors[name])
