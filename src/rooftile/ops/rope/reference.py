from torch import Tensor

from rooftile.ops._shared.rotary import rotate, turns


def check_positions(positions: Tensor | None, cos: Tensor) -> None:
    """A CPU can afford to look. A GPU would have to wait for the answer: there the token becomes NaN."""
    if positions is not None and positions.device.type == "cpu" and positions.numel():
        low, high = (int(i) for i in positions.aminmax())
        if low < 0 or high >= len(cos):
            raise ValueError(f"rope: a position is {low if low < 0 else high}, but the table has {len(cos)} rows")


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool) -> tuple[Tensor, Tensor]:
    check_positions(positions, cos)
    factors = turns(q, cos, sin, positions)
    return rotate(q, factors, interleaved), rotate(k, factors, interleaved)


def rope_backward(
    dq_out: Tensor, dk_out: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """A rotation's gradient turns back."""
    return rope(dq_out, dk_out, cos, -sin, positions, interleaved)


def rope_overwrite(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool) -> None:
    for x, turned in zip((q, k), rope(q, k, cos, sin, positions, interleaved)):
        x.copy_(turned)
