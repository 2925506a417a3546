"""`rooftile check`: which points, on which device, in which process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from rooftile.core import device as dev
from rooftile.core.kernel import OPS, Op, nearest
from rooftile.core.record import Environment, Record, Status, append, unwritable
from rooftile.core.spec import OpSpec
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.cuda.simulator import build
from rooftile.cuda.source import Source
from rooftile.training.signals import Termination
from rooftile.workbench import check as gate
from rooftile.workbench import inputs, ledger
from rooftile.workbench.explain import operator
from rooftile.workbench.spread import CROWDED, Unit, spread

DEVICES = ("cpu", "cuda", "interpret", "sim")


def resolve(device: str) -> str:
    """The device asked for, or the best there is; a sentence where it is not to be had."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in DEVICES:
        raise ValueError(f"no device is called {device!r}: there are {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this machine has 0 CUDA devices (rooftile doctor says more)")
    return device


def check(
    names: list[str],
    kernel: str | None,
    device: str,
    progress: Console | None,
    jobs: int = 1,
    folder: Path | None = None,
    lacking: Path | None = None,
    within: float = math.inf,
) -> dict[str, Any]:
    """Counts and verdicts. On a CPU the references run natively and Triton through the interpreter, in a child process; CUDA C++ runs in
    the simulator, which is a device of its own. `jobs` processes share out the cases of a GPU, whose verdicts can be records, in `folder`; `lacking` such
    a folder leaves out kernels that have passed as they are now, and nothing new is begun `within` seconds after the call."""
    end = time.monotonic() + within
    device = resolve(device)
    if device != "cuda":
        asked = {f"--jobs {jobs}": jobs != 1, "--record": folder is not None, "--stale": lacking is not None, "--within": within < math.inf}
        for option in (option for option, said in asked.items() if said):
            raise ValueError(f"{option}: it is for the kernels of a GPU, on {device} 1 process judges all of them every time")
    ops = named(names)
    if kernel is not None and not any(k.name == kernel for op in ops for k in op.kernels):
        known = dict.fromkeys(k.name for op in ops for k in op.kernels)
        nearest(kernel, [*known], f"kernel of {ops[0].spec.name}" if len(names) == 1 else "kernel")
    can_keep(folder)
    if lacking is not None:
        ledger.there(lacking)
    results: list[dict[str, Any]] = []
    if device == "interpret":
        _can_interpret(device)
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(
                "--device interpret: it needs TRITON_INTERPRET=1 when rooftile is imported; --device cpu starts such a process itself"
            )
        from rooftile.workbench import interpreter  # noqa: F401  patches Triton in this process
    if device == "cpu" and any(k.name != "reference" for op in ops for k in op.kernels if kernel in (None, k.name)):
        results += _interpreted(names, kernel, progress)
    points = [p for p in gate.grid(ops, kernel, "smoke" if device in ("interpret", "sim") else "check", device) if _here(p, device)]
    if lacking is not None:
        green = ledger.green(lacking, slug_here())
        points = [p for p in points if (p.op.spec.name, p.kernel.name) not in green]
    digests = {(p.op.spec.name, p.kernel.name): p.kernel.digest for p in points} if folder is not None else {}
    if device == "interpret":
        points = affordable(points)
    if device == "sim":
        if not points:
            what = f"{', '.join(names)} has no kernel" if kernel is None else f"kernel {kernel} is none"
            raise ValueError(f"--device sim: {what} in CUDA C++, which is what is simulated")
        results += _simulated(points, progress)
    elif jobs != 1:
        results += _shared_out(points, device, progress, jobs, end)
    else:
        results += _run(points, "cuda" if device == "cuda" else "cpu", progress, end)
    left: list[str] = []
    if device == "cuda":
        posed, judged = Counter((p.op.spec.name, p.kernel.name) for p in points), Counter((r["op"], r["kernel"]) for r in results)
        left = [f"{op} {name}" for op, name in posed if judged[op, name] < posed[op, name]]
        if folder is not None:
            _keep([r for r in results if f"{r['op']} {r['kernel']}" not in left], digests, folder)
    return {"device": device, **_counts(results), "results": results, "left": left}


def passing(progress: Console | None) -> Progress:
    """A bar that goes when it is done; in a file or a pipe none at all, where rich would leave an empty line."""
    return Progress(console=progress, transient=True, disable=progress is None or not progress.is_terminal)


def can_keep(folder: Path | None) -> None:
    if folder is not None and (why := unwritable(folder)):
        raise ValueError(f"--folder {folder} cannot be written: {why}")


