"""Compile every Triton kernel and config for a GPU that is not there, as a launch would, and hold it to its declared limits.

Run as `python -m rooftile.workbench.dry --arch 90` with ROOFTILE_DRY_GPU=1. A stand-in driver answers Triton's questions for the
architecture asked for; launches on meta tensors then compile with the real specialisation, are measured by the disassembler that
ships with Triton, and do not run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from rooftile.core.kernel import Config, Kernel, Op, shared_memory, too_large
from rooftile.core.spec import Case
from rooftile.workbench import check as gate
from rooftile.workbench.explain import blank, operator

ARCHITECTURES = (80, 90, 100)


@dataclass(frozen=True)
class Compiled:
    op: str
    kernel: str
    case: str
    config: dict[str, Any]
    arch: int
    function: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    fault: str  # what breaks the declared limits, or nothing


class _Utilities:
    def __init__(self, arch: int, log: list[dict[str, Any]]):
        self.log, self.arch, self.launch, self.launches = log, arch, None, 0
        self.counts = False  # whether what a kernel computes is wanted too
        self.computes: list[tuple[str, Counter[str]]] = []
        self.properties = {"max_shared_mem": shared_memory(arch), "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32,
                           "sm_clock_rate": 1980000, "mem_clock_rate": 3201000, "mem_bus_width": 6144}  # fmt: skip

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self.properties

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            report = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
            used = {k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}
            parked = used["STACK"] + used.get("LOCAL", 0)
            # a stack may also hold what was never spilled; disassembling takes a second, so only where there is one
            sass = ""
            if parked > 0 or self.counts:
                sass = subprocess.run([str(tool), "-sass", file.name], capture_output=True, text=True, check=True).stdout
            stores = parked > 0 and " STL" in sass
            if self.counts:
                # a product may be made twice; an addition is fused with one or not. FADD2 is two
                sums = Counter(kind for kind, two in re.findall(r"\b(FFMA|FADD)(2?)\b", sass) for _ in range(1 + bool(two)))
                self.computes.append((name, sums))
        self.log.append(
            {
                "function": name,
                "registers": used["REG"],
                "spill_bytes": stores * parked,
                "shared_bytes": shared,
            }
        )
        return 1, 1, used["REG"], 0, 1024

    def unload_module(self, module: int) -> None:
        pass


class StandIn:
    """As much of a CUDA driver as a compilation asks for."""

    def __init__(self, arch: int):
        self.arch = arch
        self.log: list[dict[str, Any]] = []
        utils = self.utils = _Utilities(arch, self.log)

        class Launcher:
            def __init__(self, source: Any, metadata: Any):
                pass

            def __call__(self, x: int, y: int, z: int, *args: Any) -> None:
                utils.launches += 1
                if not (x > 0 and 0 < y < 65536 and 0 < z < 65536):
                    raise ValueError(f"grid {(x, y, z)} is not launchable: y and z are 1 to 65535, x at least 1")

        self.launcher_cls = Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self.arch, 10)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    @staticmethod
    def is_active() -> bool:
        return True


def compile_all(names: list[str], arch: int, every: bool = False, lean: bool = True) -> list[Compiled]:
    """A large case of every kernel, as it would choose its config; `every`: a ragged one and all large cases, and every config; `lean`: those
    that can do without what a gradient reads also so, held to the same arithmetic, which takes a disassembler half a second."""
    if os.environ.get("ROOFTILE_DRY_GPU") != "1":
        raise ValueError("set ROOFTILE_DRY_GPU=1: the stand-in driver wants a process of its own")
    stand_in = StandIn(arch)
    driver.set_active(stand_in)
    ops = gate.with_gradients([operator(n) for n in names] if names else gate.all_ops())
    made: list[Compiled] = []
    for op in ops:
        for kernel in [k for k in op.kernels[:-1] if not k.sources and arch in (k.architectures or (arch,))]:  # CUDA C++ is for build.py
            cases = [c for c in op.spec.cases if {"smoke", "bench"} & set(c.use) and kernel.refuse(blank(op.spec, c, "meta")) is None]
            cases = [c for c in cases if c.dtype != torch.float16 or torch.bfloat16 not in op.spec.dtypes] or cases
            posed = [c for i, c in enumerate(cases) if i == len(cases) - 1 or (every and (i == 0 or "bench" in c.use))]
            both = lean and kernel.lean
            chosen = [_chosen(stand_in, op, kernel, case, both) for case in posed]
            right = [rows[0].config for rows in chosen if not any(row.fault for row in rows)]
            made += [row for rows in chosen for row in rows]
            for config in (c for c in kernel.configs if every and posed and c not in right):
                made += _of_config(stand_in, op, kernel, config, cases, both)
    return made


def _chosen(stand_in: StandIn, op: Op, kernel: Kernel, case: Case, lean: bool) -> list[Compiled]:
    """By the config that the heuristic names or, as a launch does where a block has too little for it, by the first that fits."""
    named, told = kernel.heuristic(blank(op.spec, case, "meta")), ""
    for config in (named, *(c for c in kernel.configs if c != named)):
        try:
            return _compile(stand_in, op, kernel, case, config, lean)
        except tuple(too_large) as error:
            told = f"no config fits, {dict(config)} does not: {error}"
    return [_nothing(stand_in, op, kernel, case, named, told)]


def _tried(stand_in: StandIn, op: Op, kernel: Kernel, case: Case, config: Config, lean: bool) -> list[Compiled]:
    try:
        return _compile(stand_in, op, kernel, case, config, lean)
    except tuple(too_large) as error:
        return [_nothing(stand_in, op, kernel, case, config, str(error))]


def _nothing(stand_in: StandIn, op: Op, kernel: Kernel, case: Case, config: Config, why: str) -> Compiled:
    return Compiled(op.spec.name, kernel.name, case.id, dict(config), stand_in.arch, "", 0, 0, 0, why)


def _of_config(stand_in: StandIn, op: Op, kernel: Kernel, config: Config, cases: list[Case], lean: bool) -> list[Compiled]:
    """On the last case, or where it breaks the limits there on another large one or one that it is chosen for: it is not for every case, and tuning would not
    choose it there. Where there is none, its fault is the last's. A case for which nothing new is compiled shares another's, and its fault."""
    first = _tried(stand_in, op, kernel, cases[-1], config, lean)
    if not any(row.fault for row in first):
        return first
    for case in [c for c in reversed(cases[:-1]) if "bench" in c.use or kernel.heuristic(blank(op.spec, c, "meta")) == config]:
        made = _tried(stand_in, op, kernel, case, config, lean)
        if all(row.function and not row.fault for row in made):
            return made
    return first


def _other_arithmetic(computes: list[tuple[str, Counter[str]]], lean: Callable[[], Any]) -> str:
    """A sentence if the run that saves nothing computes what was compiled before it by other instructions: what is not stored, a compiler may fuse
    with what follows, and the bits are others."""
    full, computes[:] = list(computes), []
    lean()
    apart = [(name, a - b, b - a) for (name, a), (other, b) in zip(full, computes) if name == other and a != b]
    return "; ".join(f"{name} has {dict(a)} with what a gradient reads and {dict(b)} without" for name, a, b in apart)


def _compile(stand_in: StandIn, op: Op, kernel: Kernel, case: Case, config: Config, lean: bool) -> list[Compiled]:
    call = blank(op.spec, case, "meta")
    stand_in.log.clear()
    stand_in.utils.computes.clear()
    launched, problem = stand_in.utils.launches, ""
    try:
        stand_in.utils.counts = lean
        kernel.bound(config)(*call.values())
        if lean:
            problem = _other_arithmetic(stand_in.utils.computes, functools.partial(kernel.bound(config, save=False), *call.values()))
    except tuple(too_large):
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    made = [
        Compiled(
            op.spec.name,
            kernel.name,
            case.id,
            dict(config),
            stand_in.arch,
            fault=problem or kernel.limits.broken(used["registers"], used["spill_bytes"], used["shared_bytes"], stand_in.arch),
            **used,
        )
        for used in stand_in.log
    ]
    if not made:  # nothing new: it shares what another operator or case has compiled, or it failed before
        problem = problem or ("" if stand_in.utils.launches > launched else "it launched nothing")
        made.append(_nothing(stand_in, op, kernel, case, config, problem))
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--arch", type=int, choices=ARCHITECTURES, default=90)
    parser.add_argument("--every", action="store_true", help="all large cases, and every config on the last that it is for: some 5 minutes")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    rows = compile_all(wanted.ops, wanted.arch, wanted.every)
    with contextlib.suppress(BrokenPipeError):
        if wanted.json:
            print(json.dumps([asdict(r) for r in rows]))
        else:
            for r in rows:
                print(
                    f"{r.op:24} {r.kernel:14} {r.function:22} {r.registers:4} regs {r.spill_bytes:4} spill {r.shared_bytes:7} shared  {r.config or ''} {r.case} {r.fault}"
                )
