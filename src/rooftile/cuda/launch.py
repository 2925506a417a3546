"""Launch a CUDA C++ kernel: on the GPU through the driver, on a CPU through the simulator, or nowhere while launches are recorded.

Host cost is what small shapes are made of, so a launch is one dictionary look-up, one struct.pack of configuration and arguments into a
prepared buffer and one foreign call with four arguments: cuLaunchKernelEx costs 0.3 us through ctypes, cuLaunchKernel with its eleven 0.45.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rooftile.core import replay
from rooftile.core.driver import libcuda
from rooftile.core.kernel import TooLarge
from rooftile.cuda import compile as compiler
from rooftile.cuda.parameters import ANY, accepted, check, code, mapped, offset, place
from rooftile.cuda.source import Function, Source
from rooftile.cuda.tensor_map import TensorMap

CTYPE: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.int32: "int",
    torch.int64: "long long",
    torch.float64: "double",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.float8_e4m3fn: "E4M3",
    torch.float8_e5m2: "E5M2",
}

Extent = tuple[int, int, int]
Simulator = Callable[[Source, Function, Extent, Extent, Sequence[Tensor | int | float], int, Sequence[Tensor]], None]

simulator: Simulator | None = None  # takes launches on CPU tensors while it is set
_recorder: Callable[[Launch], None] | None = None  # takes every launch while it is set

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024


@dataclass(frozen=True)
class Launch:
    """What was launched, for those who only want to know."""

    source: Source
    instance: str
    grid: Extent
    block: Extent
    shared: int


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Inside, launches are checked and listed and nothing runs, whatever the tensors' device."""
    global _recorder
    seen: list[Launch] = []
    before, _recorder = _recorder, seen.append
    try:
        yield seen
    finally:
        _recorder = before


def off_gpu(x: Tensor) -> str | None:
    """Why CUDA C++ cannot run on this tensor's device, or None."""
    if _recorder is not None:
        return None
    if x.is_cuda:
        return compiler.missing() or _too_old(x.device)
    if simulator is not None and x.device.type == "cpu":
        return None
    return f"it needs a CUDA device or the simulator, the tensor is on {x.device}"


@functools.lru_cache
def _too_old(device: torch.device) -> str | None:
    if not torch.cuda.is_available():  # a device that is only imagined
        return None
    try:
        compiler.architecture(*torch.cuda.get_device_capability(device))
    except compiler.Unavailable as error:
        return str(error)
    return None


def launch(
    source: Source,
    instance: str,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *arguments: Any,
    shared: int = 0,
    reaches: Sequence[Tensor] = (),
) -> None:
    """Launch `instance` ("add", "softmax<__half, 256>") of `source` on torch's current stream of the arguments' device.

    arguments stand in the order of the function's parameters: a Tensor where it has a pointer (its dtype must be what is pointed to), a
    Python number where it has a scalar, a tensor_map.TensorMap where it has one. shared is dynamic shared memory in bytes.
    reaches: tensors whose addresses stand in one of the arguments, for the simulator. An empty grid launches nothing.
    Nothing waits for the kernel; the call can be captured in a CUDA graph.
    """
    grid3 = (grid, 1, 1) if type(grid) is int else _extent(grid)
    block3 = (block, 1, 1) if type(block) is int else _extent(block)
    x, y, z = grid3
    if x == 0 or y == 0 or z == 0:
        return
    bx, by, bz = block3
    if not (0 < x <= 2147483647 and 0 < y <= 65535 and 0 < z <= 65535 and 0 < bx * by * bz <= 1024 and bz <= 64):
        raise _too_large(source, instance, grid3, block3)
    try:
        device = arguments[0].get_device()
    except (AttributeError, IndexError):
        device = next((a.get_device() for a in arguments if isinstance(a, (Tensor, TensorMap))), -1)
    if device < 0 or _recorder is not None:
        _elsewhere(source, instance, grid3, block3, arguments, shared, reaches)
        return
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            launch(source, instance, grid, block, *arguments, shared=shared, reaches=reaches)
        return
    entry = _entries.get((id(source), instance, device))
    if entry is None:
        if len(_entries) >= 8192:  # sources made anew for every call must not fill the memory
            _entries.clear()
        entry = _entries[id(source), instance, device] = Entry(source, instance, device)
    try:
        entry.go(x, y, z, bx, by, bz, shared, torch._C._cuda_getCurrentRawStream(device), *arguments)
        recorder = replay.recorder()
        if recorder is not None:
            recorder.note(entry.again, (x, y, z, bx, by, bz, shared, replay.STREAM, *arguments))
    except (AttributeError, TypeError, OverflowError, struct.error):
        check(entry.parsed, arguments)
        raise


