"""NVIDIA's compute-sanitizer over every kernel of operators and of their gradients, on a GPU. What it looks at is `python -m rooftile.workbench.sanitizer OP`: every
kernel launched once on each small case.

Four things the tools do not see, and report what hangs on them: memory that a bulk copy has written (initcheck), one lane of a warp that tells others
through an mbarrier what all its lanes have done, how Triton's warp specialisation hands work to warps, and which lane has made an mbarrier (racecheck).
The first two are shown by kernels of tests/cuda/unseen.cu, in which the simulator finds nothing; what the four explain is passed over here, line by line."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import rooftile
import rooftile.ops
from rooftile.core.kernel import OPS, Kernel, Op
from rooftile.core.record import Environment, Record, Status, append
from rooftile.workbench import gatekeeper, ledger
from rooftile.workbench.check import with_gradients
from rooftile.workbench.spread import spread

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 9  # the exit status that the tools are told to leave with
SECONDS = 500.0  # for a tool and an operator
PACKAGE = Path(rooftile.__file__).parent
# Their kernels read what cuBLAS or a kernel of ours has stored by bulk copies; each of their parts is looked at by itself.
READ_BULK_COPIES = {
    "gated_mlp",
    "linear_cross_entropy",
    "linear_cross_entropy_ahead",
    "linear_cross_entropy_frozen",
    "mlp",
    "rotary_attention",
}
# Of a file the words in whose lines accesses are ordered though racecheck does not see it.
ORDERED = {
    "tma.cuh": ("cp.async.bulk.shared::cluster.global.mbarrier",),  # where one lane has said of each warp that it has read
    "v5_hopper_backward.cu": ("sMine[4 * i]",),
    "v6_hopper_wide_backward.cu": ("(sLse2 + ", "(sDelta + ", "sP[j * 128]"),
    "v7_hopper_latent_backward.cu": ("(sDelta + ",),
    "gluon_kernels.py": ("def forward(", "if GROUPS == 2:"),  # Triton's own, before and behind the work of warps
    "gluon_options_kernels.py": ("def forward(", "gl.warp_specialize(", "sTold."),  # and a tile's number, told by one lane
}
# And where a warning is enough: of one lane, the first, which racecheck takes for the last.
ORDERED_IN_A_WARP = {**ORDERED, "mbarrier.cuh": ("mbarrier.init.shared", "mbarrier.arrive.expect_tx.")}


def missing() -> str | None:
    """Why nothing can be looked at here, as a sentence, or None."""
    if shutil.which("compute-sanitizer") is None:
        return "compute-sanitizer is on none of the folders of PATH: it comes with NVIDIA's CUDA toolkit, in its bin"
    return None if torch.cuda.device_count() else "compute-sanitizer looks at kernels on a GPU: this machine has 0 CUDA devices"


def sanitize(names: list[str], progress: Console | None, jobs: int = 1, folder: Path | None = None, lacking: Path | None = None,
             within: float = math.inf) -> dict[str, Any]:  # fmt: skip
    """What the tools say of these operators, or of all: a verdict of each kernel, kept in `folder`. `jobs` of them look at a time, as most of their time is one
    core's; `lacking` such a folder leaves out operators of which every kernel has passed as it is now, and nothing new is begun `within` seconds after the call."""
    end = time.monotonic() + within
    if why := missing():
        raise ValueError(why)
    gatekeeper.can_keep(folder)
    ops = [op for op in gatekeeper.named(names) if op.spec.forward is None]
    if lacking is not None:
        ledger.there(lacking)
        green = ledger.green(lacking, gatekeeper.slug_here(), of=ledger.SANITIZED)
        ops = [op for op in ops if not green.issuperset((o.spec.name, k.name) for o, k in looked_at(op))]
    kernels = {op.spec.name: [(o, k, k.digest) for o, k in looked_at(op)] for op in ops}
    units = [
        (tool, name) for name in sorted(kernels, key=lambda name: "attention" not in name) for tool in tools_for(name)
    ]  # the longest first
    said: dict[str, dict[str, tuple[dict[str, int], str]]] = {name: {} for name in kernels}
    results: list[dict[str, Any]] = []
    with gatekeeper.passing(progress) as bar:
        task = bar.add_task("looking", total=len(units))
        for (tool, name), answer in spread(look, units, jobs, end):
            bar.update(task, advance=1, description=f"{name} {tool}")
            said[name][tool] = answer
            if len(said[name]) == len(tools_for(name)):
                made = [_verdict(o, k, digest, said[name]) for o, k, digest in kernels[name]]
                results += made
                if folder is not None:
                    _keep(made, name, folder)
    counts = {s: sum(r["status"] == s for r in results) for s in ("passed", "failed", "refused")}
    return {**counts, "results": results, "left": [name for name, of in said.items() if len(of) < len(tools_for(name))]}


def looked_at(op: Op) -> list[tuple[Op, Kernel]]:
    """An operator's kernels and its gradient's, which are launched in one process; cuDNN's are not ours."""
    return [(o, k) for o in with_gradients([op]) for k in _ours(o)]


