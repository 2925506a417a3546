"""The records as a whole: the latest of each, and which speak of a kernel that is no more."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rooftile.ops  # noqa: F401  fills OPS
from rooftile.core.kernel import OPS
from rooftile.core.record import Record, Status, read
from rooftile.models.atomic import atomic_file
from rooftile.workbench import explain, scaling, suites, training_records

GATE = "gate-"  # and a kernel's name: the case of a record that says what the gate said of it
SANITIZED = "sanitizer-"  # and a kernel's name: of one that says what compute-sanitizer did
HOST = "host-"  # and a case's name: the host's time of a call of it


def every(folder: Path) -> Iterator[tuple[str, Record]]:
    """(device, record) in the order they were written."""
    for file in sorted(folder.glob("*/*.jsonl")):
        for r in read(file):
            yield file.parent.name, r


def latest(folder: Path) -> dict[tuple[str, str, str], list[Record]]:
    """(device, operator, case) -> the records of the last run that measured it, so that what is compared was interleaved; of one that was cut off only
    where there is no whole one. Of a case that its operator has no more there are none: nobody could measure it again. In the order of the operator's cases,
    whenever each was measured."""
    table: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    for device, r in every(folder):
        if _asked(r.op, r.case):
            table.setdefault((device, r.op, r.case), {}).setdefault(r.run, []).append(r)

    def place(key: tuple[str, str, str]) -> tuple[str, str, int, str]:
        device, op, case = key
        return device, op, _places(op).get(case.removeprefix(HOST), -1), case

    return {key: ([x for x in table[key].values() if not _cut_off(x)] or [*table[key].values()])[-1] for key in sorted(table, key=place)}


def left_out(folder: Path, made: Sequence[Record]) -> dict[str, set[str]]:
    """Each peer that earlier runs timed beside cases which `made` has anew without it, and those cases: pages tell of a case's last run alone."""
    beside: dict[tuple[str, str], set[str]] = {}
    for r in made:
        beside.setdefault((r.op, r.case), set()).add(r.kernel)
    here, found = {r.environment.get("gpu") for r in made}, dict[str, set[str]]()
    for _, r in every(folder):
        timed = r.kernel.startswith("peer.") and r.status == Status.PASSED and r.environment.get("gpu") in here
        if timed and r.kernel not in beside.get((r.op, r.case), {r.kernel}):
            found.setdefault(r.kernel.removeprefix("peer."), set()).add(f"{r.op} {r.case}")
    return found


def prune(folder: Path) -> tuple[int, int]:
    """Leave in every file the records of `latest`, as they are written there; how many stay and how many do not. What a later run has measured again no page tells
    any more, and versions of the files are git's to keep."""
    there(folder)
    last = {(device, op, case, r.run) for (device, op, case), records in latest(folder).items() for r in records}
    kept = gone = 0
    for file in sorted(folder.glob("*/*.jsonl")):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        stay = [line for line, r in zip(lines, read(file), strict=True) if (file.parent.name, r.op, r.case, r.run) in last]
        kept, gone = kept + len(stay), gone + len(lines) - len(stay)
        if len(stay) < len(lines):
            with atomic_file(file) as made:
                made.write("".join(f"{line}\n" for line in stay).encode())
    return kept, gone


def _cut_off(records: list[Record]) -> bool:
    """Only processes beside one are written one by one."""
    return records[0].op == scaling.NAME and {f"rooftile.{n}" for n in scaling.RUNS} != {r.kernel for r in records}


@functools.cache
def _asked(op: str, case: str) -> bool:
    return op not in OPS or case.startswith((GATE, SANITIZED, "counters-")) or case.removeprefix(HOST) in _places(op)


@functools.cache
def _places(op: str) -> dict[str, int]:
    return {c.id: i for i, c in enumerate(OPS[op].spec.cases)} if op in OPS else {}


def is_stale(r: Record) -> bool:
    """A peer's record never goes stale by our doing; ours does once the kernel's sources have changed or the kernel is gone. A refusal is no figure: it counts as
    long as that kernel refuses that case in the same words."""
    if not r.digest:
        return False
    if "host_us" in r.extra and "layer_norm_us" not in r.extra:  # which host that was nobody can say
        return True
    if r.op in training_records.MODULES:
        return r.digest != training_records.digest_of_record(r)
    if r.op.startswith(suites.PREFIX):
        return r.digest != suites.suite_digest()
    op = OPS.get(r.op)
    kernel = {k.name: k for k in op.kernels}.get(r.kernel) if op is not None else None
    if kernel is None or op is None or kernel.digest == r.digest:
        return kernel is None
    return r.status != Status.REFUSED or _refusals(r.op, r.case).get(r.kernel) != r.message


UNSTEADY = 0.25  # of a median: where a fifth of a call's samples and four fifths lie further apart, the device waited for something else


def is_unsteady(r: Record) -> bool:
    """By a GPU's clock: on a CPU something else always runs, and a training step's turns are told on its page."""
    return r.us is not None and r.method.startswith("CUDA events") and r.us[2] - r.us[0] > UNSTEADY * r.us[1]


