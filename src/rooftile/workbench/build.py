"""Compile every CUDA C++ kernel of the library ahead of time, and hold each to its declared limits.

What there is to compile is not listed anywhere: every kernel is called on its operator's bench cases, or the small ones if it takes none of
those, while launches are recorded instead of run, so the list is what the launchers really ask for: the heuristic's config of every call. If
`every` is asked for, all small cases and layouts too, and all configs of the last large one, as in dry.py. What tuning measures beyond that
is compiled when it is measured.

Limits were set with one compiler, LIMITS_OF; another may park a register more, and that is told and no fault. So is what a block has no room for where it
has less than sm_80's.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rooftile.core.kernel import Config, Kernel, Op, shared_memory
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import Launch, recording
from rooftile.cuda.source import Source
from rooftile.workbench import check as gate
from rooftile.workbench import inputs
from rooftile.workbench.explain import blank, operator

LIMITS_OF = "13.0"  # NVRTC's release in constraints.txt


@dataclass(frozen=True)
class Built:
    op: str
    kernel: str
    file: str
    instance: str
    arch: str
    registers: int
    spill_bytes: int
    shared_bytes: int  # static and, of the launches seen, the most dynamic
    seconds: float
    cached: bool  # it was there before
    fault: str  # what is wrong with it, or nothing: it does not compile, the assembler could not do what it asks for, it breaks its declared limits
    note: str = ""  # limits broken with another compiler than the one they were set with


@dataclass(frozen=True)
class Wanted:
    """One instance of one kernel, with the most dynamic shared memory a launch asked for."""

    op: Op
    kernel: Kernel
    source: Source
    instance: str
    shared: int


def build(names: list[str], arch: str = "", every: bool = False) -> list[Built]:
    arch = compiler.known_architecture(arch or here())
    ops = gate.with_gradients([operator(n) for n in names] if names else gate.all_ops())
    compiled = [(op, kernel) for op in ops for kernel in op.kernels if kernel.sources or kernel.name.startswith("cuda.")]
    if names and not compiled:
        raise ValueError(f"{', '.join(names)} has no kernel in CUDA C++ to build")
    wanted, built = list[Wanted](), list[Built]()
    for op, kernel in compiled:
        try:
            wanted += instances(op, kernel, every)
        except Exception as error:  # a launcher that cannot be asked is its own fault, and no other's
            built.append(_fault(op.spec.name, kernel.name, "", "", arch, f"{type(error).__name__}: {error}"))
    built += [_build(w, arch) for w in wanted if _number(arch) in (w.kernel.architectures or (_number(arch),))]
    if not names:
        reached = {w.source.path.resolve() for w in wanted}
        built += [_fault("", "", p.name, "", arch, "no kernel launches this file") for p in shipped() if p.resolve() not in reached]
    return built


def here() -> str:
    return compiler.architecture(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "sm_90a"


def shipped() -> list[Path]:
    """Every .cu of the operators, wherever the package is installed."""
    spec = importlib.util.find_spec("rooftile.ops")
    assert spec is not None and spec.submodule_search_locations is not None
    return sorted(p for folder in spec.submodule_search_locations for p in Path(folder).rglob("*.cu"))


def instances(op: Op, kernel: Kernel, every: bool) -> list[Wanted]:
    """What this kernel launches over the grid of its operator, each instance once, in the order it is met."""
    found: dict[tuple[Path, str], Wanted] = {}
    for launch in launches(op, kernel, every):
        key = (launch.source.path, launch.instance)
        shared = max(launch.shared, found[key].shared if key in found else 0)
        found[key] = Wanted(op, kernel, launch.source, launch.instance, shared)
    return list(found.values())


def launches(op: Op, kernel: Kernel, every: bool) -> Iterator[Launch]:
    taken: list[dict[str, Any]] = []
    for use in ("bench", "smoke"):
        if use == "smoke" and taken and not every:
            break  # small cases differ in alignment alone, and on a CPU's tensors they are dealt out as for the simulator
        for call in (c for case in op.spec.cases if use in case.use for c in _calls(op, case, use)):
            with recording() as seen:
                if kernel.refuse(call) is not None:
                    continue
                kernel.bound(kernel.heuristic(call))(*call.values())
            yield from seen
            if use == "bench" or not taken:
                taken.append(call)
    for config in kernel.configs if taken and every else ():
        yield from _of_config(kernel, config, taken)


def _of_config(kernel: Kernel, config: Config, taken: list[dict[str, Any]]) -> list[Launch]:
    """On the last case that it has room for: of one that does not fit a case tuning thinks as little. Where it fits none, on the first, for the fault."""
    for call in reversed(taken):
        with recording() as seen:
            kernel.bound(config)(*call.values())
        if all(launch.shared <= kernel.limits.shared_bytes for launch in seen):
            break
    return seen


def _calls(op: Op, case: Case, use: str) -> Iterator[dict[str, Any]]:
    """A small case on real tensors, with its layouts, as alignment may decide what is launched; a large one on tensors of no memory."""
    if case.dtype in op.spec.dtypes:
        if use == "smoke":
            yield from _laid_out(op, case)
        else:
            yield blank(op.spec, case, "meta")


def _laid_out(op: Op, case: Case) -> Iterator[dict[str, Any]]:
    call = op.spec.draw(case)
    yield call
    for layout in inputs.layouts(op.spec):
        yield inputs.lay_out(op.spec, call, layout)


def _number(arch: str) -> int:
    """90 of sm_90a."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def _build(wanted: Wanted, arch: str) -> Built:
    op, kernel, source = wanted.op.spec.name, wanted.kernel, wanted.source
    if source not in kernel.sources:
        why = f"{kernel.name} launches {source.path.name} without naming it in its sources: its digest would not notice a change"
        return _fault(op, kernel.name, source.path.name, wanted.instance, arch, why)
    start = time.perf_counter()
    try:
        made = compiler.compiled(source, wanted.instance, arch)
    except compiler.CompileError as error:
        return _fault(op, kernel.name, source.path.name, wanted.instance, arch, str(error).splitlines()[0])
    seconds, shared = time.perf_counter() - start, made.shared_bytes + wanted.shared
    broken, release = kernel.limits.broken(made.registers, made.spill_bytes, shared, _number(arch)), compiler.release()
    held = release == LIMITS_OF
    fault = made.loss or (broken if held else "")
    told = f"{broken}; limits are set with NVRTC {LIMITS_OF}, this is {release}" if broken else _no_room(shared, arch)
    note = "" if fault else told
    return Built(op, kernel.name, source.path.name, wanted.instance, arch, made.registers, made.spill_bytes, shared, seconds, made.cached,
                 fault, note)  # fmt: skip


def _no_room(shared: int, arch: str) -> str:
    room = shared_memory(_number(arch))
    return f"{shared} shared bytes, a block of {arch} has {room}: another config, or another kernel, runs there" if shared > room else ""


def _fault(op: str, kernel: str, file: str, instance: str, arch: str, why: str) -> Built:
    return Built(op, kernel, file, instance, arch, 0, 0, 0, 0.0, False, why)