def _ours(op: Op) -> list[Kernel]:
    return [k for k in op.kernels[:-1] if not k.name.startswith("cudnn")]


def tools_for(name: str) -> tuple[str, ...]:
    return tuple(t for t in TOOLS if t != "initcheck" or name not in READ_BULK_COPIES)


def look(tool: str, name: str) -> tuple[dict[str, int], str]:
    """Launches by kernel ("gelu_backward triton") and what is wrong, or nothing."""
    try:
        found = under(tool, "-m", "rooftile.workbench.sanitizer", name)
    except subprocess.TimeoutExpired:
        return {}, f"it had not ended after {SECONDS:g} seconds"
    launches = {kernel: int(n) for kernel, n in re.findall(r"^launched (\S+ \S+) (\d+)$", found.stdout, re.M)}
    return launches, fault(tool, found, bool(launches))


def under(tool: str, *program: str) -> subprocess.CompletedProcess[str]:
    """Python with this program, under a tool. Tensors get memory of their own with a gap behind it, so that a step out of one is not a step into another."""
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "1000" if tool == "racecheck" else "5"]
    words += ["--padding", "4096"] if tool == "memcheck" else []
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run([*words, sys.executable, *program], env=env, capture_output=True, text=True, timeout=SECONDS)


def fault(tool: str, found: subprocess.CompletedProcess[str], ended: bool) -> str:
    """`ended`: whether the program came to its end, where it says what it has launched."""
    if ended and found.returncode == 0:
        return ""
    if ended and tool == "racecheck" and found.returncode == FOUND:
        return next(iter(unexplained(found.stdout)), "")
    reports = re.findall(r"^=+ +((?:Error|Invalid|Uninitialized|Program hit|Race)\b.*(?:\n=+ {5,}\S.*)*)", found.stdout, re.M)
    return reports[0] if reports else (found.stdout + found.stderr).strip()[-1500:] or f"it ended with status {found.returncode}"


def unexplained(report: str) -> list[str]:
    """The races of a report, each from its first line to the last access, of which an access is on no line of ORDERED."""
    races = re.findall(r"^=+ +(?:Error|Warning): Race reported.*(?:\n=+ +and .*)+", report, re.M)
    return [
        race for race in races if not all(ordered(*place, ORDERED_IN_A_WARP if "Warning" in race else ORDERED) for place in places(race))
    ]


def places(race: str) -> list[tuple[str, int]]:
    """The files and lines of a race's accesses; of one that names none for each of its lines, one that nobody knows."""
    made = [(file, int(line)) for file, line in re.findall(r" in (\S+):(\d+)", race)]
    return made if len(made) == len(race.splitlines()) else [("", 0)]


def ordered(file: str, line: int, known: dict[str, tuple[str, ...]]) -> bool:
    return file in known and any(words in source_line(file, line) for words in known[file])


def source_line(file: str, number: int) -> str:
    (found,) = (p for p in PACKAGE.rglob(file))
    return found.read_text(encoding="utf-8").splitlines()[number - 1]


def _verdict(op: Op, kernel: Kernel, digest: str, said: dict[str, tuple[dict[str, int], str]]) -> dict[str, Any]:
    counts = {tool: launches.get(f"{op.spec.name} {kernel.name}", 0) for tool, (launches, _) in said.items()}
    wrong = next((f"{tool}: {why}" for tool, (_, why) in said.items() if why), "")
    status = Status.FAILED if wrong else Status.PASSED if all(counts.values()) else Status.REFUSED
    why = wrong or ("" if status == Status.PASSED else "it takes no small case on this device")
    return {"op": op.spec.name, "kernel": kernel.name, "status": status, "message": why, "digest": digest, "launches": counts}


def _keep(verdicts: Iterable[dict[str, Any]], name: str, folder: Path) -> None:
    run, environment = uuid.uuid4().hex[:10], dict(vars(Environment.here()))
    append(folder / gatekeeper.slug_here() / f"{name}.jsonl", [
        Record(v["op"], v["kernel"], ledger.SANITIZED + v["kernel"], v["status"], method=f"compute-sanitizer: {', '.join(v['launches'])}", message=v["message"],
               digest=v["digest"], run=run, extra=v["launches"], environment=environment)
        for v in verdicts
    ])  # fmt: skip


def launch_all(name: str) -> None:
    launches: dict[str, int] = {}
    for op in with_gradients([OPS[name]]):
        for case in (c for c in op.spec.cases if "smoke" in c.use):
            call = op.spec.draw(case)  # on the CPU: what the tool looks at is ours
            for kernel in _ours(op):
                inputs = {n: _on_gpu(v) for n, v in call.items()}
                if kernel.objection(inputs) is None:
                    kernel.bound(op.config(kernel, inputs))(*inputs.values())
                    launches[f"{op.spec.name} {kernel.name}"] = launches.get(f"{op.spec.name} {kernel.name}", 0) + 1
    torch.cuda.synchronize()
    for of, n in launches.items():
        print(f"launched {of} {n}", flush=True)


def _on_gpu(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_on_gpu(v) for v in value]
    return value.cuda() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    launch_all(sys.argv[1])