def _elsewhere(source: Source, instance: str, grid: Extent, block: Extent, arguments: Sequence[Any], shared: int,
               reaches: Sequence[Tensor]) -> None:  # fmt: skip
    function = source.function(instance)
    check(function, arguments)
    if (follower := replay.recorder()) is not None:
        follower.why = "it was not launched on a GPU"
    if _recorder is not None:
        _recorder(Launch(source, function.instance, grid, block, shared))
        return
    where = next((a.device for a in arguments if isinstance(a, (Tensor, TensorMap))), None)
    if where is None or where.type != "cpu":
        raise RuntimeError(f"{function.name} in {source.path.name} was launched on {where or 'no tensor'}; it runs on CUDA tensors")
    if simulator is None:
        raise RuntimeError(f"{function.name} in {source.path.name} was launched on a CPU tensor, and no simulator is active")
    simulator(source, function, grid, block, arguments, shared, reaches)


def _extent(given: int | tuple[int, ...]) -> Extent:
    if not isinstance(given, (tuple, list)) or not 1 <= len(given) <= 3 or not all(isinstance(n, int) for n in given):
        raise ValueError(f"a grid or a block is a whole number or one to three of them, got {given!r}")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _too_large(source: Source, instance: str, grid: Extent, block: Extent) -> ValueError:
    where = f"{instance} in {source.path.name}"
    for what, extent, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        for axis, n, limit in zip("xyz", extent, limits):
            if n > limit or n < (0 if what == "grid" else 1):
                return ValueError(f"{where}: {what}.{axis} is {n}, it must be from {0 if what == 'grid' else 1} to {limit}")
    return ValueError(
        f"{where}: a block of {' x '.join(map(str, block))} has {block[0] * block[1] * block[2]} threads, at most {MAX_THREADS}"
    )


# ---- the GPU -------------------------------------------------------------------------------------------------------------

_entries: dict[tuple[int, str, int], Entry] = {}  # an entry holds its source, so that the id stays its own


@functools.lru_cache(maxsize=4096)
def resident_clusters(source: Source, instance: str, device: int, block: int, shared: int) -> int:
    """How many clusters of `instance` run at a time on a device where nothing else does. A cluster must fit into one of the device's parts,
    whose sizes the driver alone knows: there are fewer than multiprocessors times blocks over cluster."""
    entry = _entries.get((id(source), instance, device)) or _entries.setdefault(
        (id(source), instance, device), Entry(source, instance, device)
    )
    if shared > entry.dynamic:
        entry.allow(shared)
    found, cluster = ctypes.c_int(), int(entry.parsed.cluster)
    config = struct.pack(_CONFIG, cluster, 1, 1, block, 1, 1, shared, 0, 0, 0)
    _adopt(device)
    _succeed(libcuda().cuOccupancyMaxActiveClusters(ctypes.byref(found), entry.function, config), entry.parsed)
    if found.value < 1:
        raise TooLarge(
            f"{instance} in {source.path.name}: no cluster of {cluster} blocks with {shared} bytes of shared memory fits cuda:{device}"
        )
    return found.value


