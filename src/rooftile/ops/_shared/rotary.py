"""What rotary embeddings share: the reference's turns, by torch.polar, and how kernels see heads."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.spec import Call
from rooftile.ops._shared.reference import wide


def turns(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> Tensor:
    """Each token's complex factors for x [B, T, H, D]: [B, T, 1, N] or [T, 1, N]. Of a position outside the table they are NaN."""
    cos, sin = wide(cos).to(wide(x).dtype), wide(sin).to(wide(x).dtype)
    factors = torch.polar(torch.hypot(cos, sin), torch.atan2(sin, cos))
    if positions is None:
        return factors[: x.shape[1], None]
    inside = (positions >= 0) & (positions < len(cos))
    if not len(cos):
        return factors.new_full((*positions.shape, 1, cos.shape[1]), torch.nan)
    return torch.where(inside[..., None], factors[torch.where(inside, positions, 0)], torch.nan)[:, :, None]


def rotate(x: Tensor, factors: Tensor, interleaved: bool) -> Tensor:
    n = factors.shape[-1]
    head, rest = wide(x).split([2 * n, x.shape[-1] - 2 * n], dim=-1)
    pairs = head.unflatten(-1, (n, 2)) if interleaved else head.unflatten(-1, (2, n)).transpose(-1, -2)
    turned = torch.complex(*pairs.unbind(-1)) * factors
    turned = torch.stack((turned.real, turned.imag), -1)
    head = (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)
    return torch.cat([head, rest], dim=-1).to(x.dtype)


def dense(x: Tensor) -> Tensor:
    """x with neighbouring elements along its last axis, whatever its other strides."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def scattered(call: Call, *names: str) -> str | None:
    """Why these cannot be written where they lie, or None."""
    for name in names:
        x = call[name]
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            return f"the last axis of {name} has stride {x.stride(-1)}, and it writes in place where that is 1"
    return None


def uneven_heads(call: Call, heads: tuple[str, ...], table: tuple[str, ...]) -> str | None:
    """Why these heads and their tables cannot be moved 16 bytes at a time, or None. What is not dense along the last axis is copied first."""
    d, n = call[heads[0]].shape[-1], call[table[0]].shape[1] if table else 0
    width = 16 // call[heads[0]].itemsize
    pairs = width // 2 if call["interleaved"] else width
    if n % pairs or (d - 2 * n) % width:
        return f"it turns {pairs} pairs and copies {width} elements at a time, there are {n} pairs and {d - 2 * n} elements more"
    for name in (*heads, *table):
        t, to = call[name], min(16, pairs * call[name].itemsize) if name in table else 16
        if t.stride(-1) != 1 and t.shape[-1] > 1:
            continue
        past = 0 if isinstance(t, FakeTensor) else t.data_ptr() % to
        if past:
            return f"{name} begins {past} bytes past a multiple of {to}, and it reads {to} bytes at a time"
        for axis in range(t.dim() - 1):
            if t.shape[axis] > 1 and t.stride(axis) * t.itemsize % to:
                return f"{name} has steps of {t.stride(axis) * t.itemsize} bytes, no multiple of the {to} it reads at a time"
    return None