def _counts(results: list[dict[str, Any]]) -> dict[str, int]:
    counts = Counter("failed" if r["status"] == Status.ERROR else r["status"] for r in results)
    return {s: counts[s] for s in ("passed", "failed", "refused")}


def slug_here() -> str:
    return dev.slug(torch.device("cuda", torch.cuda.current_device()))


def _keep(results: list[dict[str, Any]], digests: dict[tuple[str, str], str], folder: Path) -> None:
    """A record of each kernel that all its cases have been judged of."""
    run, environment = uuid.uuid4().hex[:10], dict(vars(Environment.here()))
    by_kernel: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in results:
        by_kernel.setdefault((r["op"], r["kernel"]), []).append(r)
    for (op, kernel), verdicts in by_kernel.items():
        counts = _counts(verdicts)
        wrong = next((f"{r['case']} {r['variant']}: {r['message']}" for r in verdicts if r["status"] in (Status.FAILED, Status.ERROR)), "")
        status = Status.FAILED if counts["failed"] else Status.PASSED if counts["passed"] else Status.REFUSED
        made = Record(op, kernel, ledger.GATE + kernel, status, method="the gate", message=wrong, digest=digests[op, kernel], run=run, extra=counts,
                      environment=environment)  # fmt: skip
        append(folder / slug_here() / f"{op.removesuffix('_backward')}.jsonl", [made])


def _here(point: gate.Point, device: str) -> bool:
    """On a CPU the reference belongs to this process and the rest to the interpreter; the simulator has CUDA C++ alone."""
    if device == "sim":
        return point.kernel.name.startswith("cuda.")
    return device == "cuda" or (point.kernel is point.op.kernels[-1]) == (device == "cpu")


def _run(points: list[gate.Point], device: str, progress: Console | None, end: float = math.inf) -> list[dict[str, Any]]:
    made: list[gate.Verdict] = []
    with passing(progress) as bar:
        task = bar.add_task("checking", total=len(points))

        def each(v: gate.Verdict) -> None:
            bar.update(task, advance=1, description=f"{v.op} {v.kernel}")

        for _, group in groupby(points, key=lambda p: p.op.spec.name):
            posed = list(group)
            verdicts = gate.run_points(posed, device, each) if time.monotonic() < end else []
            made += verdicts
            if len(verdicts) < len(posed):  # no time, or no device any more
                break
    return [asdict(v) for v in made]


def judge(op: str, case: str, kernels: tuple[str, ...], device: str) -> list[dict[str, Any]]:
    """The verdicts of one case: kernels share its problem, which is most of the work where they are many."""
    return _run(
        [p for p in gate.grid([OPS[op]], device=device) if p.case.id == case and p.kernel.name in kernels and _here(p, device)],
        device,
        None,
    )


def _shared_out(points: list[gate.Point], device: str, progress: Console | None, jobs: int, end: float = math.inf) -> list[dict[str, Any]]:
    kernels: dict[str, dict[str, None]] = {}
    for p in points:
        kernels.setdefault(p.op.spec.name, {})[p.kernel.name] = None
    units: list[Unit] = list(dict.fromkeys((p.op.spec.name, p.case.id, tuple(kernels[p.op.spec.name]), device) for p in points))
    made: dict[Unit, list[dict[str, Any]]] = {}
    with passing(progress) as bar, contextlib.closing(spread(judge, units, jobs, end)) as heard:
        task = bar.add_task("checking", total=len(units))
        for unit, verdicts in heard:
            made[unit] = verdicts
            bar.update(task, advance=1, description=" ".join(unit[:2]))
    crowded = [unit for unit in made if any(CROWDED in v["message"] for v in made[unit])]
    made |= {unit: judge(*unit) for unit in crowded}  # again, alone
    return [v for unit in units for v in made.get(unit, ())]


def _simulated(points: list[gate.Point], progress: Console | None) -> list[dict[str, Any]]:
    """Bounds, alignment, masks, barriers and uninitialised reads everywhere; races too on the smallest shape of each kernel and dtype."""
    build.compiler()  # a machine without g++ is told once
    build.runtime()  # and one whose cache cannot be written
    with simulator.active():
        points = affordable(points)
    smallest: dict[tuple[str, str, str], gate.Point] = {}
    for p in points:
        key = (p.op.spec.name, p.kernel.name, str(p.case.dtype))
        if p.variant == "normal" and (key not in smallest or _size(p) < _size(smallest[key])):
            smallest[key] = p
    chosen = list(smallest.values())
    _build_ahead(points)
    with simulator.active("all"):
        results = _run(chosen, "cpu", progress)
    with simulator.active("checks"):
        return results + _run([p for p in points if p not in chosen], "cpu", progress)