# CUlaunchConfig: three sizes of the grid, three of the block, dynamic shared memory, stream, attributes, their number; then the arguments
_CONFIG = "7IPPI4x"
# CUlaunchAttribute: its kind, here CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, and a union of 64 bytes, here a whole number that says yes
_EARLY = ctypes.create_string_buffer(struct.pack("I4xi60x", 6, 1))
_EARLY_AT = ctypes.addressof(_EARLY)
_INVALID_CONTEXT = 201
_THREADS, _STATIC, _DYNAMIC = 0, 1, 8  # CUfunction_attribute: most threads a block, bytes of static shared memory, most bytes of dynamic
_SHARED_AT_MOST = 97  # CUdevice_attribute: shared memory of a block, for who asks
_WITHOUT_ASKING = 48 * 1024  # shared memory a block may have before the function's attribute is raised


# A launch of one instance. The loop over arguments that this replaces, with its test for each, costs 1.1 us more with four of them.
_LAUNCH = """
def go(x, y, z, bx, by, bz, shared, stream, {names}):
    if shared > entry.dynamic:
        entry.allow(shared)
    if {misfit}:
        entry.diagnose(({names},))
    try:
        buffer = pop()
    except IndexError:
        buffer = new()
    pack(buffer[0], 0, x, y, z, bx, by, bz, shared, stream, attributes, count, {values})
    status = call(buffer[1], function, buffer[2], None)
    push(buffer)
    if status:
        entry.failed(status, go, (x, y, z, bx, by, bz, shared, stream, {names}))
"""


class Entry:
    """One instance, loaded on one device, with what its launches need made ready. `go` launches on tensors, `again` on addresses
    that a recorder found to belong to a launch like one that has gone well."""

    def __init__(self, source: Source, instance: str, device: int):
        major, minor = torch.cuda.get_device_capability(device)
        function = source.function(instance)
        made = compiler.compiled(source, instance, compiler.architecture(major, minor))
        self.source, self.parsed, self.device = source, function, device
        self.early = function.early and major >= 9
        self.function = ctypes.c_void_p(_load(made, function, device))
        static = _attribute(self.function, _STATIC, function)
        self.dynamic = max(0, _WITHOUT_ASKING - static)  # bytes a launch may ask for as things stand
        self.static, self.most, self.raising = static, _shared_memory(device) - static, threading.Lock()
        codes = [code(p, function) for p in function.parameters]
        self.layout = struct.Struct(_CONFIG + place(codes))
        self.offsets = [offset(_CONFIG, codes, i) for i in range(len(codes))]  # of each argument in the buffer
        self.free: list[tuple[Any, Any, Any]] = []  # buffers nobody packs; list.pop and append are atomic, so threads never share one
        self.go = self._assemble(checked=True)
        self.again = self._assemble(checked=False)

    def _assemble(self, checked: bool) -> Callable[..., None]:
        names, values, misfit = [], [], []
        known: dict[str, Any] = {"entry": self, "function": self.function, "call": libcuda().cuLaunchKernelEx}
        known |= {"attributes": _EARLY_AT if self.early else 0, "count": int(self.early)}
        known |= {"pop": self.free.pop, "push": self.free.append, "new": self._buffer, "pack": self.layout.pack_into}
        for i, p in enumerate(self.parsed.parameters):
            names.append(f"a{i}")
            own = "data_ptr" if p.pointer else "here" if mapped(p) else ""
            values.append(f"a{i}.{own}()" if own and checked else f"a{i}")
            if own and checked:
                misfit.append(f"a{i}.get_device() != {self.device}")
            if p.pointer and checked:
                known[f"t{i}"] = accepted(p.type) or ANY
                misfit.append(f"a{i}.dtype not in t{i}")
        text = _LAUNCH.format(names=", ".join(names), values=", ".join(values), misfit=" or ".join(misfit) or "False")
        exec(text, known)
        return known["go"]

    def _buffer(self) -> tuple[Any, Any, Any]:
        memory = ctypes.create_string_buffer(self.layout.size)
        start = ctypes.addressof(memory)
        arguments = (ctypes.c_void_p * len(self.offsets))(*(start + o for o in self.offsets))
        return memory, ctypes.c_void_p(start), arguments

    def diagnose(self, arguments: Sequence[Any]) -> None:
        """Raise for what does not fit."""
        check(self.parsed, arguments)
        here = next((a.device for a in arguments if isinstance(a, (Tensor, TensorMap))), None)
        raise ValueError(f"{self.parsed.instance} was loaded on cuda:{self.device}, its tensors are on {here}")

    def allow(self, shared: int) -> None:
        if shared > self.most:
            raise TooLarge(
                f"{self.parsed.instance} in {self.source.path.name} asks for {shared} bytes of dynamic shared memory; "
                f"cuda:{self.device} has {self.most} for it ({self.static} more are static)"
            )
        with self.raising:  # another thread may have asked for more since this one looked
            if shared > self.dynamic:
                _succeed(libcuda().cuFuncSetAttribute(self.function, _DYNAMIC, shared), self.parsed)
                self.dynamic = shared

    def failed(self, status: int, go: Callable[..., None], how: Sequence[Any]) -> None:
        """A thread that has never used CUDA has no context yet, and gets the device's. Nothing else is tried twice."""
        if status == _INVALID_CONTEXT and _adopt(self.device):
            go(*how)
            return
        threads, most = how[3] * how[4] * how[5], _attribute(self.function, _THREADS, self.parsed)
        if threads > most:
            raise TooLarge(
                f"{self.parsed.instance} in {self.source.path.name}: a block has {threads} threads, its registers leave room for {most}"
            )
        _succeed(status, self.parsed)


