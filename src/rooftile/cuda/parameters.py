"""What a launch's arguments must be, read off the kernel's parameters: dtypes of pointers, struct codes of what is passed by value."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rooftile.cuda.source import Function, Parameter
from rooftile.cuda.tensor_map import BYTES, TensorMap

SCALARS = {
    "bool": "?", "char": "b", "signed char": "b", "unsigned char": "B", "short": "h", "unsigned short": "H",
    "int": "i", "unsigned": "I", "unsigned int": "I", "long": "q", "unsigned long": "Q", "long long": "q", "unsigned long long": "Q",
    "int8_t": "b", "uint8_t": "B", "int16_t": "h", "uint16_t": "H", "int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q",
    "size_t": "Q", "__half": "e", "half": "e", "float": "f", "double": "d",
}  # fmt: skip
_POINTED = {
    "?": (torch.bool,), "b": (torch.int8,), "B": (torch.uint8, torch.bool), "h": (torch.int16,), "H": (torch.uint16, torch.int16),
    "i": (torch.int32,), "I": (torch.uint32, torch.int32), "q": (torch.int64,), "Q": (torch.uint64, torch.int64),
    "e": (torch.float16,), "f": (torch.float32,), "d": (torch.float64,),
}  # fmt: skip
_FLOATS = {
    "__nv_bfloat16": torch.bfloat16,
    "nv_bfloat16": torch.bfloat16,
    "E4M3": torch.float8_e4m3fn,  # of float8.cuh
    "E5M2": torch.float8_e5m2,
}


def accepted(pointee: str) -> tuple[torch.dtype, ...]:
    """The dtypes a pointer to this type takes; of a type that is no element's (void, uint4, a struct) any, and so an empty tuple."""
    if pointee in _FLOATS:
        return (_FLOATS[pointee],)
    return _POINTED[SCALARS[pointee]] if pointee in SCALARS else ()


ANY = frozenset(v for v in vars(torch).values() if isinstance(v, torch.dtype))


def check(function: Function, arguments: Sequence[Any]) -> None:
    """ValueError with what is wanted and what came, for the first argument that does not fit."""
    parameters = function.parameters
    if len(arguments) != len(parameters):
        raise ValueError(f"{function} takes {len(parameters)} arguments, got {len(arguments)}")
    first: Tensor | TensorMap | None = None
    for p, a in zip(parameters, arguments):
        if isinstance(a, (Tensor, TensorMap)):
            first = a if first is None else first
            if a.device != first.device:
                raise ValueError(f"{function.instance}: {p.name} is on {a.device}, the tensor before it on {first.device}")
        if p.pointer:
            if not isinstance(a, Tensor):
                raise ValueError(f"{function.instance}: {p.name} is {p.type}*, wants a tensor, got {type(a).__name__}")
            dtypes = accepted(p.type)
            if dtypes and a.dtype not in dtypes:
                wanted = " or ".join(str(t).removeprefix("torch.") for t in dtypes)
                raise ValueError(f"{function.instance}: {p.name} is {p.type}*, wants {wanted}, got {str(a.dtype).removeprefix('torch.')}")
            continue
        if mapped(p):
            if not isinstance(a, TensorMap):
                raise ValueError(
                    f"{function.instance}: {p.name} is a TensorMap, wants one of rooftile.cuda.tensor_map, got {type(a).__name__}"
                )
            continue
        if isinstance(a, Tensor) or not isinstance(a, (int, float)):
            raise ValueError(f"{function.instance}: {p.name} is {p.type}, wants a number, got {type(a).__name__}")
        code = scalar(p, function)
        try:
            struct.pack(code, a)
        except (struct.error, OverflowError):
            limits = "" if code in "efd?" else f" of {_least(code)} to {_most(code)}"
            raise ValueError(f"{function.instance}: {p.name} is {p.type}, wants a number{limits}, got {a!r}") from None


def _least(code: str) -> int:
    return 0 if code.isupper() else -(1 << 8 * struct.calcsize(code) - 1)


def _most(code: str) -> int:
    return (1 << 8 * struct.calcsize(code) - code.islower()) - 1


def code(parameter: Parameter, function: Function) -> str:
    """The struct code of a parameter."""
    return "P" if parameter.pointer else f"{BYTES}s" if mapped(parameter) else scalar(parameter, function)


def place(codes: Sequence[str]) -> str:
    """A format for arguments of these codes one after the other."""
    return "".join(_aligned(c) + c for c in codes)


def offset(head: str, codes: Sequence[str], i: int) -> int:
    """Where the i-th argument begins behind the head: at the next multiple of its own size."""
    return struct.calcsize(head + place(codes[:i]) + _aligned(codes[i]))


def _aligned(c: str) -> str:
    return "0Q" if c.endswith("s") else f"0{c}"  # a tensor map like its 64-bit words


def mapped(parameter: Parameter) -> bool:
    return not parameter.pointer and parameter.type.rpartition("::")[2] == "TensorMap"


def scalar(parameter: Parameter, function: Function) -> str:
    """The struct code of a parameter passed by value."""
    if parameter.type not in SCALARS:
        raise ValueError(
            f"{function.instance}: {parameter.name} is {parameter.type}, which a Python number cannot be passed as; there are {', '.join(SCALARS)}"
        )
    return SCALARS[parameter.type]
