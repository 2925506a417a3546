"""Hugging Face Llama folders, read and written: config.json, and model.safetensors or the parts that an index names.

Ours keeps in one matrix what reads one tensor: the projections to queries, keys and values, and those to gate and up. A folder has them
apart, under "model."; a tied head is not stored.
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

from rooftile.models.atomic import atomic_folder
from rooftile.models.llama_config import LlamaConfig

JOINED = {"self_attn.qkv_proj.weight": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj.weight": ("gate_proj", "up_proj")}
INDEX = "model.safetensors.index.json"
# Variants of Llama that this model does not compute: a folder asking for one is refused, not misread.
FIXED = {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0}


def read_config(folder: Path) -> LlamaConfig:
    """config.json -> LlamaConfig, of transformers 4 and 5 alike. FileNotFoundError or ValueError with the path in it."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no config.json: a Llama folder has config.json and model.safetensors")
    stored = _json(path)
    for name, wanted in FIXED.items():
        if stored.get(name, wanted) != wanted:
            raise ValueError(f"{path} has {name} {stored[name]!r}; this model only computes {wanted!r}")
    names = {field.name for field in dataclasses.fields(LlamaConfig)}
    shape = {name: value for name, value in stored.items() if name in names}
    rope = {**(stored.get("rope_parameters") or {}), **(stored.get("rope_scaling") or {})}  # one dict in 5, theta beside it in 4
    shape["rope_theta"] = rope.pop("rope_theta", stored.get("rope_theta", LlamaConfig.rope_theta))
    rope["rope_type"] = rope.pop("type", rope.get("rope_type", "default"))
    shape["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return LlamaConfig(**shape)


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
    return config, _ours(stored, config)


def save(state: Mapping[str, Tensor], shape: LlamaConfig, folder: str | PathLike) -> None:
    """Write config.json and model.safetensors, in the dtype the weights have, so that transformers reads them; a new folder appears whole."""
    stored = theirs({name: p.detach().cpu() for name, p in state.items()}, shape)
    config = {**their_config(shape), "torch_dtype": str(state["norm.weight"].dtype).removeprefix("torch.")}
    with atomic_folder(Path(folder)) as made:
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
        "bos_token_id": shape.vocab_size - 1,
        "eos_token_id": shape.vocab_size - 1,
    }


def _json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _parts(folder: Path) -> list[Path]:
    """The files that hold the tensors; FileNotFoundError where one is missing."""
    index = folder / INDEX
    names = _named(index) if index.is_file() else ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            said = f"{INDEX} names {len(names)} parts" if index.is_file() else f"neither it nor {INDEX} is there"
            raise FileNotFoundError(f"{folder} holds no {name}: {said}")
    return [folder / name for name in names]


def _named(index: Path) -> list[str]:
    listed = _json(index)
    of = listed.get("weight_map") if isinstance(listed, dict) else None
    if not isinstance(of, dict) or not of:
        raise ValueError(f"{index} has no weight_map: which of the parts holds which tensor")
    return sorted(set(of.values()))


def _split_sizes(name: str, shape: LlamaConfig) -> list[int]:
    if name.endswith("gate_up_proj.weight"):
        return [shape.intermediate_size] * 2
    return [heads * shape.dim for heads in (shape.num_attention_heads, shape.kv_heads, shape.kv_heads)]


def _ours(stored: dict[str, Tensor], shape: LlamaConfig) -> dict[str, Tensor]:
    """Their names -> ours. What has no part in ours stays as it is, for `fill` to name."""
    left = {name.removeprefix("model."): t for name, t in stored.items() if not name.endswith("rotary_emb.inv_freq")}
    if shape.tie_word_embeddings:
        left.pop("lm_head.weight", None)
    made = {}
    for name, t in left.items():
        joined = next((ours for ours, parts in JOINED.items() for part in parts if name.endswith(f".{part}.weight")), None)
        if joined is None:
            made[name] = t
            continue
        layer = name.split(".")[1]
        folder = joined.split(".")[0]
        parts = [left.get(f"layers.{layer}.{folder}.{part}.weight") for part in JOINED[joined]]
        if all(p is not None for p in parts):
            made[f"layers.{layer}.{joined}"] = torch.cat(parts)
    return made
