"""Hugging Face Llama folders, read and written: config.json, and model.safetensors or the parts that an index names.

Ours keeps in one matrix what reads one tensor: the projections to queries, keys and values, and those to gate and up. A folder has them
apart, under "model."; a tied head is not stored.
"""

import dataclasses
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rooftile.models.atomic import atomic_folder
from rooftile.models.llama_config import LlamaConfig
from rooftile.models.stored import ends, read_config_of, read_object, shaped

JOINED = {"self_attn.qkv_proj.weight": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj.weight": ("gate_proj", "up_proj")}
INDEX = "model.safetensors.index.json"
# Variants of Llama that this model does not compute: a folder asking for one is refused, not misread.
FIXED = {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0}


def read_config(folder: Path) -> LlamaConfig:
    """config.json -> LlamaConfig, of transformers 4 and 5 alike. FileNotFoundError or ValueError with the path in it."""
    path, stored = read_config_of("Llama", folder, FIXED)
    rope = _angles(stored, path)
    shape = {**stored, "rope_theta": rope.pop("rope_theta", stored.get("rope_theta", LlamaConfig.rope_theta))}
    rope["rope_type"] = rope.pop("type", rope.get("rope_type", "default"))
    shape["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return shaped(LlamaConfig, shape, path)


def _angles(stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """One dict in transformers 5, theta beside it in 4."""
    made: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        told = stored.get(name) or {}
        if not isinstance(told, dict):
            raise ValueError(f"{path} has {name} {told!r}, takes an object or null")
        made |= told
    return made


def load(folder: str | PathLike) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """The model a folder describes, and its tensors under our names."""
    folder = Path(folder)
    config = read_config(folder)
    stored: dict[str, Tensor] = {}
    for path in _parts(folder):
        try:
            stored |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} cannot be read, it holds {path.stat().st_size} bytes: {error}") from None
    return config, _ours(stored, config, folder)


def save(state: Mapping[str, Tensor], shape: LlamaConfig, folder: str | PathLike) -> None:
    """Write config.json and model.safetensors, in the dtype the weights have, so that transformers reads them; a new folder appears whole."""
    stored = theirs({name: p.detach().cpu() for name, p in state.items()}, shape)
    config = {**their_config(shape), "torch_dtype": str(state["norm.weight"].dtype).removeprefix("torch.")}
    with atomic_folder(folder) as made:
        save_file(stored, made / "model.safetensors", metadata={"format": "pt"})
        (made / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def theirs(state: Mapping[str, Tensor], shape: LlamaConfig) -> dict[str, Tensor]:
    """Our names -> theirs."""
    made = {}
    for name, t in state.items():
        joined = next((ours for ours in JOINED if name.endswith(ours)), None)
        prefix = "" if name == "lm_head.weight" else "model."
        if joined is None:
            made[prefix + name] = t.contiguous()
            continue
        stem = prefix + name.removesuffix(joined.split(".", 1)[1])
        for part, rows in zip(JOINED[joined], t.split(_split_sizes(name, shape))):
            made[f"{stem}{part}.weight"] = rows.contiguous()
    return made


def their_config(shape: LlamaConfig) -> dict:
    """What transformers' LlamaConfig is told."""
    return {
        **FIXED,
        **dataclasses.asdict(shape),
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.dim,
        "architectures": ["LlamaForCausalLM"],
        **ends(shape),
    }


def _parts(folder: Path) -> list[Path]:
    """The files that hold the tensors: one, as `save` leaves beside parts of another's, or else parts. FileNotFoundError where one is missing."""
    whole, index = folder / "model.safetensors", folder / INDEX
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise FileNotFoundError(f"{folder} holds no {whole.name}: neither it nor {INDEX} is there")
    names = _named(index)
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no {name}: {INDEX} names {len(names)} parts")
    return [folder / name for name in names]


def _named(index: Path) -> list[str]:
    of = read_object(index).get("weight_map")
    if not isinstance(of, dict) or not of or not all(isinstance(name, str) for name in of.values()):
        raise ValueError(f"{index} has no weight_map: which of the parts holds which tensor")
    return sorted(set(of.values()))


def _split_sizes(name: str, shape: LlamaConfig) -> list[int]:
    if name.endswith("gate_up_proj.weight"):
        return [shape.intermediate_size] * 2
    return [heads * shape.dim for heads in (shape.num_attention_heads, shape.kv_heads, shape.kv_heads)]


def _ours(stored: dict[str, Tensor], shape: LlamaConfig, folder: Path) -> dict[str, Tensor]:
    """Their names -> ours. What has no part in ours, or lacks what it is joined to, stays as it is, for `fill` to name."""
    left = {name.removeprefix("model."): t for name, t in stored.items() if not name.endswith("rotary_emb.inv_freq")}
    if shape.tie_word_embeddings:
        left.pop("lm_head.weight", None)
    made = {}
    for name, t in left.items():
        joined = next((ours for ours, parts in JOINED.items() for part in parts if name.endswith(f".{part}.weight")), None)
        if joined is None:
            made[name] = t
            continue
        stem = name.rsplit(".", 2)[0]  # of layer and block
        names = [f"{stem}.{part}.weight" for part in JOINED[joined]]
        if not all(n in left for n in names):
            made[name] = t
            continue
        for n, rows in zip(names, _split_sizes(joined, shape)):
            if left[n].shape != (rows, shape.hidden_size):
                raise ValueError(f"{folder}: {n} has shape {tuple(left[n].shape)}, config.json says {(rows, shape.hidden_size)}")
        if name == names[0]:
            made[f"{stem.rsplit('.', 1)[0]}.{joined}"] = torch.cat([left[n] for n in names])
    return made