@contextmanager
def relaxed() -> Iterator[None]:
    """Inside, this thread may load, allocate, and work on streams that are not captured, while a graph is captured on another."""
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED; the call exchanges it for the thread's own
    libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _load(made: compiler.Compiled, function: Function, device: int) -> int:
    """The CUfunction. A graph may be captured meanwhile: loading touches no stream."""
    _adopt(device)
    driver, module, found = libcuda(), ctypes.c_void_p(), ctypes.c_void_p()
    with relaxed():
        _succeed(driver.cuModuleLoadData(ctypes.byref(module), made.cubin), function)
        _succeed(driver.cuModuleGetFunction(ctypes.byref(found), module, made.symbol.encode()), function)
    assert found.value is not None
    return found.value


def _attribute(handle: Any, which: int, function: Function) -> int:
    value = ctypes.c_int()
    _succeed(libcuda().cuFuncGetAttribute(ctypes.byref(value), which, handle), function)
    return value.value


def _adopt(device: int) -> bool:
    """Make the device's primary context, which is PyTorch's, current on this thread if it has none; whether there was need."""
    driver, context = libcuda(), ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    if context.value is not None:
        return False
    status = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), _handle(device)) or driver.cuCtxSetCurrent(context)
    return status == 0


def _handle(device: int) -> Any:
    handle = ctypes.c_int()
    libcuda().cuDeviceGet(ctypes.byref(handle), device)
    return handle


def _shared_memory(device: int) -> int:
    most = ctypes.c_int()
    libcuda().cuDeviceGetAttribute(ctypes.byref(most), _SHARED_AT_MOST, _handle(device))
    return most.value


def _succeed(status: int, function: Function) -> None:
    if status:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        libcuda().cuGetErrorName(status, ctypes.byref(name))
        libcuda().cuGetErrorString(status, ctypes.byref(text))
        said = f"{(name.value or b'').decode()} ({(text.value or b'').decode()})"
        raise RuntimeError(f"{function.instance} at line {function.line}: the CUDA driver says {said}")
