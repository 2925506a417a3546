"""The door of an operator: letters, dtypes and devices of a real call, checked once and told with both numbers."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, get_args, get_type_hints

import torch
from torch import Tensor

from rooftile.core import places

Call = Mapping[str, Any]  # the operator's arguments by name, in the order of its signature
FIXED = {
    "f32": torch.float32,
    "i32|i64": torch.int64,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "i8": torch.int8,
    "bool": torch.bool,
    "e4m3": torch.float8_e4m3fn,
}
KINDS = {  # what a parameter may be that is said to be of a kind: numpy's numbers are numbers, and so are the symbols of a trace
    float: (numbers.Real, torch.SymFloat, torch.SymInt),
    int: (numbers.Integral, torch.SymInt),
    bool: (bool, torch.SymBool),
}


class Declared(Protocol):
    """What a door needs of core.spec.Arg."""

    @property
    def dims(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def optional(self) -> bool: ...
    @property
    def mutated(self) -> bool: ...
    @property
    def many(self) -> bool: ...


def device_of(values: Iterable[Any]) -> torch.device | None:
    """The first tensor's, in a list too; None where there is none."""
    return next((t.device for v in values for t in (v if isinstance(v, (list, tuple)) else (v,)) if isinstance(t, Tensor)), None)


def tensors(op: str, optional: Mapping[str, Any] = {}, **given: Any) -> None:
    """What a function looks at before its operator does: ValueError where it is no tensor, or one without a shape; `optional` may be None."""
    for name, t in (*given.items(), *optional.items()):
        if not isinstance(t, Tensor) and not (t is None and name in optional):
            raise ValueError(f"{op}: {name} must be a tensor, got {type(t).__name__}")
        if t is not None and t.is_nested:
            raise ValueError(f"{op}: {name} is nested, takes strided")


def fits(given: Any, *kinds: type) -> bool:
    """Whether a parameter of one of these kinds may be this. Python counts True as 1; an axis, a row or a factor that is called True is a slip."""
    if isinstance(given, Tensor) and not given.dim() and not torch.compiler.is_compiling() and torch._C._is_tracing():
        # torch.jit.trace has a shape's numbers as tensors, and what is made of them
        kind = bool if given.dtype == torch.bool else float if given.is_floating_point() else int
        return kind in kinds or (kind is int and float in kinds)
    if isinstance(given, bool):
        return bool in kinds
    return isinstance(given, tuple(kind for said in kinds for kind in KINDS.get(said, (said,))))


def parameter(op: str, name: str, given: Any, *kinds: type) -> None:
    """ValueError where a parameter is of none of these kinds, or no finite number: that would make NaN of a result, or nothing of it, without a word."""
    kind = type(given)
    if kind not in kinds and not fits(given, *kinds):
        raise ValueError(f"{op}: {name} is {told(given)}, takes {' or '.join(k.__name__ for k in kinds).replace('NoneType', 'None')}")
    real = float in kinds and (kind is float or isinstance(given, numbers.Real))
    if real and not -math.inf < given < math.inf:  # a symbol may be compared, and not asked whether it is finite
        raise ValueError(f"{op}: {name} is {given}, takes a finite number")


def fields(config: Any) -> None:
    """`parameter` of each field of a dataclass, by its annotation."""
    hints = get_type_hints(type(config))
    for f in dataclasses.fields(config):
        parameter(type(config).__name__, f.name, getattr(config, f.name), *(get_args(hints[f.name]) or (hints[f.name],)))


def flag(op: str, name: str, given: Any) -> None:
    """What a function does of itself, where its operator sees no parameter that says so: a word would be true, "no" as well."""
    parameter(op, name, given, bool)


def has_rows(op: str, name: str, t: Tensor) -> None:
    """What a function makes rows of before its operator sees them: ValueError where it is a number alone."""
    if t.dim() == 0:
        raise ValueError(f"{op}: {name} has 0 axes [], needs at least 1 [... N]")


def dtype_name(op: str, name: str, given: Any, takes: Collection[str]) -> str:
    """Of a dtype that is one of those taken. A word is none, for PyTorch's own functions neither: "fp8" would be one of two."""
    said = str(given).removeprefix("torch.")
    if not isinstance(given, torch.dtype) or said not in takes:
        raise ValueError(f"{op}: {name} is {given!r}, it takes {', '.join(f'torch.{t}' for t in takes)}")
    return said


def of_8_bits(op: str, k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> bool:
    """Of caches of keys and values, whether both are float8_e4m3fn; ValueError where they differ, are of other 8 bits, or have scales that no other dtype takes."""
    keys, values = (str(x.dtype).removeprefix("torch.") for x in (k_cache, v_cache))
    if keys != values:
        raise ValueError(f"{op}: v_cache is {values}, but k_cache is {keys}")
    if k_cache.dtype == torch.float8_e4m3fn:
        return True
    if k_cache.itemsize == 1:
        raise ValueError(f"{op}: k_cache is {keys}, of 8 bits it takes float8_e4m3fn")
    scaled = next((n for n, x in (("k_scale", k_scale), ("v_scale", v_scale)) if x is not None), None)
    if scaled is not None:
        raise ValueError(f"{op}: {scaled} is for caches of float8_e4m3fn, this one is {keys}")
    return False


def told(value: Any) -> str:
    """What was given for a parameter. Of a tensor its shape: its numbers fill a page, and a GPU is waited for."""
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) and value.dim() else repr(value)