@functools.cache
def _refusals(op: str, case: str) -> dict[str, str]:
    """What an operator's kernels say of a case of its own, those that refuse it: on an H200, as of what decides that alone counts."""
    spec = OPS[op].spec
    if case not in _places(op) or any(a.many for a in (spec.forward or spec).args.values()):
        return {}
    with explain.imagined("cuda"), contextlib.suppress(RuntimeError):
        call = explain.drawn(spec, spec.cases[_places(op)[case]], "cuda")
        return {k.name: why for k in OPS[op].kernels if (why := k.objection(call)) is not None}
    return {}


def due(folder: Path, device: str) -> Callable[..., bool]:
    """Whether a case of an operator, or a training run, lacks a record on this device of what is here now: a kernel of it has changed since, or came after and
    takes it, or a time in it is unsteady."""
    known = latest(folder)

    def asks(op: str, case: str | None = None) -> bool:
        cases = [case] if case is not None else [c for d, o, c in known if (d, o) == (device, op)]
        records = [r for c in cases for r in known.get((device, op, c), ())]
        every = op in OPS and not (case or "").startswith(HOST)  # of a call the host's time is that of who is chosen
        kernels = {k.name for k in OPS[op].kernels[:-1] or OPS[op].kernels} if every else set()
        lacking = kernels - {r.kernel for r in records}  # who came after and refuses the case has no figure to give
        return (
            not records
            or any(map(is_stale, records))
            or any(map(is_unsteady, records))
            or _cut_off(records)
            or bool(lacking and (case is None or not lacking <= {*_refusals(op, case)}))
        )

    return asks


def green(folder: Path, device: str, environment: Mapping[str, str] | None = None, of: str = GATE) -> set[tuple[str, str]]:
    """(operator, kernel) of those whose every verdict on this device was right, of their sources as they are now; and with this environment's GPU and software.
    `of`: whose verdicts, the gate's or compute-sanitizer's."""
    alike = {n: environment[n] for n in ("gpu", "driver", "cuda", "torch", "triton")} if environment is not None else {}
    return {
        (op, r.kernel)
        for (d, op, case), records in latest(folder).items()
        for r in records
        if d == device
        and case.startswith(of)
        and r.status in (Status.PASSED, Status.REFUSED)
        and not is_stale(r)
        and alike.items() <= r.environment.items()
    }


def chosen_and_fastest(folder: Path) -> Iterator[tuple[str, Record, Record]]:
    """(device, whom it would choose, who was fastest there of those that take the call) of every case with current records. Of what decides but the measured
    choices a device is an H200. What needs a library that is not here is left out, and so are lists of tensors, and calls that even imagined tensors want
    a GPU for."""
    for (device, name, case_id), records in latest(folder).items():
        op = OPS.get(name)
        case = next((c for c in op.spec.cases if c.id == case_id), None) if op is not None else None
        if op is None or case is None or any(a.many for a in (op.spec.forward or op.spec).args.values()):
            continue
        with explain.imagined("cuda", device), contextlib.suppress(RuntimeError):
            call = explain.drawn(op.spec, case, "cuda")
            able = {k.name for k in op.kernels if k.objection(call) is None}
            told = [r for r in records if r.kernel in able and r.us and r.status == Status.PASSED]
            ours = {r.kernel: r for r in told if not is_stale(r) and not is_unsteady(r)}
            chosen = op.choose(call).kernel.name
            if chosen in ours:
                yield device, ours[chosen], min(ours.values(), key=_us)


def apart(slower: Record, faster: Record) -> bool:
    """By more than a twentieth, by which two runs may differ, and 5 us, which a launch costs."""
    return _us(slower) > max(1.05 * _us(faster), _us(faster) + 5)


def _us(r: Record) -> float:
    return r.us[1] if r.us else float("inf")


def overview(folder: Path, only_stale: bool) -> list[dict[str, Any]]:
    there(folder)
    rows = [
        {
            "device": device,
            "op": r.op,
            "kernel": r.kernel,
            "case": r.case,
            "us": r.us[1] if r.us else None,
            "run": r.run,
            "stale": is_stale(r),
            "unsteady": is_unsteady(r),
        }
        for (device, _, _), records in latest(folder).items()
        for r in records
    ]
    return [r for r in rows if r["stale"] or r["unsteady"] or not only_stale]


def there(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder of records")
    if lying := [f.name for f in sorted(folder.glob("*.jsonl"))]:
        raise ValueError(f"{folder} is a device's folder, {len(lying)} files as {lying[0]} lie in it: that of records is {folder.parent}")


def nothing(folder: Path) -> str:
    """Why `overview` has no row. Records of cases that are no more are not current ones."""
    lying = sum(1 for _ in every(folder))
    if not lying:
        return f"no records: {folder} has 0 in a device's folders, as {folder / 'nvidia-h200' / 'softmax.jsonl'}"
    if not latest(folder):
        return f"no record that counts: of {lying} in {folder} 0 are of a case that their operator has now"
    return "nothing is stale"
