"""`rooftile sim`: somebody's own .cu in the simulator, with buffers described on the command line."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rooftile.core.kernel import nearest
from rooftile.core.record import without_c_comments
from rooftile.cuda import simulator
from rooftile.cuda.simulator.rewrite import rewritten
from rooftile.cuda.source import Source

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
MOST = 1 << 32  # bytes of one buffer


def simulate(
    file: Path,
    kernel: str,
    grid: str,
    block: str,
    shared: int,
    arguments: Sequence[str],
    seed: int | None = None,
    symbols: Sequence[str] = (),
) -> simulator.Report:
    source = Source(file)
    if not source.functions:
        raise ValueError(f"{file} has no __global__ function")
    if not kernel and len(source.functions) > 1:
        raise ValueError(f"{file} has {len(source.functions)} kernels, say which with --kernel: {', '.join(source.functions)}")
    function = source.function(kernel or next(iter(source.functions)))
    given = [argument(text, i) for i, text in enumerate(arguments)]
    variables = dict(symbol(text, i) for i, text in enumerate(symbols, len(arguments)))
    _filled(source, variables)
    return simulator.run(source, function, extent(grid, "--grid"), extent(block, "--block"), given, shared, seed=seed, symbols=variables)


def symbol(text: str, index: int) -> tuple[str, Tensor | int | float]:
    """NAME=, and then as an argument."""
    name, _, value = text.partition("=")
    if not re.fullmatch(r"\w+(::\w+)*", name) or not value:
        raise ValueError(f"--symbol is NAME=TYPE[COUNT] or NAME=TYPE:VALUE, e.g. mask=f32[25]:mask.npy; got {text!r}")
    return name, argument(value, index)


def _filled(source: Source, given: Container[str]) -> None:
    """Host code is not run, so what it would have put into __constant__ memory must be said, or a kernel that uses it computes with zeros."""
    text = without_c_comments(source.text)
    device = "".join(rewritten(source).values())
    for call in re.finditer(r"\bcudaMemcpyToSymbol(?:Async)?\s*\(\s*&?\s*(\w+)", text):
        uses = len(re.findall(rf"\b{call[1]}\b", device)) - 1
        if call[1] not in given and uses > 0:
            line = text.count("\n", 0, call.start()) + 1
            raise ValueError(
                f"{source.path}:{line}: host code fills {call[1]} here and is not run: say what it holds with --symbol {call[1]}=TYPE[COUNT]"
            )


def extent(text: str, option: str) -> tuple[int, int, int]:
    """8 or 8,2 or 8,2,1."""
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"\s*\d+\s*", p) for p in parts):
        raise ValueError(f"{option} is one to three whole numbers with commas between, e.g. 8,2,1; got {text!r}")
    x, y, z = [*map(int, parts), 1, 1][:3]
    return x, y, z


def argument(text: str, index: int = 0) -> Tensor | int | float:
    """TYPE[COUNT], TYPE[COUNT]:zeros, TYPE[COUNT]:arange, TYPE[COUNT]:file.npy, or TYPE:VALUE."""
    match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?(?::(.+))?", text)
    if match is None or (match[2] is None and match[3] is None):
        raise ValueError(f"argument {index + 1}, {text!r}, is neither TYPE[COUNT] nor TYPE:VALUE, e.g. f32[1024]:zeros or i32:1024")
    dtype = DTYPES[nearest(match[1], list(DTYPES), "type")]
    if match[2] is None:
        return _scalar(match[3], dtype, index)
    count = int(match[2])
    if count * dtype.itemsize > MOST:
        raise ValueError(f"argument {index + 1}, {text!r}, is {count * dtype.itemsize} bytes, at most {MOST}")
    if match[3] is None:
        return _random(count, dtype, index)
    if match[3] == "zeros":
        return torch.zeros(count, dtype=dtype)
    if match[3] == "arange":
        return torch.arange(count).to(dtype)
    if match[3].endswith(".npy"):
        return _file(Path(match[3]), count, dtype)
    raise ValueError(f"argument {index + 1}, {text!r}: after the colon stands zeros, arange or a file.npy, got {match[3]!r}")


def _random(count: int, dtype: torch.dtype, index: int) -> Tensor:
    draw = torch.Generator().manual_seed(index)
    if dtype.is_floating_point:
        return torch.randn(count, generator=draw).to(dtype)
    low, high = {torch.uint8: (0, 256), torch.bool: (0, 2)}.get(dtype, (-100, 101))
    return torch.randint(low, high, (count,), generator=draw).to(dtype)


def _scalar(text: str, dtype: torch.dtype, index: int) -> int | float:
    try:
        return float(text) if dtype.is_floating_point else int(text)
    except ValueError:
        kind = "a number" if dtype.is_floating_point else "a whole number"
        raise ValueError(f"argument {index + 1}: {text!r} is not {kind}, as {str(dtype).removeprefix('torch.')} wants") from None


def _file(path: Path, count: int, dtype: torch.dtype) -> Tensor:
    if not path.is_file():
        raise ValueError(f"{path} is no file")
    try:
        data = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as .npy: {error}") from error
    if data.size != count:
        raise ValueError(f"{path} holds {data.size} elements, the argument says {count}")
    try:
        tensor = torch.from_numpy(np.ascontiguousarray(data).reshape(-1))
    except TypeError as error:
        raise ValueError(f"{path} holds {data.dtype}, which is no type of tensor") from error
    if dtype == torch.bfloat16 and tensor.dtype in (torch.int16, torch.uint16):
        return tensor.view(torch.bfloat16)  # numpy has no bfloat16: its bits
    if tensor.dtype != dtype:
        raise ValueError(f"{path} holds {data.dtype}, the argument says {str(dtype).removeprefix('torch.')}")
    return tensor.clone()
