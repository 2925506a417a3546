"""What the Triton launchers of norms share: who is taken, how rows are dealt, and what may be tried for them."""

from torch import Tensor

from rooftile.core.spec import Call
from rooftile.ops._shared.launch import off_gpu, power_of_2

MAX_ROW = 16384  # forward: 16 warps hold 32 float32 a lane
MAX_ROW_BACKWARD = 8192  # rows, a parameter and its accumulators: up to 5 values a column, 80 a lane at 16 warps
TILE = 4096
STRIP = 1024  # columns of a strip: 2 KiB of bf16 a row, and 8 columns a lane for 4 warps


def dense(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.is_contiguous() else parameter.contiguous()


def row(call: Call) -> Tensor:
    """The tensor whose rows are normalised."""
    return call["sum"] if "sum" in call else call["x"]


def no_columns(call: Call) -> str | None:
    return None if row(call).shape[-1] else "N=0: a row without columns has no mean"


def any_length(call: Call) -> str | None:
    return off_gpu(row(call)) or no_columns(call)


def upto(longest: int):
    def refuse(call: Call) -> str | None:
        n = row(call).shape[-1]
        return any_length(call) or (None if n <= longest else f"N={n} is longer than the {longest} columns a program keeps in registers")

    return refuse


def pick_forward(call: Call) -> dict[str, int]:
    """32 elements a lane, so that 4 loads of 16 bytes are in flight from each; warps lie along the row, rows in the lane."""
    block = power_of_2(row(call).shape[-1])
    per = max(1, min(TILE // block, 16))
    return {"rows": per, "warps": min(16, max(1, per * block // 1024))}


ONCE = tuple({"rows": r, "warps": w} for r, warps in ((1, (1, 2, 4, 8, 16)), (2, (2, 4, 8)), (4, (4, 8))) for w in warps)
ONLINE = tuple({"block": b, "warps": w} for b, w in ((8192, 16), (8192, 8), (4096, 8), (16384, 16)))
PERSISTENT = tuple(
    {"rows": r, "warps": w, "per_sm": p, "stages": s}
    for r, warps, per_sm, stages in (
        (1, (4, 8, 16), (1, 2, 4, 8), (1, 3)),
        (2, (8, 16), (1, 2, 4), (1, 3)),
        (4, (4, 8), (2, 4), (1, 2, 3)),
    )
    for w in warps
    for p in per_sm
    for s in stages
)