def letter(axis: str) -> tuple[str, int]:
    """E+1 -> E, 1: an axis is a letter, or a letter and something."""
    name, _, more = axis.partition("+")
    return name, int(more or 0)


class Binding:
    """One call on its way through the door of the operator `name`, whose working dtypes are `dtypes`."""

    def __init__(self, name: str, dtypes: Sequence[torch.dtype]):
        self.name, self.dtypes = name, dtypes
        self.dims: dict[str, Any] = {}
        self._seen: dict[str, tuple[str, Any]] = {}  # what -> (who said so first, value)

    def letters(self, args: Mapping[str, Declared], call: Call) -> dict[str, Any]:
        for name, arg in args.items():
            value = call[name]
            if arg.optional and value is None:
                continue
            if arg.many and not isinstance(value, (list, tuple)):
                raise ValueError(f"{self.name}: {name} must be a list of tensors, got {type(value).__name__}")
            if arg.optional and arg.many and not value:  # a schema knows no optional list: one of none is empty
                continue
            for i, t in enumerate(value if arg.many else [value]):
                if not isinstance(t, Tensor):
                    raise ValueError(f"{self.name}: {name} must be a tensor, got {type(t).__name__}")
                if t.layout != torch.strided or t.is_nested:
                    raise ValueError(f"{self.name}: {name} is {'nested' if t.is_nested else _show(t.layout)}, takes strided")
                self._agree("device", name, t.device)
                self._dtype(name, arg, t)
                if arg.mutated:
                    self._apart(name, t)
                if arg.many:
                    self._agree(f"shape of tensor {i}", name, tuple(t.shape))
            if arg.many:
                self._agree(f"the number of tensors {arg.dims}", name, len(value))
                self.dims[arg.dims] = tuple(tuple(t.shape) for t in value)
            else:
                self._shape(name, arg, value)
        return self.dims

    def _agree(self, what: str, name: str, value: Any) -> None:
        first, known = self._seen.setdefault(what, (name, value))
        if known != value:
            raise ValueError(f"{self.name}: {what} is {_show(value)} in {name}, but {_show(known)} in {first}")

    def _apart(self, name: str, t: Tensor) -> None:
        """A kernel would write one place several times over, in any order, where PyTorch's own refuse."""
        expanded = t.numel() and any(size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride()))
        symbolic = any(type(n) is not int for n in (*t.shape, *t.stride()))  # whose comparisons would all be guards
        if expanded or (not symbolic and places.crowded(t)):
            what = f"{name} is {list(t.shape)} with strides {list(t.stride())}"
            raise ValueError(f"{self.name}: {what}: elements share a place, and it is written in place")

    def _dtype(self, name: str, arg: Declared, t: Tensor) -> None:
        if arg.dtype == "io":
            if t.dtype not in self.dtypes:
                raise ValueError(f"{self.name}: {name} is {_show(t.dtype)}, takes {', '.join(map(_show, self.dtypes))}")
            self._agree("dtype", name, t.dtype)
        elif arg.dtype == "i32|i64":
            if t.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"{self.name}: {name} is {_show(t.dtype)}, takes int32, int64")
        elif "|" in arg.dtype:
            if t.dtype != torch.float32:
                self._agree("dtype", name, t.dtype)
                if t.dtype not in self.dtypes:
                    raise ValueError(f"{self.name}: {name} is {_show(t.dtype)}, takes {', '.join(map(_show, self.dtypes))}")
        elif arg.dtype in FIXED and t.dtype != FIXED[arg.dtype]:
            raise ValueError(f"{self.name}: {name} is {_show(t.dtype)}, takes {_show(FIXED[arg.dtype])}")

    def _shape(self, name: str, arg: Declared, t: Tensor) -> None:
        letters, shape = arg.dims.split(), tuple(t.shape)
        leading = len(shape) - (len(letters) - 1) if "..." in letters else None
        if (leading is None and len(letters) != len(shape)) or (leading is not None and leading < 0):
            least = len(letters) if leading is None else f"at least {len(letters) - 1}"
            raise ValueError(f"{self.name}: {name} has {len(shape)} axes {list(shape)}, needs {least} [{arg.dims}]")
        rest = list(shape)
        for x, more in map(letter, letters):
            value: Any = tuple(rest.pop(0) for _ in range(leading or 0)) if x == "..." else rest.pop(0) - more
            if more and value < 0:
                raise ValueError(f"{self.name}: {name} has {value + more} elements, needs {more} at least [{arg.dims}]")
            self._agree(f"{'leading shape' if x == '...' else x}", name, value)
            self.dims[x] = value
        if "..." in letters and "M" not in letters:
            self.dims.setdefault("M", math.prod(self.dims["..."]))


def _show(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value).removeprefix("torch.")
