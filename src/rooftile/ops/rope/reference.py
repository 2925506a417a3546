import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def check_positions(positions: Tensor | None, cos: Tensor) -> None:
    """A CPU can afford to look. A GPU would have to wait for the answer: there the token becomes NaN."""
    if positions is not None and positions.device.type == "cpu" and positions.numel():
        low, high = (int(i) for i in positions.aminmax())
        if low < 0 or high >= len(cos):
            raise ValueError(f"rope: a position is {low if low < 0 else high}, but the table has {len(cos)} rows")


def _turns(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> Tensor:
    """Each token's complex factors, [B, T, 1, N] or [T, 1, N]. Of a position outside the table they are NaN."""
    check_positions(positions, cos)
    cos, sin = wide(cos).to(wide(x).dtype), wide(sin).to(wide(x).dtype)
    turns = torch.polar(torch.hypot(cos, sin), torch.atan2(sin, cos))
    if positions is None:
        return turns[: x.shape[1], None]
    inside = (positions >= 0) & (positions < len(cos))
    if not len(cos):
        return turns.new_full((*positions.shape, 1, cos.shape[1]), torch.nan)
    return torch.where(inside[..., None], turns[torch.where(inside, positions, 0)], torch.nan)[:, :, None]


def _rotate(x: Tensor, turns: Tensor, interleaved: bool) -> Tensor:
    n = turns.shape[-1]
    head, rest = wide(x).split([2 * n, x.shape[-1] - 2 * n], dim=-1)
    pairs = head.unflatten(-1, (n, 2)) if interleaved else head.unflatten(-1, (2, n)).transpose(-1, -2)
    turned = torch.complex(*pairs.unbind(-1)) * turns
    turned = torch.stack((turned.real, turned.imag), -1)
    head = (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)
    return torch.cat([head, rest], dim=-1).to(x.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool) -> tuple[Tensor, Tensor]:
    turns = _turns(q, cos, sin, positions)
    return _rotate(q, turns, interleaved), _rotate(k, turns, interleaved)


def rope_backward(
    dq_out: Tensor, dk_out: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """A rotation's gradient turns back."""
    return rope(dq_out, dk_out, cos, -sin, positions, interleaved)


def rope_overwrite(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool) -> None:
    for x, turned in zip((q, k), rope(q, k, cos, sin, positions, interleaved)):
        x.copy_(turned)
