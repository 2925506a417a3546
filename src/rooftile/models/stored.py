"""What a Hugging Face folder says of a model, before it is believed."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor

from rooftile.core.bind import fits

__all__ = ["check_dtypes", "ends", "read_config_of", "read_object", "shaped"]

Shape = TypeVar("Shape")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. ValueError with the path in it."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(stored, dict):
        raise ValueError(f"{path} holds {type(stored).__name__}, needs an object of names and values")
    return stored


def read_config_of(model: str, folder: Path, fixed: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A folder's config.json and what it says, of a model that computes one variant of what `fixed` names. FileNotFoundError or ValueError with the path in it."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no config.json: a {model} folder has config.json and model.safetensors")
    stored = read_object(path)
    for name, wanted in fixed.items():
        if stored.get(name, wanted) != wanted:
            raise ValueError(f"{path} has {name} {stored[name]!r}; this model only computes {wanted!r}")
    return path, stored


def shaped(kind: type[Shape], stored: Mapping[str, Any], path: Path) -> Shape:
    """The dataclass `kind` of what `path` says of its fields. ValueError with the path in it where that is of another type or no shape."""
    types = get_type_hints(kind)
    values = {field.name: stored[field.name] for field in dataclasses.fields(kind) if field.name in stored}
    for name, value in values.items():
        if not fits(value, *(get_args(types[name]) or (types[name],))):
            raise ValueError(f"{path} has {name} {value!r}, takes {getattr(types[name], '__name__', types[name])}")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def ends(shape: Any) -> dict[str, Any]:
    """The tokens that begin and end a text: those of a dataclass `shape`, or the last one, as Hugging Face's defaults may lie beyond its vocabulary."""
    last = shape.vocab_size - 1
    return {n: last if getattr(shape, n) is None else getattr(shape, n) for n in ("bos_token_id", "eos_token_id")}


def check_dtypes(tensors: Mapping[str, Tensor], path: Path) -> None:
    """ValueError where one is of numbers that are no weights as they stand: quantised, or whole."""
    for name, t in tensors.items():
        if t.dtype not in FLOATS:
            said = [str(d).removeprefix("torch.") for d in (t.dtype, *FLOATS)]
            raise ValueError(f"{path}: {name} is {said[0]}, takes {', '.join(said[1:])}")
