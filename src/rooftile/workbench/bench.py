"""Time what passed the gate beside its peers, in one process, interleaved, cold L2; every figure becomes a Record."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from rooftile.core import device as dev
from rooftile.core import timing
from rooftile.core.device import Ceilings
from rooftile.core.kernel import OPS, Kernel, Op, nearest
from rooftile.core.record import Environment, Record, Status, append
from rooftile.core.spec import Case, OpSpec
from rooftile.workbench import check as gate
from rooftile.workbench import gatekeeper, ledger, scaling, training_records
from rooftile.workbench.peers import AHEAD, PEERS, Run, copy_run, importable, own_run, peer_run
from rooftile.workbench.spread import CROWDED, Unit, spread


class Session:
    """One process's measurements: they share a run id, a device and its ceilings."""

    def __init__(self, device: str, verdicts: Path | None = None):
        """`verdicts`: a folder of records that may say what the gate has said here already."""
        self.where = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self.run = uuid.uuid4().hex[:10]
        self.ceilings = dev.ceilings(self.where, refresh=device == "cuda")
        self.environment = dict(vars(Environment.here()))
        self.passed = ledger.green(verdicts, dev.slug(self.where), self.environment) if verdicts is not None else set()
        self._green: dict[tuple[str, str], str] = {}
        self.spent: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Seconds of this process, added to what was spent on the like: a device's time is dear, and most of it is not the clock's."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[on] += time.monotonic() - began

    def hold(self, ops: list[Op]) -> None:
        """Take the digests of what has just been imported: a source that is edited while the clock runs is not what was timed."""
        for op in ops:
            for kernel in op.kernels:
                _ = kernel.digest

    def green(self, op: Op, kernel: Kernel) -> str:
        """Why this kernel may not be timed: the gate's first complaint on its check cases, or nothing; of who has passed as it is now, with the software that
        is here, as records say, nothing."""
        key = (op.spec.name, kernel.name)
        if key in self.passed:
            return ""
        if key not in self._green:
            self._green[key] = complaint(*key, self.where.type)
        return self._green[key]

    def prepare(self, todo: list[tuple[Op, Case]], against: list[str], jobs: int, every: str | None = None, end: float = math.inf) -> None:
        """Before any clock starts, in `jobs` processes: what the gate says of every kernel whose verdict nobody has, and what takes long to compile of what
        will be timed; CUDA C++, which takes a second at most, only where every config is tried. What fails to compile there, be it for want of memory beside
        so many others, fails or not when its turn comes. After `end` (time.monotonic) nothing new is begun."""
        of = {op.spec.name: op for op, _ in todo}
        self._judge(of, jobs, end)
        units: list[Unit] = []
        for name, op in of.items():
            cases = tuple(c.id for other, c in todo if other is op)
            slow = (k.name for k in op.kernels[:-1] or op.kernels if every is not None or not k.sources)
            units += [(name, kernel, self.where.type, cases, every) for kernel in slow]
            units += [(name, f"peer.{p}", self.where.type, (c,), None) for c in cases for p in against if p in COMPILED]
        for _ in spread(warm, units, jobs, end):
            pass

    def _judge(self, of: dict[str, Op], jobs: int, end: float) -> None:
        strangers = {
            name: tuple(k.name for k in op.kernels[:-1] or op.kernels if (name, k.name) not in self.passed) for name, op in of.items()
        }
        judged = [
            (n, c.id, self.where.type, strangers[n]) for n, op in of.items() for c in op.spec.cases if strangers[n] and "check" in c.use
        ]
        heard = dict(spread(complaints, judged, jobs, end))
        for name, kernels in strangers.items():
            for kernel in kernels:
                # without a verdict, another kernel has killed the device before, or there was no time
                whys = [heard.get(unit, {}).get(kernel, CROWDED) for unit in judged if unit[0] == name]
                if not any(CROWDED in why for why in whys):
                    self._green[name, kernel] = next((why for why in whys if why), "")

    def record(self, op: Op, kernel: str, case: str, **facts: Any) -> Record:
        ours = {k.name: k for k in op.kernels}.get(kernel)
        return Record(op.spec.name, kernel, case, **facts, digest=ours.digest if ours else "", run=self.run, environment=self.environment)


HOST_METHOD = "host time a call, perf_counter, in turn, median"
YARDSTICK = "F.layer_norm"
COMPILED = ("compile", "liger", "quack", "fa4", "flex")  # peers that leave what they have compiled on disk


