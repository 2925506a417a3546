"""`rooftile check`: which points, on which device, in which process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from rooftile.core.kernel import Op
from rooftile.core.record import Status
from rooftile.workbench import check as gate
from rooftile.workbench.explain import operator

DEVICES = ("cpu", "cuda", "interpret")


def resolve(device: str) -> str:
    """The device asked for, or the best there is; a sentence where it is not to be had."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in DEVICES:
        raise ValueError(f"no device is called {device!r}: there are {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this machine has 0 CUDA devices (rooftile doctor says more)")
    return device


def check(names: list[str], kernel: str | None, device: str, progress: Console | None) -> dict[str, Any]:
    """Counts and verdicts. On a CPU the references run natively and everything else through the interpreter, in a child process."""
    device = resolve(device)
    ops = named(names)
    if kernel is not None and not any(k.name == kernel for op in ops for k in op.kernels):
        ops[0].kernel(kernel)  # raises, with the nearest right name
    results: list[dict[str, Any]] = []
    if device == "interpret":
        from rooftile.workbench import interpreter  # noqa: F401  patches Triton in this process
    if device == "cpu" and any(k.name != "reference" for op in ops for k in op.kernels if kernel in (None, k.name)):
        results += _interpreted(names, kernel, progress)
    points = [p for p in gate.grid(ops, kernel, use="smoke" if device == "interpret" else "check") if _here(p, device)]
    results += _run(points, "cuda" if device == "cuda" else "cpu", progress)
    counts = Counter("failed" if r["status"] == Status.ERROR else r["status"] for r in results)
    return {"device": device, **{s: counts[s] for s in ("passed", "failed", "refused")}, "results": results}


def _here(point: gate.Point, device: str) -> bool:
    """On a CPU the reference belongs to this process and the rest to the interpreter."""
    return device == "cuda" or (point.kernel is point.op.kernels[-1]) == (device == "cpu")


def _run(points: list[gate.Point], device: str, progress: Console | None) -> list[dict[str, Any]]:
    with Progress(console=progress or Console(quiet=True), transient=True) as bar:
        task = bar.add_task("checking", total=len(points))

        def each(v: gate.Verdict) -> None:
            bar.update(task, advance=1, description=f"{v.op} {v.kernel}")

        return [v.json() for v in gate.run_points(points, device, each)]


def _interpreted(names: list[str], kernel: str | None, progress: Console | None) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "rooftile",
        "check",
        *names,
        *(["--kernel", kernel] if kernel else []),
        "--device",
        "interpret",
        "--json",
    ]
    if progress is not None:
        progress.print("Triton kernels go through the interpreter in a child process", style="dim")
    child = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    if child.returncode not in (0, 1) or not child.stdout.strip():
        raise RuntimeError(f"the interpreter died with exit code {child.returncode}: {child.stderr.strip()[-2000:]}")
    return json.loads(child.stdout)["results"]


def named(names: list[str]) -> list[Op]:
    """The operators of these names, or all, each followed by its gradient."""
    return gate.with_gradients([operator(n) for n in names] if names else gate.all_ops())
