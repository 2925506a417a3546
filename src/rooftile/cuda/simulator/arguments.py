"""Tensors and numbers as a simulated kernel gets them: each storage in memory of its own, with nothing of anybody's around it."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rooftile.core.places import reach
from rooftile.cuda.parameters import mapped
from rooftile.cuda.source import Function, Parameter
from rooftile.cuda.tensor_map import BYTES, TensorMap

SPARSE = 1 << 30  # bytes that a storage is reached over from which on only what is reached is copied: rows far apart have little else
NORESERVE = 0x4000  # of Linux; `mmap` has a name for it from Python 3.13 on
GAP = 1 << 20  # bytes between buffers: an index that is off by less than a megabyte hits no other buffer
ALIGNMENT = 512  # what PyTorch's CUDA allocator gives

NAMES = {
    "f8": "double", "f4": "float", "h2": "__half", "c2": "__nv_bfloat16", "i1": "signed char", "i2": "short", "i4": "int", "i8": "long long",
    "u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned", "u8": "unsigned long long", "b1": "bool",
}  # fmt: skip
KINDS = {
    torch.float64: "f8", torch.float32: "f4", torch.float16: "h2", torch.bfloat16: "c2", torch.int8: "i1", torch.int16: "i2",
    torch.int32: "i4", torch.int64: "i8", torch.uint8: "u1", torch.bool: "b1", torch.uint16: "u2", torch.uint32: "u4", torch.uint64: "u8",
}  # fmt: skip
_PACK = {
    "f8": "d", "f4": "f", "h2": "e", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "b1": "?",
}  # fmt: skip
Argument = Tensor | TensorMap | int | float


@dataclass
class _Storage:
    begin: int  # on the CPU, of the bytes that are reached through some argument
    end: int
    base: int  # of the storage itself
    names: list[str]
    tensors: list[Tensor]
    inside: int = 0  # offset in the memory

    @property
    def lead(self) -> int:
        return (self.begin - self.base) % ALIGNMENT

    def copy(self, address: int, there: bool) -> None:
        """To the memory that begins at `address`, or back."""
        size, at = self.end - self.begin, address + self.inside
        if size < SPARSE:
            ctypes.memmove(at if there else self.begin, self.begin if there else at, size)
            return
        flat = torch.frombuffer((ctypes.c_char * size).from_address(at), dtype=torch.uint8)
        for t in self.tensors:
            first = t.data_ptr() - self.begin
            reached = flat[first : first + reach(t)].view(t.dtype).as_strided(t.shape, t.stride())
            reached.copy_(t) if there else t.copy_(reached)


class Memory:
    """Copies of what the arguments reach; `back` brings the results home."""

    def __init__(self, function: Function, kinds: Sequence[str], arguments: Sequence[Argument], reaches: Sequence[Tensor] = ()):
        _fit(function, kinds, arguments)
        self.storages: list[_Storage] = []
        reached = [a.tensor if isinstance(a, TensorMap) else a if k.startswith("p") else None for a, k in zip(arguments, kinds)]
        spans = [_span(a) if isinstance(a, Tensor) else None for a in reached]
        place = [
            self._storage(*span, p.name, t) if span and isinstance(t, Tensor) else None
            for span, p, t in zip(spans, function.parameters, reached)
        ]
        size = GAP
        for s in self.storages:
            size += -size % ALIGNMENT + s.lead
            s.inside = size
            size += s.end - s.begin + GAP
        self.memory = mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE)
        self._view = ctypes.c_char.from_buffer(self.memory)
        address = ctypes.addressof(self._view)
        for s in self.storages:
            s.copy(address, True)
        values = b""
        head = 8 * len(arguments)
        pointers = []
        for a, kind, span, home in zip(arguments, kinds, spans, place):
            values += bytes(-(head + len(values)) % 16)  # what a structure may be aligned to
            pointers.append(head + len(values))
            if home is not None and span is not None:
                begin = span[0] and address + home.inside + span[0] - home.begin  # a tensor that lies nowhere has no address there either
                values += a.modelled(begin) if isinstance(a, TensorMap) else struct.pack("Q", begin)
            elif isinstance(a, Tensor):
                values += ctypes.string_at(a.data_ptr(), a.nbytes).ljust(8, b"\0")
            else:
                assert isinstance(a, (int, float))
                values += _packed(kind, a).ljust(8, b"\0")
        self.room = ctypes.create_string_buffer(16 + max(8, head + len(values)))
        self.arguments = (ctypes.c_char * max(8, head + len(values))).from_buffer(self.room, -ctypes.addressof(self.room) % 16)
        start = ctypes.addressof(self.arguments)
        self.arguments.raw = struct.pack(f"{len(pointers)}Q", *(start + p for p in pointers)) + values + bytes(8 * (not pointers))
        self.buffers = [(address + s.inside, s.end - s.begin, " and ".join(dict.fromkeys(s.names))) for s in self.storages]
        # their addresses are written down already, so these stay where they are: a neighbour may lie closer than GAP
        for i, t in enumerate(reaches):
            begin, end, _ = _span(t)
            if end > begin:
                self.buffers.append((begin, end - begin, f"tensor {i} behind the addresses"))

    def _storage(self, begin: int, end: int, base: int, name: str, tensor: Tensor) -> _Storage:
        for s in self.storages:
            if s.base == base and base:
                s.begin, s.end = min(s.begin, begin), max(s.end, end)
                s.names.append(name)
                s.tensors.append(tensor)
                return s
        self.storages.append(_Storage(begin, end, base, [name], [tensor]))
        return self.storages[-1]

    def back(self) -> None:
        address = ctypes.addressof(self._view)
        for s in self.storages:
            s.copy(address, False)

    def close(self) -> None:
        del self._view
        self.memory.close()


def _span(t: Tensor) -> tuple[int, int, int]:
    """First and last byte that the tensor reaches, and where its storage begins."""
    if t.device.type != "cpu":
        raise ValueError(f"the simulator takes CPU tensors, this one is on {t.device}")
    return t.data_ptr(), t.data_ptr() + reach(t), t.untyped_storage().data_ptr()


def variable(library: ctypes.CDLL, index: int, name: str, value: Tensor | int | float) -> tuple[int, Tensor | None]:
    """Fills a variable of the kernel's library; where it is, and the tensor that its contents go back to."""
    find = library[f"rooftile_symbol_{index}"]
    find.restype = ctypes.c_void_p
    bytes_, kind = ctypes.c_size_t(), ctypes.create_string_buffer(64)
    address: int = find(ctypes.byref(bytes_), kind)
    element = kind.value.decode().strip()
    if isinstance(value, Tensor):
        why = _misfit(Parameter("", name, True), f"p{element}", value)
        if not why and (value.nbytes > bytes_.value or not value.is_contiguous()):
            why = f"{name} has {bytes_.value} bytes, got {value.nbytes}"
        content = b"" if why else ctypes.string_at(value.data_ptr(), value.nbytes)
    else:
        why = _misfit(Parameter("", name, False), element, value)
        content = b"" if why else _packed(element, value)
    if why:
        raise ValueError(f"symbol {why}")
    ctypes.memmove(address, content, len(content))
    return address, value if isinstance(value, Tensor) else None