def complaint(op: str, kernel: str, device: str) -> str:
    """The gate's first complaint about a kernel, or nothing."""
    points = [gate.Point(OPS[op], OPS[op].kernel(kernel), c) for c in OPS[op].spec.cases if "check" in c.use]
    return next(filter(None, map(_said, gate.run_points(points, device))), "")


def complaints(op: str, case: str, device: str, kernels: tuple[str, ...]) -> dict[str, str]:
    """The gate's complaint about each of these kernels on one check case, which they share, or nothing."""
    (posed,) = (c for c in OPS[op].spec.cases if c.id == case and "check" in c.use)
    points = [gate.Point(OPS[op], OPS[op].kernel(k), posed) for k in kernels]
    return {v.kernel: _said(v) for v in gate.run_points(points, device)}


def _said(v: gate.Verdict) -> str:
    return f"{v.case}: {v.message}" if v.status in (Status.FAILED, Status.ERROR) else ""


def warm(op: str, version: str, device: str, cases: tuple[str, ...], every: str | None) -> None:
    """Run a kernel or a peer once on each of these bench cases, for what that compiles: of kernels whose name begins with `every`, every config. What fails
    is a fact, and found again where it is recorded."""
    for case in (c for c in OPS[op].spec.cases if "bench" in c.use and c.id in cases):
        with contextlib.suppress(Exception):
            for run in _versions(OPS[op], version, case, torch.device(device), every):
                with contextlib.suppress(Exception), torch.no_grad():
                    run()
        if device == "cuda":
            torch.cuda.empty_cache()


def _versions(op: Op, version: str, case: Case, where: torch.device, every: str | None) -> list[Run]:
    call = op.spec.draw(case, 0, where)
    if version.startswith("peer."):
        run = peer_run(version.removeprefix("peer."), op.spec, case, call, where)
        return [] if run is None else [run]
    kernel = op.kernel(version)
    if kernel.objection(call) is not None:
        return []
    configs = kernel.configs if every is not None and version.startswith(every) else ()
    return [functools.partial(kernel.bound(c, save=False), *call.values()) for c in configs or (op.config(kernel, call),)]


def bench(
    names: list[str],
    against: list[str],
    device: str,
    only: str,
    progress: Console | None,
    folder: Path | None,
    jobs: int = 1,
    lacking: Path | None = None,
    within: float = math.inf,
    verdicts: Path | None = None,
) -> tuple[list[Record], list[str]]:
    """What was measured, and what was left: nothing new is begun `within` seconds after the call. With `lacking`, a folder of records, only what is not
    in it as it is now: what has changed since, and what was never measured; of operators and training runs alike where none is named. `verdicts`: as
    Session takes them."""
    end = time.monotonic() + within
    device = gatekeeper.resolve(device)
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: what it runs has no clock; cpu and cuda have one")
    against = [importable(nearest(p.strip(), list(PEERS), "peer")) for p in against]
    for name in names:
        nearest(name, [*OPS, *training_records.MODULES], "operator or training run")
    steps = [n for n in names if n in training_records.MODULES]
    if steps and device != "cuda":
        raise ValueError(f"{steps[0]} trains on a CUDA device, this is {device}; rooftile train has models of its size")
    ops = gatekeeper.named([n for n in names if n not in steps]) if len(steps) < len(names) or not names else []
    calls = called_cases(ops, only, against) if device == "cuda" else []
    todo = timed_cases(ops, only, alone=not calls) if ops else []
    gatekeeper.can_keep(folder)
    if lacking is not None:
        ledger.there(lacking)
    session, left = Session(device, verdicts), list[str]()
    if lacking is not None:
        steps = steps if names or device != "cuda" else [*training_records.MODULES]
        due = ledger.due(lacking, dev.slug(session.where))
        steps, todo = [n for n in steps if due(n)], [(op, c) for op, c in todo if due(op.spec.name, c.id)]
        calls = [(op, c, peers) for op, c, peers in calls if due(op.spec.name, ledger.HOST + c.id)]
        ops = [op for op in ops if any(op is other for other, *_ in (*todo, *calls))]
        if scaling.NAME in steps and not names and torch.cuda.device_count() < 2:  # nobody has asked for it by name
            steps.remove(scaling.NAME)
            left.append(scaling.NAME)
    session.hold(ops)
    made: list[Record] = []
    while steps and time.monotonic() < end:
        name = steps.pop(0)
        if name == scaling.NAME:
            made += scaling.bench(session.where, session.run, progress, folder)
        else:
            made += training_records.bench(name, against, session.where, session.run, progress, folder)
    if jobs != 1 and todo and time.monotonic() < end:
        began = time.monotonic()
        session.prepare(todo, against, jobs, end=end)
        if progress is not None:
            progress.print(f"judged and compiled in {time.monotonic() - began:.0f} s", style="dim")
    if device == "cpu" and progress is not None and todo and time.monotonic() < end:
        progress.print(f"{len(todo)} cases of a GPU's sizes on a CPU take long: --case chooses, --within ends it", style="dim")
    with gatekeeper.passing(progress) as bar:
        task = bar.add_task("timing", total=len(todo) + len(calls))
        while (todo or calls) and time.monotonic() < end:
            op, case, *peers = calls.pop(0) if calls else todo.pop(0)
            bar.update(task, advance=1, description=f"{op.spec.name} {case.id}")
            fresh = _calls(session, op, case, *peers) if peers else _case(session, op, case, against)
            made += fresh
            if folder is not None:  # as we go: a run that is cut off keeps what it measured
                append(folder / dev.slug(session.where) / f"{op.spec.name.removesuffix('_backward')}.jsonl", fresh)
    if progress is not None and session.spent:
        told = sorted(session.spent.items(), key=lambda of: -of[1])
        progress.print("seconds: " + ", ".join(f"{on} {spent:.1f}" for on, spent in told), style="dim")
    return made, left + steps + [f"{op.spec.name} {ledger.HOST}{c.id}" for op, c, _ in calls] + [f"{op.spec.name} {c.id}" for op, c in todo]


