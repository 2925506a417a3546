"""CUDA C++ kernels on a plain CPU, under a checker that names the lines. README.md says how, and what is not modelled."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rooftile.cuda import launch
from rooftile.cuda.launch import MAX_BLOCK, MAX_GRID, MAX_THREADS, Extent
from rooftile.cuda.simulator import build
from rooftile.cuda.simulator.arguments import Argument, Memory, variable
from rooftile.cuda.source import Function, Source

LEVELS = ("values", "checks", "all")  # bounds and alignment; and uninitialised reads; and races and access statistics
KINDS = (
    "race",
    "uninitialised",
    "out_of_bounds",
    "misaligned",
    "divergent_barrier",
    "bad_mask",
    "timeout",
    "too_large",
    "trap",
    "not_modelled",
)
BOUND = 1 << 28  # steps (basic blocks) since a thread last ended; about a second
MAX_SHARED = 227 * 1024


@dataclass(frozen=True)
class Finding:
    kind: str
    file: str
    line: int
    sentence: str
    other_line: int = 0  # of a race: the other access

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.sentence}"


@dataclass(frozen=True)
class Access:
    """What the warps' requests from one line cost. 32 lanes that read 32 floats in a row: 4 sectors of global memory, 1 wavefront of shared."""

    file: str
    line: int
    space: str  # shared | global
    store: bool
    asynchronous: bool  # of a cp.async, whose half in shared memory no counter of loads and stores sees
    bytes: int  # a lane
    requests: int
    per_request: float

    def json(self) -> dict[str, Any]:
        unit = "wavefronts_per_request" if self.space == "shared" else "sectors_per_request"
        out = {k: getattr(self, k) for k in ("file", "line", "space", "store", "asynchronous", "bytes", "requests")}
        return {**out, unit: round(self.per_request, 3)}


@dataclass(frozen=True)
class Report:
    findings: tuple[Finding, ...]
    accesses: tuple[Access, ...]

    def json(self) -> dict[str, Any]:
        findings = [{k: getattr(f, k) for k in ("kind", "file", "line", "sentence", "other_line")} for f in self.findings]
        return {"findings": findings, "accesses": [a.json() for a in self.accesses]}


class Found(RuntimeError):
    """A kernel that was launched while the simulator is active has a fault."""


class _Buffer(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("name", ctypes.c_char_p)]