def _build_ahead(points: list[gate.Point]) -> None:
    """What these launch is compiled first, a file's kernels together: launchers are asked with launches recorded instead of run. Families change numbers
    alone. Who cannot be asked is a finding when it is judged, and what it launches is compiled there."""
    wanted: dict[Source, dict[str, None]] = {}
    for p in points:
        if p.variant not in ("normal", *inputs.layouts(p.op.spec)):
            continue
        with recording() as seen, contextlib.suppress(Exception):
            call = p.op.spec.draw(p.case)
            call = call if p.variant == "normal" else inputs.lay_out(p.op.spec, call, p.variant)
            if p.kernel.objection(call) is None:
                for save in (True, False) if p.kernel.lean else (True,):
                    p.kernel.bound(p.kernel.heuristic(call), save=save)(*call.values())
        for launch in seen:
            wanted.setdefault(launch.source, {})[launch.instance] = None
    for source, instances in wanted.items():
        build.ahead(source, instances)


def affordable(points: list[gate.Point]) -> list[gate.Point]:
    """Every case as it is, in float16 what bfloat16 has not, and input families and layouts of the case that costs least of those a kernel takes,
    of several rows where there is one: a stride between rows says nothing of one. What these change is numbers and addresses, and the GPU has them
    of all cases."""
    points = [p for p in points if not gate.twin(p)]
    least: dict[tuple[str, str], tuple[bool, float, str]] = {}
    for p in points:
        if p.variant == "normal" and "smoke" in p.case.use:  # the others have none
            call = p.op.spec.draw(p.case)
            key, cost = (p.op.spec.name, p.kernel.name), (_one_row(p.op.spec, call), p.op.spec.operations(call))
            if (key not in least or cost < least[key][:2]) and p.kernel.objection(call) is None:
                least[key] = (*cost, p.case.id)
    chosen = {(op, kernel, case) for (op, kernel), (*_, case) in least.items()}
    return [p for p in points if p.variant == "normal" or (p.op.spec.name, p.kernel.name, p.case.id) in chosen]


def _one_row(spec: OpSpec, call: dict[str, Any]) -> bool:
    """Whether a tensor that has an axis of rows has one row alone; a gradient's results of the forward, which lie as we made them, not looked at."""
    made = [v for n, v in call.items() if isinstance(v, torch.Tensor) and n not in (spec.forward.returns if spec.forward else ())]
    return any(t.dim() > 1 and t.shape[-1] == t.numel() for t in made)


def _size(p: gate.Point) -> int:
    return sum(t.numel() for t in p.op.spec.draw(p.case).values() if isinstance(t, torch.Tensor))


def _can_interpret(device: str) -> None:
    if importlib.util.find_spec("ml_dtypes") is None:
        raise ValueError(
            f"--device {device}: Triton's interpreter needs ml_dtypes, which is not installed: pip install ml_dtypes; --kernel reference needs none"
        )


class _Ending(Termination):
    """SIGTERM takes the child along, which would go on for minutes with nobody to hear it."""

    def answer(self, number: int) -> None:
        sys.exit(128 + number)


def _interpreted(names: list[str], kernel: str | None, progress: Console | None) -> list[dict[str, Any]]:
    _can_interpret("cpu")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",  # and not -m, which imports first from the folder that one stands in: a random.py there was the end of it
        f"import sys; sys.path[:] = {sys.path!r}; from rooftile.cli import main; main()",
        "check",
        *names,
        *(["--kernel", kernel] if kernel else []),
        "--device",
        "interpret",
        "--json",
    ]
    if progress is not None:
        progress.print(
            "Triton kernels go through the interpreter in a child process, on the smoke cases; all others are for a GPU", style="dim"
        )
    with _Ending():
        child = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    if child.returncode not in (0, 1) or not child.stdout.strip():
        raise ChildProcessError(f"the interpreter died with exit code {child.returncode}: {child.stderr.strip()[-2000:]}")
    if sys.stderr is not None:
        sys.stderr.write(child.stderr)  # what kernels print
    return json.loads(child.stdout)["results"]


def named(names: list[str]) -> list[Op]:
    """The operators of these names, or all, each followed by its gradient."""
    return gate.with_gradients([operator(n) for n in names] if names else gate.all_ops())
