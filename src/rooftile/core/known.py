"""Calls that have been seen, told by PyTorch's own guards.

What an eager call asks of its arguments before it may launch (types, modes, gradients, shapes, strides, dtypes, devices, signs) costs as much
as the launch. TensorGuards compares all of it in C++ with what it was for a call that went well. So each of the last few calls
is kept as straight-line code: if the tests hold, run; if not, the operator thinks anew.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rooftile.core import places

Run = Callable[..., Any]
address = Tensor.data_ptr
MISS = object()  # what code for another call gives
KEPT = 4  # calls of one operator
EAGER, SELDOM = 8, 16  # misses that are all learnt from, and then every so many

_TEXT = """
def known({names}):
    try:
        if {nested}:  # of whose strides the guards ask, and it ends the process
            return MISS
    except AttributeError:  # no tensor
        return MISS
    if {tests}:
        {go}
    return MISS
"""


def pointers(tensors: Sequence[Tensor]) -> int:
    """All addresses as one number: a multiple of 16 where each is."""
    return reduce(or_, map(address, tensors), 0)


def apart_from(written: Sequence[Tensor], read: Sequence[Tensor]) -> Callable[[Sequence[Tensor], Sequence[Tensor]], bool]:
    """Whether others of the same shapes and strides lie at multiples of 16, and none of what is written where another lies. To ask it of all is as dear as
    the rest of a known call. What is written mostly lies where it lay, between these bounds, and gradients where they lay or beside them."""
    lay, lain, reaches = [*map(address, written)], [*map(address, read)], [*map(places.reach, read)]
    bounds: list[float] = [0]
    for begin, end in sorted((t.data_ptr(), t.data_ptr() + places.reach(t)) for t in written):
        if begin > bounds[-1]:
            bounds += begin, end
        else:
            bounds[-1] = max(bounds[-1], end)
    bounds.append(math.inf)

    def clear(written: Sequence[Tensor], read: Sequence[Tensor]) -> bool:
        if [*map(address, written)] != lay:
            return not pointers(written) & 15 and not pointers(read) & 15 and places.meeting(written, read) is None
        where = [*map(address, read)]
        if where == lain:
            return True
        return not reduce(or_, where, 0) & 15 and not [
            1 for a, reach in zip(where, reaches) if not (at := bisect_right(bounds, a)) & 1 or a + reach > bounds[at]
        ]

    return clear


def code(args: Sequence[Any], run: Run, written: Sequence[int], deterministic: bool | None,
         apart: Sequence[tuple[int, int, bool]] = ()) -> Run | None:  # fmt: skip
    """`run` for calls like this one that just went well, MISS for others; None where guards cannot tell: a tensor that begins past a multiple of 16
    or is given twice. `written`: arguments that `run` writes; `deterministic`: what the setting must be, None where it does not matter;
    `apart`: pairs of arguments that may not share places, though one may be a view of the other's memory. Lists that are written, and what
    is read, lie where they lay and are apart as they were; or it is looked at."""
    given: list[Tensor] = []
    names, checked, addresses, nested, tests = [], [], [], [], []
    lists: dict[str, Sequence[Tensor]] = {}  # that are written
    read: dict[str, Sequence[Tensor]] = {}
    values: dict[str, Any] = {}
    for i, a in enumerate(args):
        name = f"a{i}"
        names.append(name)
        if isinstance(a, Tensor):
            given.append(a)
            checked.append(name)
            nested.append(f"{name}.is_nested")
            addresses.append(f"{name}.data_ptr()")
            read |= {} if i in written else {name: [a]}
        elif isinstance(a, (list, tuple)) and any(isinstance(t, Tensor) for t in a):
            given += a
            checked.append(f"*{name}")
            nested.append(f"type({name}) is not t{i} or len({name}) != {len(a)} or [1 for t in {name} if t.is_nested]")
            values[f"t{i}"] = type(a)
            addresses.append(f"pointers({name})")
            (lists if i in written else read)[f"*{name}"] = a
        elif a is None or isinstance(a, bool):
            tests.append(f"{name} is {a}")
        else:
            tests.append(f"type({name}) is t{i} and {name} == c{i}")
            values |= {f"t{i}": type(a), f"c{i}": a}
    if not given or pointers(given) & 15 or len(set(map(id, given))) < len(given):
        return None
    shapes: Any = [list(t.shape) for t in given], [list(t.stride()) for t in given]
    guards = torch._C._dynamo.guards.TensorGuards(*given, dynamic_dims_sizes=shapes[0], dynamic_dims_strides=shapes[1])
    # Of tensor modes the guards tell all but those that trace: make_fx's, fake tensors', functionalisation's.
    tests += ["ad._current_level < 0", "not modes()", f"check({', '.join(checked)})"]
    if lists:
        both = f"[{', '.join(lists)}], [{', '.join(read)}]"
        values["clear"] = apart_from(*([t for ts in group.values() for t in ts] for group in (lists, read)))
        tests.append(f"clear({both})")
    else:
        tests.append(f"not ({' | '.join(addresses)}) & 15")
    for i, j, _ in apart:
        if args[i] is not None and args[j] is not None:
            gap = args[j].data_ptr() - args[i].data_ptr()
            tests.append(f"a{j}.data_ptr() - a{i}.data_ptr() == {gap}" if places.alias(args[i], args[j]) else f"not alias(a{i}, a{j})")
    if any(t.requires_grad for t in given):
        tests.append("not with_grad()")
    if deterministic is not None:
        tests.append(f"deterministic() is {deterministic}")
    call = f"run({', '.join(names)})"
    go = f"return {call}"
    if bumped := [f"bump(a{i})" for i in written if args[i] is not None]:
        go = f"result = {call}; {'; '.join(bumped)}; return result"
    scope: dict[str, Any] = {
        "MISS": MISS,
        "run": run,
        "check": guards.check,
        "ad": forward_ad,
        "pointers": pointers,
        "modes": torch._C._len_torch_dispatch_stack,
        "with_grad": torch.is_grad_enabled,
        "alias": places.alias,
    }
    scope |= {"deterministic": torch.are_deterministic_algorithms_enabled, "bump": torch.autograd.graph.increment_version, **values}
    exec(_TEXT.format(names=", ".join(names), nested=" or ".join(nested) or "False", tests=" and ".join(tests), go=go), scope)
    made: Run = scope["known"]
    return made


class Known:
    """The last few calls of one operator, the newest first."""

    def __init__(self) -> None:
        self.calls: tuple[Run, ...] = ()
        self._misses = 0

    def worth_learning(self) -> bool:
        """After a miss. Calls that never repeat shall not pay for being learnt each time."""
        self._misses += 1
        return self._misses <= EAGER or not self._misses % SELDOM

    def learn(self, call: Run | None) -> None:
        if call is not None:
            self.calls = (call, *self.calls)[:KEPT]

    def forget(self) -> None:
        self.calls, self._misses = (), 0
