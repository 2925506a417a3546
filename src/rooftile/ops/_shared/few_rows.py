"""Few short rows: a row a multiprocessor at most, so that the way through one decides and not what runs beside it. A program a row of up to 8
warps with 4 elements a lane is the shortest way measured (records/nvidia-h200, M = 1 and 64), and 16 elements before there are more warps."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from rooftile.core.kernel import Kernel
from rooftile.core.spec import Call
from rooftile.ops._shared.launch import processors, row

SHORT = 16 * 1024  # bytes of a row


def few(x: Tensor) -> bool:
    """Whether x has a row a multiprocessor at most, or is empty."""
    return x.numel() <= processors(x) * x.shape[-1]


def warps(block: int) -> int:
    """Of a program for one of few rows, in a tile of `block` columns: 4 elements a lane, and beyond 8 warps 16."""
    return min(16, max(1, min(8, block // 128), block // 512))


def for_many(*kernels: Kernel) -> tuple[Kernel, ...]:
    """The same kernels, which leave few short rows to those behind them."""

    def behind(kernel: Kernel) -> Kernel:
        def declines(call: Call) -> str | None:
            x = row(call)
            size = x.shape[-1] * x.itemsize
            if x.is_cuda and x.numel() and few(x) and size <= SHORT:
                return f"{x.numel() // x.shape[-1]} rows of {size} bytes for {processors(x)} multiprocessors: a program of Triton is sooner through one"
            return kernel.declines(call)

        return replace(kernel, declines=declines)

    return tuple(map(behind, kernels))