def _fit(function: Function, kinds: Sequence[str], arguments: Sequence[Argument]) -> None:
    if len(arguments) != len(kinds):
        raise ValueError(f"{function} takes {len(kinds)} arguments, got {len(arguments)}")
    for i, (p, kind, a) in enumerate(zip(function.parameters, kinds, arguments), 1):
        why = _misfit(p, kind, a)
        if why:
            raise ValueError(f"argument {i} of {function}: {why}")


def _misfit(p: Parameter, kind: str, a: Argument) -> str:
    if kind.startswith("p"):
        if not isinstance(a, Tensor):
            return f"{p.name} is a pointer to {_name(kind[1:])}, got {'a TensorMap' if isinstance(a, TensorMap) else f'the number {a}'}"
        given = KINDS.get(a.dtype, "")
        pointee = kind[1:]
        same_integer = pointee[0] in "iub" and given[:1] in "iub" and pointee[1:] == given[1:]
        if pointee[0] not in "vsp" and pointee != given and not same_integer:
            return f"{p.name} points to {_name(pointee)}, got {str(a.dtype).removeprefix('torch.')}"
        return ""
    if mapped(p) and kind == f"s{BYTES}":
        what = "a buffer" if isinstance(a, Tensor) else f"the number {a}"
        return "" if isinstance(a, TensorMap) else f"{p.name} is a TensorMap (rooftile.cuda.tensor_map), got {what}"
    if kind.startswith("s") and not isinstance(a, TensorMap):
        if isinstance(a, Tensor) and a.nbytes == int(kind[1:]) and a.is_contiguous():
            return ""
        return f"{p.name} is {_name(kind)}: give it as a tensor of as many"
    if isinstance(a, TensorMap):
        return f"{p.name} is one {_name(kind)}, got a TensorMap"
    if isinstance(a, Tensor):
        return f"{p.name} is one {_name(kind)}, got a buffer of {a.numel()} {str(a.dtype).removeprefix('torch.')}"
    try:
        _packed(kind, a)
    except (struct.error, OverflowError, ValueError):
        return f"{p.name} is one {_name(kind)}, and {a} is none"
    return ""


def _name(kind: str) -> str:
    return NAMES.get(kind, "void" if kind.startswith("v") else f"a structure of {kind[1:]} bytes")


def _packed(kind: str, value: int | float) -> bytes:
    if kind == "c2":
        return bytes(torch.tensor(value, dtype=torch.float32).to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    if kind[0] in "iu" and value != int(value):
        raise ValueError
    return struct.pack(_PACK[kind], value if kind[0] in "fh" else bool(value) if kind == "b1" else int(value))
