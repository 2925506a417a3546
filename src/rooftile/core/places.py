"""Whether elements of tensors share places in memory: what is written there would depend on who comes first.

An element lies at gap + sum x_i s_i, 0 <= x_i <= n_i, so two of them share a byte where such a sum meets another. The steps s_i of a tensor are nearly
always nested, each longer than what the shorter ones reach, and then there is one x_i, or two, to try of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

TRIES = 1000  # strides that are no nest are given up after these, and taken to be apart
alias: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]  # whether two are of one allocation
Steps = list[tuple[int, int]]  # (s, n): s bytes, 0 to n times


def steps(t: Tensor) -> Steps:
    """Of t's elements, and of the bytes of one."""
    size = t.element_size()
    return [(s * size, n - 1) for s, n in zip(t.stride(), t.shape) if n > 1] + [(1, size - 1)]


def reach(t: Tensor) -> int:
    """Bytes from t's first to behind its last; 0 of one without elements."""
    if t.is_contiguous():
        return t.nbytes
    return 1 + sum(s * n for s, n in steps(t)) if t.numel() else 0


def crowded(t: Tensor) -> bool:
    """Whether two of t's own elements share a place."""
    if not t.numel():
        return False
    nest, inside = sorted((s, n) for s, n in steps(t)), 1
    for s, n in nest:
        if s < inside:
            break
        inside += s * n
    else:
        return False
    *axes, byte = steps(t)
    for i, (s, n) in enumerate(axes):  # two that differ by 1 at least along this axis, along those before not at all
        others = [*axes[i + 1 :], byte]
        if _meets(sum(other * m for other, m in others) - s, [*((other, 2 * m) for other, m in others), (s, n - 1)]):
            return True
    return False


def shared(a: Tensor, b: Tensor) -> bool:
    """Whether an element of a shares a place with one of b, in one allocation."""
    if not alias(a, b):
        return False
    gap = b.data_ptr() - a.data_ptr()
    if not -reach(b) < gap < reach(a):
        return False
    own, other = steps(a), steps(b)
    return _meets(gap + sum(s * n for s, n in other), own + other)


def meeting(written: Sequence[Tensor], read: Sequence[Tensor] = ()) -> tuple[int, int] | None:
    """Which two of [*written, *read] share a place, where any do; the first is written."""
    tensors, count = [*written, *read], len(written)
    reaching: list[tuple[int, int]] = []  # past where the next begins
    for begin, j in sorted((t.data_ptr(), j) for j, t in enumerate(tensors)):
        reaching = [(end, i) for end, i in reaching if end > begin]
        for _, i in reaching:
            if min(i, j) < count and shared(tensors[i], tensors[j]):
                return (i, j) if i < count else (j, i)
        reaching.append((begin + reach(tensors[j]), j))
    return None


def same(a: Tensor, b: Tensor) -> bool:
    """Whether all of a's elements lie where b's do."""
    return a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()


def _meets(gap: int, nest: Iterable[tuple[int, int]]) -> bool:
    """Whether gap is a sum of x_i s_i."""
    times: dict[int, int] = {}
    for s, n in nest:
        if s:
            times[s] = times.get(s, 0) + n
    rest, inside = [], 0
    for s in sorted(times):
        rest.append((s, times[s], inside))
        inside += s * times[s]
    left, tries = [(gap, len(rest) - 1)], 0
    while left:
        gap, i = left.pop()
        if i < 0:  # what each step leaves of the gap those below it reach
            return True
        s, n, inside = rest[i]
        for x in range(max(0, -((inside - gap) // s)), min(n, gap // s) + 1):
            tries += 1
            if tries > TRIES:
                return False
            left.append((gap - x * s, i - 1))
    return False
