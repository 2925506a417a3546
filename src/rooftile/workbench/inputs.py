"""Input families and layouts: the same operator, on the inputs that break kernels."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rooftile.core.spec import Arg, OpSpec, normal
from rooftile.cuda.simulator.arguments import NORESERVE

Vary = Callable[[str, Arg, Tensor], Tensor]


def _scaled_rows(t: Tensor) -> Tensor:
    """Rows over eight orders of magnitude (four in float16, whose range is that short)."""
    orders = 2 if t.dtype == torch.float16 else 4
    if t.dim() < 2 or t.shape[-2] == 0:
        return t * 10.0**-orders
    return t * torch.logspace(-orders, orders, t.shape[-2], device=t.device, dtype=torch.float32)[:, None].to(t.dtype)


def _masked_rows(t: Tensor) -> Tensor:
    """Every third column -inf, as a mask leaves it, and the first row wholly."""
    t = t.clone()
    t[..., 1::3] = float("-inf")
    if t.dim() > 1 and t.numel():
        t.view(-1, t.shape[-1])[0] = float("-inf")
    return t


def _nan(t: Tensor) -> Tensor:
    t = t.clone()
    if t.numel():
        t.view(-1)[0] = float("nan")
    return t


FAMILIES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda t: t,
    "scaled_rows": _scaled_rows,
    "large": lambda t: t * 100,
    "all_equal": lambda t: torch.full_like(t, 1.5),
    "masked_rows": _masked_rows,
    "nan": _nan,
    "integers": lambda t: (t * 2).round().clamp(-4, 4),
}


def vary(spec: OpSpec, family: str) -> Vary:
    """Applies a family to the freely drawn tensors. Output gradients stay normal, but for integers, where all must be exact."""
    forward = spec.forward or spec

    def apply(name: str, arg: Arg, t: Tensor) -> Tensor:
        free = arg.make is normal and (name in forward.args or family == "integers")
        return FAMILIES[family](t) if free else t

    return apply


def families(spec: OpSpec) -> list[str]:
    return ["normal", *spec.families, *(["integers"] if spec.linear else [])]


def _sliced(t: Tensor, more: int = 3) -> Tensor:
    """The same values as a slice of wider rows."""
    wide = t.new_full((*t.shape[:-1], t.shape[-1] + more), float("nan") if t.is_floating_point() else 0)
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def _padded(t: Tensor) -> Tensor:
    """A slice whose rows begin at multiples of 16 bytes where they did: kernels of wide accesses refuse the other, and would be judged at no stride but N."""
    return _sliced(t, 16 // t.itemsize)


def _transposed(t: Tensor) -> Tensor:
    """A vector is a column of what is NaN beside it."""
    if t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    return _sliced(t[:, None], 1).squeeze(1)


def _misaligned(t: Tensor) -> Tensor:
    """One element past a 16-byte boundary."""
    flat = t.new_empty(t.numel() + 1)
    flat[1:] = t.reshape(-1)
    return flat[1:].view(t.shape)


def _far(t: Tensor) -> Tensor:
    """Its rows, or heads, and its batches so far apart that the last of each begins where 31 bits do not reach: a product of an index and a stride that
    is made in 32 goes round. In memory that is promised and not taken, as only a CPU has it."""
    far = [axis for axis in dict.fromkeys((t.dim() - 2, 0)) if 0 <= axis < t.dim() - 1 and t.shape[axis] > 1]
    strides, inner = [0] * t.dim(), 1
    for axis in reversed(range(t.dim())):
        if axis not in far:
            strides[axis], inner = inner, inner * t.shape[axis]
    for axis in far:
        apart = 64 * math.ceil((2**31 // (t.shape[axis] - 1) + 64) / 64)
        while not _distinct({**{a: strides[a] for a in far if strides[a]}, axis: apart}, t, inner):
            apart += 64 * math.ceil(inner / 64)
        strides[axis] = apart
    return _promised(t, sum((n - 1) * s for n, s in zip(t.shape, strides)) + 1).as_strided(t.shape, strides).copy_(t)


def _promised(t: Tensor, elements: int) -> Tensor:
    memory = mmap.mmap(-1, elements * t.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(t.dtype)


def as_it_lies(t: Tensor) -> Tensor:
    """A copy at the same strides, in as much memory, with what is between and beside."""
    held = t.untyped_storage().nbytes() // t.itemsize
    if held > FAR_FROM and t.device.type == "cpu":
        return _promised(t, held).as_strided(t.shape, t.stride(), t.storage_offset()).copy_(t)
    return torch.as_strided(t, (held,), (1,), 0).clone().as_strided(t.shape, t.stride(), t.storage_offset())


def beside(t: Tensor) -> Tensor:
    """What is in t's memory and is none of t, of which zeros are left; nothing where that is more than anyone looks through."""
    if t.untyped_storage().nbytes() // t.itemsize > FAR_FROM:
        return t.new_empty(0)
    around = as_it_lies(t).zero_()
    return torch.as_strided(around, (around.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


def _distinct(strides: dict[int, int], t: Tensor, inner: int) -> bool:
    """Whether pieces of `inner` elements at these strides lie apart."""
    begins = sorted(sum(i * s for i, s in zip(at, strides.values())) for at in itertools.product(*(range(t.shape[a]) for a in strides)))
    return all(b - a >= inner for a, b in itertools.pairwise(begins))


FAR, FAR_FROM = "far", 2**30  # elements from which no copy of what is between is made
REPEATED = "repeated"  # no layout: the call as it is, many times
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sliced": _sliced,
    "padded": _padded,
    "transposed": _transposed,
    "misaligned": _misaligned,
    FAR: _far,
}


def lay_out(spec: OpSpec, call: dict[str, Any], layout: str) -> dict[str, Any]:
    """The same call with other strides. `expanded` is a gradient that arrives with stride 0, as .sum().backward() sends it."""

    def lay(name: str, t: Tensor) -> Tensor:
        if layout == "expanded":
            upstream = spec.forward is not None and name[1:] in spec.forward.returns
            return torch.full_like(t.reshape(-1)[:1], 0.5)[0].expand(t.shape) if upstream and t.numel() else t
        return LAYOUTS[layout](t) if t.dim() and t.numel() else t

    def value(name: str, v: Any) -> Any:
        if name in spec.args and v is not None:
            return [lay(name, t) for t in v] if spec.args[name].many else lay(name, v)
        return v

    return {n: value(n, v) for n, v in call.items()}


def layouts(spec: OpSpec) -> list[str]:
    return [*LAYOUTS, *(["expanded"] if spec.forward is not None else [])]
