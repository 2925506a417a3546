"""What pointwise launchers share: tensors of one shape as rows, and who may read them 16 bytes at a time."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rooftile.ops._shared.cuda import misaligned
from rooftile.ops._shared.cuda_rows import uneven
from rooftile.ops._shared.launch import cdiv, power_of_2, rows


@triton.jit
def place(tiles, SOLE: tl.constexpr, BLOCK: tl.constexpr):
    """Row and columns of a program's tile. A sole row needs no division, which all loads would wait for."""
    if SOLE:
        i_m = tl.full([], 0, tl.int64)
        i_tile = tl.program_id(0)
    else:
        i_m = (tl.program_id(0) // tiles).to(tl.int64)
        i_tile = tl.program_id(0) % tiles
    return i_m, i_tile.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


def together(*tensors: Tensor) -> tuple[int, int, list[Tensor], list[int]]:
    """Tensors of one shape as M rows of N neighbours, with each one's row stride: a single row where all are contiguous."""
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        n = first.numel()
        return 1, n, list(tensors), [n] * len(tensors)
    made = [rows(t) for t in tensors]
    return made[0][1], made[0][2], [t for t, *_ in made], [stride for *_, stride in made]


def no_rows(name: str, x: Tensor) -> str | None:
    """Why x cannot be written in place as rows of neighbours, or None."""
    if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1):
        return None
    try:
        x.view(-1, x.shape[-1])
    except RuntimeError:
        return f"{name} is {list(x.shape)} with strides {list(x.stride())}: it has no view as rows of neighbours to be overwritten in"
    return None if x.stride(-1) == 1 else f"neighbours in a row of {name} are {x.stride(-1)} apart"


def ragged(named: dict[str, Tensor]) -> str | None:
    """Why tensors of one shape cannot be read 16 bytes at a time, or None. As one row they need only begin well."""
    if all(t.is_contiguous() for t in named.values()):
        return misaligned(16, named)
    return uneven(named)


def tile(n: int, most: int) -> int:
    """Elements of a row for one program: no more than `most`, and so that little of the last tile is empty."""
    if n >= 8 * most:
        return most
    return min((max(256, most >> i) for i in range(3)), key=lambda t: cdiv(n, t) * t) if n > 256 else max(16, power_of_2(n))


def warps(block: int, config: dict[str, int]) -> int:
    """Of a program whose tile is narrower than its config's: 8 elements a lane, or as few as the config has."""
    return min(config["warps"], max(1, block // min(256, config["block"] // config["warps"])))