def timed_cases(ops: list[Op], only: str, alone: bool = True) -> list[tuple[Op, Case]]:
    """The bench cases whose name contains `only`; there must be one, unless something else is timed as well."""
    every = [(op, c) for op in ops for c in op.spec.cases if "bench" in c.use]
    todo = [(op, c) for op, c in every if only in c.id]
    if not todo and alone:
        raise ValueError(
            f"--case {only!r} is in the name of none of {len(every)} bench cases" + (f", as {every[0][1].id}" if every else "")
        )
    return todo


def _case(session: Session, op: Op, case: Case, against: list[str]) -> list[Record]:
    with session.spending("inputs"):
        call = op.spec.draw(case, 0, session.where)
        own = own_run(op.spec, case, call, session.where)
    versions: dict[str, Run] = {}
    facts: dict[str, dict[str, Any]] = {}
    for kernel in op.kernels[:-1] or op.kernels:
        with session.spending("kernels' first calls"):
            fact, run = _candidate(session, op, kernel, call, own)
        facts[kernel.name] = fact
        if run is not None:
            versions[kernel.name] = run
    for name in against:
        with session.spending("peers' first calls"):
            fact, run = _peer(op.spec, case, call, session.where, name, own)
        if fact:
            facts[f"peer.{name}"] = fact
        if run is not None:
            versions[f"peer.{name}"] = run
    if not versions:
        return [session.record(op, n, case.id, **f) for n, f in facts.items()]
    moved = op.spec.floor_bytes(call)
    operations = op.spec.operations(call, case.dims)
    floor = session.ceilings.floor_us(moved, operations, case.dtype)
    if session.ceilings.floor_us(moved, 0, case.dtype) >= floor:  # bytes decide: what a copy of as many takes is the yardstick
        facts["peer.copy"], versions["peer.copy"] = {"status": Status.PASSED}, copy_run(moved, session.where)
    with torch.no_grad(), session.spending("clocks"):
        peaks = {n: _peak_bytes(run, session.where) for n, run in versions.items()}
        compared = timing.compare(versions, session.where)
    records = []
    for name, fact in facts.items():
        if name in versions:
            t = compared.timings[name]
            fact |= {"us": (t.p20, t.us, t.p80), "gbps": moved / t.us / 1e3, "tflops": operations / t.us / 1e6, "of_ceiling": floor / t.us,
                     "method": compared.method, "extra": {"noise": compared.noise, "samples": t.samples, **peaks[name]}}  # fmt: skip
            if session.where.type == "cuda" and (why := disbelief(session.ceilings, name, t.us, moved, operations, case.dtype)):
                fact |= {"status": Status.ERROR, "message": why}
        records.append(session.record(op, name, case.id, **fact))
    return records


