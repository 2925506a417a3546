"""What the launchers of norms share: which norm, what a call allocates, who is taken, and for Triton how rows are dealt and what may be tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rooftile.core.spec import Call
from rooftile.ops._shared.few_rows import few, warps
from rooftile.ops._shared.launch import dense_like, off_gpu, power_of_2, row
from rooftile.ops._shared.philox import scale, threshold

MAX_ROW = 16384  # forward: 16 warps hold 32 float32 a lane
MAX_ROW_BACKWARD = 8192  # rows, a parameter and its accumulators: up to 5 values a column, 80 a lane at 16 warps
TILE = 4096


@dataclass(frozen=True)
class Norm:
    """Which norm, what is added to its weight, and of the branch what is dropped, or which bias it still lacks, before it is added."""

    layer: bool
    offset: float | None = None
    seed: Tensor | None = None
    p: float = 0.0
    x_bias: Tensor | None = None

    @property
    def centred(self) -> bool:
        """Whether it gives a mean: LayerNorm, and dropout_add_norm, whose RMSNorm has one of zero."""
        return self.layer or self.seed is not None

    def drawn(self, x: Tensor) -> tuple[Tensor, int, float]:
        """Seed, threshold and scale; where nothing is dropped any tensor, and two numbers that nobody reads."""
        return (x, 0, 1.0) if self.seed is None else (self.seed, threshold(self.p), scale(self.p))


LAYER, RMS = Norm(layer=True), Norm(layer=False)


def dense(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.is_contiguous() else parameter.contiguous()


def outputs(x: Tensor, residual: Tensor | None, norm: Norm, save: bool) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """out, sum, mean, rstd; None for the sum of one tensor, for a mean that the norm does not give, and for both statistics where they are not
    to be saved."""
    rstd = x.new_empty(x.shape[:-1], dtype=torch.float32) if save else None
    mean = torch.empty_like(rstd) if rstd is not None and norm.centred else None
    return dense_like(x), None if residual is None else dense_like(residual), mean, rstd


def gradients(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """dx where it differs from the gradient of what was normalised, as something was dropped; that gradient; dweight, dbias."""
    dx = None if norm.seed is None else dense_like(dout)
    dweight, dbias = (x.new_empty(0) if p is None else p.new_empty(p.shape) for p in (weight, bias))
    return dx, dense_like(x), dweight, dbias


def no_columns(call: Call) -> str | None:
    return None if row(call).shape[-1] else "N=0: a row without columns has no mean"


def any_length(call: Call) -> str | None:
    return off_gpu(row(call)) or no_columns(call)


def upto(longest: int) -> Callable[[Call], str | None]:
    def refuse(call: Call) -> str | None:
        n = row(call).shape[-1]
        return any_length(call) or (None if n <= longest else f"N={n} is longer than the {longest} columns a program keeps in registers")

    return refuse


def pick_forward(call: Call) -> dict[str, int]:
    """32 elements a lane, so that 4 loads of 16 bytes are in flight from each; warps lie along the row, rows in the lane. Of few rows a program each.
    Parameters are asked for with the row: one latency and not two."""
    block = power_of_2(row(call).shape[-1])
    if few(row(call)):
        return {"rows": 1, "warps": warps(block), "ahead": 1}
    per = max(1, min(TILE // block, 16))
    return {"rows": per, "warps": min(16, max(1, per * block // 1024)), "ahead": 1}


def pick_persistent(call: Call, short: int = 1024, most: int = 4) -> dict[str, int]:
    """8 columns a lane where the row is that wide: the rows of a tile, `most` of them, then lie in one lane, and their share of dweight adds up
    there. Three stages: two tiles (32 KiB at N=1024) are on their way through shared memory while one is worked on; two where those would fill
    it, as dsum waits there too. 16 warps of 128 registers; rows of up to 128 columns go to one warp, `short` elements of them.
    Of few rows a program each."""
    block = power_of_2(row(call).shape[-1])
    if block <= 128:
        return {"rows": short // block, "warps": 1, "per_sm": 16, "stages": 1}
    if few(row(call)):
        return {"rows": 1, "warps": warps(block), "per_sm": 1, "stages": 1}
    wide = min(16, max(1, block // 256))
    per_sm = max(1, 16 // wide)
    if (
        "dsum" not in call and 1024 <= block <= 4096
    ):  # measured: half as many warps keep two tiles on their way as well, and write half the partial rows
        wide, per_sm = min(8, wide), max(1, 8 // wide)
    rows = 4 if block < 1024 or (block == 1024 and "dsum" not in call) else 2 if block <= 4096 else 1  # of 4 with dsum few programs fit
    per = min(most, rows)
    waiting = 2 * (3 if "dsum" in call else 2) * per * block * row(call).itemsize
    return {"rows": per, "warps": wide, "per_sm": per_sm, "stages": 3 if waiting <= 128 * 1024 else 2}


ONCE = tuple(
    {"rows": r, "warps": w, "ahead": a} for r, warps in ((1, (1, 2, 4, 8, 16)), (2, (2, 4, 8)), (4, (4, 8))) for w in warps for a in (0, 1)
)
ONLINE = tuple({"block": b, "warps": w} for b, w in ((8192, 16), (8192, 8), (4096, 8), (16384, 16)))
PERSISTENT = tuple(
    {"rows": r, "warps": w, "per_sm": p, "stages": s}
    for r, warps, per_sm, stages in (
        (1, (4, 8, 16), (1, 2, 4, 8), (1, 3)),
        (2, (4, 8, 16), (1, 2, 4), (1, 3)),
        (4, (4, 8), (2, 4), (1, 2, 3)),
    )
    for w in warps
    for p in per_sm
    for s in stages
)
