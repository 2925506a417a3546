"""The shortest way through a few rows: a block a row whose threads ask for all that they need at once, in little code, which has to come from memory too."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rooftile.core.spec import Call
from rooftile.ops._shared.cuda_rows import threads
from rooftile.ops._shared.few_rows import SHORT, few
from rooftile.ops._shared.launch import cdiv, processors, row

LEAST = ({"vecs": 1}, {"vecs": 2})


def pick(call: Call) -> Mapping[str, int]:
    """16 bytes a thread up to 16 warps, for all of which a block's last one waits."""
    return LEAST[0] if row(call).shape[-1] * row(call).itemsize <= 512 * 16 else LEAST[1]


def shape(x: Tensor, n: int, config: Mapping[str, int]) -> tuple[int, int]:
    """Vectors of 16 bytes a thread, and threads a row."""
    vectors = n * x.itemsize // 16
    block = threads(vectors, config["vecs"])
    return max(1, cdiv(vectors, block)), block


def wide(call: Call) -> str | None:
    """Why a block does not hold the row beside its parameters, or None."""
    size = row(call).shape[-1] * row(call).itemsize
    return f"a row of {size} bytes is more than the {SHORT} of 1024 threads with 16 each" if size > SHORT else None


def many(call: Call) -> str | None:
    """Why others do sooner, or None: rows that run beside each other hide each other's way."""
    x = row(call)
    return None if few(x) else f"{x.numel() // x.shape[-1]} rows are more than one for each of {processors(x)} multiprocessors"