def disbelief(ceilings: Ceilings, name: str, us: float, moved: float, operations: float, dtype: torch.dtype) -> str:
    """Why this time cannot be right, or nothing. A peer is asked for bytes alone: it may have kept what ours make again, as logits for a gradient."""
    operations = 0 if name.startswith("peer.") else operations
    if us >= ceilings.believable_us(moved, operations, dtype):
        return ""
    return f"{ceilings.floor_us(moved, operations, dtype) / us:.0%} of the measured ceiling: a broken measurement, not a fast kernel"


def _peak_bytes(run: Run, where: torch.device) -> dict[str, int]:
    """The most memory that one call holds at a time beside its arguments, results included, as PyTorch's allocator counts it."""
    if where.type != "cuda":
        return {}
    torch.cuda.synchronize(where)
    before = torch.cuda.memory_allocated(where)
    torch.cuda.reset_peak_memory_stats(where)
    run()
    torch.cuda.synchronize(where)
    return {"peak_bytes": torch.cuda.max_memory_allocated(where) - before}


def _candidate(session: Session, op: Op, kernel: Kernel, call: dict[str, Any], own: Run | None) -> tuple[dict[str, Any], Run | None]:
    why = kernel.objection(call)
    if why is not None:
        return {"status": Status.REFUSED, "message": why}, None
    why = session.green(op, kernel)
    if why:
        return {"status": Status.FAILED, "message": why}, None
    config = op.config(kernel, call)
    run = kernel.bound(config)
    try:
        error = distance(op.spec, run, call, own)
    except Exception as problem:  # out of resources on this device, say: a fact like any other
        return {"status": Status.ERROR, "config": dict(config), "message": f"{type(problem).__name__}: {problem}"[:300]}, None
    if error > LIMIT[op.spec.io(call)]:
        return {
            "status": Status.FAILED,
            "errors": {"to_torch": error},
            "message": f"{error:.3g} away from PyTorch's result at this size",
        }, None
    timed = functools.partial(kernel.bound(config, save=False), *call.values())
    return {"status": Status.PASSED, "config": dict(config), "errors": {"to_torch": error}}, _both_ways(op, timed, call)


def _both_ways(op: Op, run: Run, call: dict[str, Any]) -> Run:
    """With what is left for the backward of a forward that makes the gradients, as a peer beside it is timed both ways."""
    if op.spec.name not in AHEAD:
        return run
    backward = op.backward
    assert backward is not None
    upstream = {f"d{n}": torch.ones(()).to(call["x"].device) for n in op.spec.returns}

    def both() -> Any:
        made = run()
        known = {**call, **dict(zip(op.spec.returns, made)), **upstream}
        return backward.launch(*(known[n] for n in backward.names))

    return both


def _peer(
    spec: OpSpec, case: Case, call: dict[str, Any], where: torch.device, name: str, own: Run | None
) -> tuple[dict[str, Any], Run | None]:
    """A peer that does run and computes the same; one that does not is an ERROR with its words, and the others are timed without it."""
    try:
        run = peer_run(name, spec, case, call, where)
        if run is None:
            return {}, None
        made, wanted = _results(run()), _results(own()) if own is not None else []
        for a, b in zip(made, wanted):
            if a.numel() > 1 and a.element_size() < b.element_size():
                raise TypeError(f"it gives {a.dtype} where PyTorch gives {b.dtype}, which are fewer bytes to write")
        error = _apart(made, wanted)
    except torch.AcceleratorError:
        raise
    except Exception as problem:
        return {"status": Status.ERROR, "message": f"{type(problem).__name__}: {problem}"[:300]}, None
    if error > LIMIT[spec.io(call)]:
        return {"status": Status.ERROR, "errors": {"to_torch": error}, "message": f"{error:.3g} away from PyTorch's result"}, None
    return {"status": Status.PASSED, "errors": {"to_torch": error} if own is not None else {}}, run


# Two roundings and PyTorch's own error between two right answers; whole numbers are right or wrong, 8 bits are made into bfloat16.
LIMIT = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.int32: 0.0, torch.int64: 0.0,
         torch.int8: 2e-2, torch.float8_e4m3fn: 2e-2, torch.float8_e5m2: 2e-2}  # fmt: skip


def distance(spec: OpSpec, run: Callable[..., Any], call: dict[str, Any], own: Run | None) -> float:
    """Relative error at the bench size, where float64 would not fit, against PyTorch's own result, or where it has none or writes in place the
    reference's; the gate has judged the small ones."""
    with torch.no_grad(), gate.poisoned():
        ours = gate.outcome(spec, run, call)
    if own is not None and not any(a.mutated for a in spec.args.values()):
        return _apart(ours, _results(own()))
    with torch.no_grad():
        return _apart(ours, gate.outcome(spec, spec.reference, call))


