"""What the Triton launchers share: who may be launched on, on which device, over which rows."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from rooftile.core import replay
from rooftile.core.spec import Call

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DRY = os.environ.get("ROOFTILE_DRY_GPU") == "1"  # compiled for a GPU that is not there, and not run


def off_gpu(x: Tensor) -> str | None:
    """Why Triton cannot run here, or None. The interpreter runs on CPU tensors."""
    if x.is_cuda or INTERPRETED or DRY:
        return None
    return f"it needs a CUDA device, the tensor is on {x.device}"


_OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")  # of the compiler; every other keyword is a constexpr
_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Launch on the device of the first tensor, whichever device is current; an empty grid launches nothing.

    args are the kernel's runtime arguments in order, meta its constexprs (declared last, given in order) and num_warps, num_stages.
    Triton's own dispatch costs 10 us of host time, of which 6 are spent finding the compiled kernel; here it is found by a key
    that is finer than what Triton specialises on (dtypes, alignment to 16, integers that are 1 or divisible by 16).
    """
    if 0 in grid:
        return
    first = args[0]
    if not first.is_cuda:
        _through_triton(kernel, grid, args, meta)
        return
    device = first.device.index
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            launch(kernel, grid, *args, **meta)
        return
    key = (
        kernel,
        device,
        *meta.items(),
        *[a if type(a) is int else (a.dtype, a.data_ptr() & 15) if isinstance(a, Tensor) else type(a) for a in args],
    )
    found = _compiled.get(key)
    if found is None:
        compiled = _through_triton(kernel, grid, args, meta)
        constants = tuple(v for n, v in meta.items() if n not in _OPTIONS)
        if len(_compiled) > 8192:  # lengths that never repeat must not fill the memory
            _compiled.clear()
        _compiled[key] = (compiled.run, compiled.function, compiled.packed_metadata, constants)
        return
    if _listened_to():
        _through_triton(kernel, grid, args, meta)
        return
    run, function, packed, constants = found
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    rest = (function, packed, None, None, None, *args, *constants)
    run(x, y, z, torch._C._cuda_getCurrentRawStream(device), *rest)
    recorder = replay.recorder()
    if recorder is not None:
        recorder.note(run, (x, y, z, replay.STREAM, *rest), unless=_listened_to)


def launch_described(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """`launch` of a kernel that takes TMA descriptors: they hold addresses, so Triton encodes them anew for every call."""
    first = args[0]
    if first.is_cuda and first.device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(first.device):
            _through_triton(kernel, grid, args, meta)
    else:
        _through_triton(kernel, grid, args, meta)


_captured: list[tuple[Tensor, Tensor]] = []  # sent anew at every replay of a CUDA graph, so they must outlive the call


def send(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Whole numbers as an int64 tensor on the device, without waiting; also while a CUDA graph is captured."""
    host = torch.tensor(values, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    sent = host.to(device, non_blocking=True)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _captured.append((host, sent))
    return sent


@functools.lru_cache(maxsize=256)
def _kept(make: Callable[..., tuple[int, ...]], about: tuple[Any, ...], device: torch.device, stream: int) -> Tensor:
    return send(make(*about), device)


def constant(make: Callable[..., tuple[int, ...]], about: tuple[Any, ...], device: torch.device) -> Tensor:
    """`make(*about)` on the device, kept: for tables that do not change from call to call. One for each stream it is used on, so that it
    has arrived; one made while a graph is captured lies in that graph's memory and is not for others."""
    if device.type != "cuda":
        return _kept(make, about, device, 0)
    if torch._C._cuda_isCurrentStreamCapturing():
        return send(make(*about), device)
    return _kept(make, about, device, torch._C._cuda_getCurrentRawStream(device.index))


def _through_triton(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> Any:
    recorder = replay.recorder()
    if recorder is not None:
        recorder.why = "Triton itself launched it"
    return kernel[grid](*args, **meta)


def _listened_to() -> Any:
    """Whether a profiler wants to hear of launches; it hears of those that go through Triton."""
    return knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls


def dense_like(x: Tensor) -> Tensor:
    """A contiguous tensor of x's shape, dtype and device with nothing in it."""
    return torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)  # torch.empty with a device costs 2 us more than either


@functools.lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def processors(x: Tensor) -> int:
    """Multiprocessors of x's device. Interpreted or simulated: 2; compiled for a GPU that is not there: an H200's."""
    return _processors(x.device) if x.is_cuda else 2 if x.device.type == "cpu" else 132


def resident(x: Tensor, per: int) -> int:
    """Programs, or blocks, of a persistent grid: `per` on each multiprocessor. Interpreted or simulated: 2, so that every one loops."""
    return 2 if x.device.type == "cpu" else per * processors(x)


def row(call: Call) -> Tensor:
    """The tensor whose rows are worked on: what a forward reads, or of a backward what was saved."""
    return next(call[name] for name in ("sum", "x", "out") if name in call)


def rows(x: Tensor) -> tuple[Tensor, int, int, int]:
    """x as M rows of N neighbouring elements: (x, M, N, row stride). Copies only what has no such view; the shape may collapse."""
    n = x.shape[-1]
    m = x.numel() // n if n else 0
    if x.is_contiguous():
        return x, m, n, n
    if x.dim() == 2 and x.stride(1) == 1:
        return x, m, n, x.stride(0)
    if x.stride(-1) == 1:
        x = x.reshape(m, n)  # a view where the leading axes collapse
        return x, m, n, x.stride(0)
    return x.contiguous(), m, n, n


def parts(partial: Tensor, first: Tensor, second: Tensor | None) -> tuple[int, int, int, int, Tensor]:
    """Of partial rows [P, N] that add up to `first`, or [2 P, N] to both: P, N, the half to begin with, how many halves, and the second."""
    p, n = partial.shape[:-1].numel(), partial.shape[-1]
    if second is None:
        return p, n, 0, 1, first
    return p // 2, n, 0 if first.numel() else 1, bool(first.numel()) + bool(second.numel()), second


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
