"""(operator, device, call) -> kernel and config, from Records that survive the process.

Tuning happens when asked (`rooftile tune`). A missing entry means the heuristic, never a silent minute in a user's first step.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooftile.core import device
from rooftile.core.bind import device_of
from rooftile.core.record import Record, Status, append, cache_folder, read
from rooftile.core.spec import Call

_entries: dict[str, dict[tuple[str, str], list[Record]]] = {}  # device -> (operator, call key) -> fastest first


def key(call: Call) -> str:
    """What a tuned choice depends on: shapes, dtypes, whether the rows are dense, and the parameters."""

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            order = "" if value.dim() == 0 or value.stride(-1) == 1 else "/strided"
            return f"{'x'.join(map(str, value.shape))}:{str(value.dtype).removeprefix('torch.')}{order}"
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return f"{len(value)} tensors of {sum(t.numel() for t in value)}:{str(value[0].dtype).removeprefix('torch.')}"
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    return " ".join(f"{n}={text(v)}" for n, v in call.items())


def path(name: str) -> Path:
    return cache_folder() / "tune" / f"{name}.jsonl"


def shipped(name: str) -> Path:
    """Choices measured by us and packed into the wheel."""
    return Path(__file__).resolve().parent.parent / "tuned" / f"{name}.jsonl"


def lookup(op: Any, call: Call, kernel: str | None = None) -> tuple[Any, Mapping[str, Any]] | None:
    """(kernel, config) of an Op: the fastest passed record of this exact call whose kernel has not changed since."""
    where = device_of(call.values())
    name = None if where is None else _name(where)
    if name is None:
        return None
    if name not in _entries:
        _entries[name] = _load(name)
    if not _entries[name]:
        return None
    known = {k.name: k for k in op.kernels}
    for r in _entries[name].get((op.spec.name, key(call)), []):
        if r.kernel in known and kernel in (None, r.kernel) and r.digest == known[r.kernel].digest:
            return known[r.kernel], r.config
    return None


def _name(where: torch.device) -> str | None:
    """Under which a device's choices are kept; None for one that has none."""
    return device.slug(where) if where.type == "cuda" and torch.cuda.is_available() else None


def remember(name: str, records: list[Record]) -> None:
    """Add to this machine's cache, visible at once. The operator whose record this is must `forget()` its choices."""
    append(path(name), records)
    _entries.pop(name, None)


def _kept(source: Path) -> list[Record]:
    """No operator dies of a damaged cache, or of one that is somebody else's: choices are lost, and that is said."""
    try:
        return list(read(source))
    except (OSError, ValueError) as error:
        warnings.warn(f"tuned choices are left out, heuristics choose: {error}", RuntimeWarning, stacklevel=2)
        return []


def _load(name: str) -> dict[tuple[str, str], list[Record]]:
    table: dict[tuple[str, str], list[Record]] = {}
    for source in (path(name), shipped(name)):
        for r in _kept(source):
            if r.status == Status.PASSED and r.us is not None:
                table.setdefault((r.op, r.case), []).append(r)
    for entries in table.values():
        entries.sort(key=lambda r: r.us[1] if r.us else 0.0)
    return table