def _results(made: Any) -> list[Tensor]:
    return [t for t in (made if isinstance(made, (tuple, list)) else [made]) if t is not None]


def _apart(ours: list[Tensor], own: list[Tensor]) -> float:
    worst = 0.0
    for a, b in ((a.float(), b.float()) for a, b in zip(ours, own) if a.numel()):
        same = (a == b) | (a.isnan() & b.isnan())  # of a mask most is -inf, as it should be
        error = float(torch.where(same, 0.0, a - b).norm() / torch.where(b.isfinite(), b, 0.0).norm().clamp_min(1e-30))
        worst = max(worst, error if error == error else math.inf)  # what was not written is NaN, and max(0.0, nan) is 0.0
    return worst


def called_cases(ops: list[Op], only: str, against: list[str]) -> list[tuple[Op, Case, list[str]]]:
    """What is called without gradient for the host's time, with the peers beside it: a tensor so small that nothing else costs beside PyTorch's, and those
    that the spec calls small beside every peer's. Of these the ones in whose name, which begins with `host-`, is `only`."""
    found: list[tuple[Op, Case, list[str]]] = []
    for op in ops:
        least = next((c for c in op.spec.cases if "smoke" in c.use and c.dtype == torch.bfloat16), None)
        if op.spec.forward is None and least is not None:
            found.append((op, least, [p for p in against if p == "torch"]))
            found += [(op, c, against) for c in op.spec.cases if "call" in c.use]
    return [(op, c, peers) for op, c, peers in found if only in ledger.HOST + c.id]


def _calls(session: Session, op: Op, case: Case, peers: list[str]) -> list[Record]:
    """In turn with `F.layer_norm`, whose cost tells hosts apart: a record's `layer_norm_us`. A peer that does not take this call is a fact too: those
    written for whole blocks, say."""
    call = op.spec.draw(case, 0, session.where)
    args = tuple(call.values())
    offered: dict[str, Run | None] = {op.choose(call).kernel.name: _both_ways(op, lambda: op(*args), call)}
    offered |= {f"peer.{p}": peer_run(p, op.spec, case, call, session.where) for p in peers}
    versions = {n: run for n, run in offered.items() if run is not None}
    with torch.no_grad():
        refused = {n: why for n, run in versions.items() if (why := _refusal(run))}
        took = timing.hosts(
            {n: run for n, run in versions.items() if n not in refused} | {YARDSTICK: _yardstick(session.where)}, session.where
        )
    facts: dict[str, dict[str, Any]] = {n: {"status": Status.ERROR, "message": why} for n, why in refused.items()}
    yard = took.pop(YARDSTICK)
    facts |= {
        n: {"status": Status.PASSED, "method": HOST_METHOD, "extra": {"host_us": us, "layer_norm_us": yard}} for n, us in took.items()
    }
    return [session.record(op, n, ledger.HOST + case.id, **facts[n]) for n in versions]


def _yardstick(where: torch.device) -> Run:
    x, weight, bias = (torch.ones(shape, dtype=torch.bfloat16, device=where) for shape in ((29, 67), 67, 67))
    return lambda: torch.nn.functional.layer_norm(x, (67,), weight, bias)


def _refusal(run: Run) -> str:
    """What a first call says, or nothing."""
    try:
        run()
    except torch.AcceleratorError:
        raise
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:300]
    return ""


def table(records: list[Record]) -> Table:
    names = ("operator", "case", "kernel", "us", "GB/s", "TFLOP/s", "of ceiling", "")
    made = Table(*(Column(name, overflow="fold") for name in names))
    for r in records:
        note = "" if r.status == Status.PASSED else f"{r.status}: {r.message}"
        if "host_us" in r.extra:
            note = f"host {r.extra['host_us']:.1f} us"
        elif not note and "tokens_per_s" in r.extra:
            note = f"{r.extra['tokens_per_s']:,.0f} tokens/s"
        elif not note and r.us and ledger.is_unsteady(r):
            note = f"unsteady, {r.us[0]:.1f} to {r.us[2]:.1f}: something else had the device or its host"
        took = f"{r.us[1]:.1f}" if r.us else ""
        figures = [took, f"{r.gbps:.0f}", f"{r.tflops:.1f}", f"{r.of_ceiling:.0%}"] if r.us and r.gbps is not None else [took, "", "", ""]
        made.add_row(r.op, r.case, r.kernel, *figures, Text(note))  # whatever was raised: brackets in it are no markup
    return made