class _Settings(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("level", ctypes.c_int32),
        ("buffers", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("dynamic_bytes", ctypes.c_uint64),
        ("code_begin", ctypes.c_uint64),
        ("code_end", ctypes.c_uint64),
        ("bound", ctypes.c_int64),
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("arguments_bytes", ctypes.c_uint64),
        ("buffer", ctypes.c_void_p),
        ("cluster", ctypes.c_uint32),  # blocks
        ("one_by_one", ctypes.c_int32),  # whether the race check remembers every thread that reads shared memory
    ]


class _Finding(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("pc", ctypes.c_uint32),
        ("other_pc", ctypes.c_uint32),
        ("text", ctypes.c_char * 1024),
        ("plain_read", ctypes.c_uint32),
    ]


class _Row(ctypes.Structure):
    _fields_ = [
        ("pc", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("store", ctypes.c_uint32),
        ("copied", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("requests", ctypes.c_uint64),
        ("transactions", ctypes.c_uint64),
    ]


def run(
    source: Source,
    function: Function,
    grid: Extent,
    block: Extent,
    arguments: Sequence[Argument],
    shared: int = 0,
    *,
    level: str = "all",
    seed: int | None = None,
    bound: int = BOUND,
    reaches: Sequence[Tensor] = (),
    symbols: Mapping[str, Tensor | int | float] | None = None,
) -> Report:
    """Run the kernel on CPU tensors, which hold its results afterwards. Threads take turns in an order that is always the same, or that
    `seed` draws. `reaches`: tensors that the kernel finds through addresses in a buffer; it works on these themselves.
    `symbols`: what __constant__ and __device__ variables hold, which host code would fill; tensors have their contents afterwards. A finding after
    which the kernel cannot go on ends the run; README.md says which do not."""
    if level not in LEVELS:
        raise ValueError(f"no level is called {level!r}: there are {', '.join(LEVELS)}")
    _limits(function, grid, block, shared)
    symbols = symbols or {}
    built = build.kernel(source, function, tuple(symbols))
    variables = [variable(built.library, i, *item) for i, item in enumerate(symbols.items())]
    memory = Memory(function, built.kinds, arguments, reaches)
    try:
        buffers = (_Buffer * max(1, len(memory.buffers)))(*(_Buffer(b, n, name.encode()) for b, n, name in memory.buffers))
        settings = _Settings(
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            LEVELS.index(level),
            len(memory.buffers),
            0 if seed is None else seed + 1,
            shared,
            *built.code,
            bound,
            built.entry,
            ctypes.addressof(memory.arguments),
            len(memory.arguments),
            ctypes.addressof(buffers),
            int(function.cluster),
            any(path.name == "mbarrier.cuh" for path in source.files),
        )
        with build._lock:  # one grid at a time
            library = build.runtime()
            library.rooftile_simulate(ctypes.byref(settings))
            report = _report(source, function, built, library)
        memory.back()
        for address, value in variables:
            if value is not None:
                ctypes.memmove(value.data_ptr(), address, value.nbytes)
    finally:
        memory.close()
    return report


@contextmanager
def active(level: str = "checks", seed: int | None = None) -> Iterator[list[Report]]:
    """Inside, rooftile.cuda.launch.launch runs on CPU tensors, in the simulator. A finding is raised as Found."""
    reports: list[Report] = []

    def simulate(source: Source, function: Function, grid: Extent, block: Extent, arguments: Sequence[Argument], shared: int,
                 reaches: Sequence[Tensor]) -> None:  # fmt: skip
        reports.append(run(source, function, grid, block, arguments, shared, level=level, seed=seed, reaches=reaches))
        if reports[-1].findings:
            raise Found("; ".join(map(str, reports[-1].findings[:3])))

    before, launch.simulator = launch.simulator, simulate
    try:
        yield reports
    finally:
        launch.simulator = before


def _limits(function: Function, grid: Extent, block: Extent, shared: int) -> None:
    for what, extent, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        for axis, n, m in zip("xyz", extent, most):
            if not 1 <= n <= m:
                raise ValueError(f"{function.instance}: {what}.{axis} is {n}, it must be from 1 to {m}")
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise ValueError(f"{function.instance}: a block of {' x '.join(map(str, block))} has {threads} threads, at most {MAX_THREADS}")
    if not 0 <= shared <= MAX_SHARED:
        raise ValueError(f"{function.instance}: {shared} bytes of dynamic shared memory, it must be from 0 to {MAX_SHARED}")
    if grid[0] % int(function.cluster) or grid[1] * grid[2] > 1 < int(function.cluster):
        raise ValueError(
            f"{function.instance}: a grid of {' x '.join(map(str, grid))} blocks is no whole number of clusters of {function.cluster}"
        )
    total = grid[0] * grid[1] * grid[2] * threads
    if total >= 2**32:
        raise ValueError(f"{function.instance}: {total} threads in all, the simulator counts to {2**32 - 1}")


# ---- what the runtime found, in lines of the source -------------------------------------------------------------------------

_at: dict[tuple[Path, int], tuple[str, int]] = {}


def _report(source: Source, function: Function, built: build.Built, library: ctypes.CDLL) -> Report:
    raw, rows = ctypes.POINTER(_Finding)(), ctypes.POINTER(_Row)()
    found = [raw[i] for i in range(library.rooftile_findings(ctypes.byref(raw)))]
    made = [rows[i] for i in range(library.rooftile_accesses(ctypes.byref(rows)))]
    texts = [f.text.decode(errors="replace") for f in found]
    mentioned = [int(h, 16) for t in texts for h in re.findall(r"\{([0-9a-f]+)\}", t)]
    _resolve(source, built.path, [*(f.pc for f in found), *(f.other_pc for f in found), *mentioned, *(r.pc for r in made)])

    def line(pc: int) -> int:
        return _at[built.path, pc][1]

    findings: dict[tuple[str, int, int], Finding] = {}
    for f, text in zip(found, texts):
        kind, other = KINDS[f.kind], line(f.other_pc) if f.other_pc else 0
        file, here = _at[built.path, f.pc]
        if kind == "divergent_barrier" and other == here:
            continue
        sentence = re.sub(r"\{([0-9a-f]+)\}", lambda m: str(line(int(m[1], 16))), text)
        if kind in ("too_large", "not_modelled"):
            raise ValueError(f"{file}:{here}: {sentence}" if f.pc else f"{function.instance}: {sentence}")
        findings.setdefault((kind, here, other), Finding(kind, file, here, sentence, other))
    merged: dict[tuple[str, int, bool, bool, bool], list[int]] = {}
    for r in made:
        total = merged.setdefault((*_at[built.path, r.pc], bool(r.shared), bool(r.store), bool(r.copied)), [0, 0, 0])
        total[0], total[1], total[2] = max(total[0], r.bytes), total[1] + r.requests, total[2] + r.transactions
    accesses = [
        Access(file, n, "shared" if shared else "global", store, copied, size, requests, transactions / requests)
        for (file, n, shared, store, copied), (size, requests, transactions) in sorted(merged.items())
    ]
    return Report(tuple(findings.values()), tuple(accesses))


def _resolve(source: Source, library: Path, pcs: Sequence[int]) -> None:
    """Program counters to file and line: of a chain of inlined calls, the innermost that is in the kernel's own file."""
    wanted = sorted({pc for pc in pcs if pc and (library, pc) not in _at})
    _at.setdefault((library, 0), (str(source.path), 0))
    if not wanted:
        return
    command = [_addr2line(), "-i", "-a", "-e", str(library), *(hex(pc) for pc in wanted)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    frames: dict[int, list[tuple[str, int]]] = {}
    for text in said.splitlines():
        if text.startswith("0x"):
            frames[int(text, 16)] = chain = []
        elif match := re.match(r"(.*):(\d+)", text):
            chain.append((match[1], int(match[2])))
    for pc in wanted:
        own = [f for f in frames[pc] if Path(f[0]) == source.path]
        _at[library, pc] = (own or frames[pc] or [(str(source.path), 0)])[0]


@functools.cache
def _addr2line() -> str:
    found = shutil.which("addr2line")
    if found is None:
        raise ValueError("the simulator names lines with addr2line, and there is none on the PATH: install binutils")
    return found
