"""`rooftile tune`: every kernel and every config on the bench cases; the fastest right one is remembered for this device."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rooftile.core import device as dev
from rooftile.core import timing, tune
from rooftile.core.kernel import OPS, Op
from rooftile.core.record import Record, Status, append
from rooftile.workbench import explain, gatekeeper, ledger
from rooftile.workbench.bench import LIMIT, Session, distance, timed_cases
from rooftile.workbench.peers import own_run


def tune_ops(names: list[str], only: str, ship: bool, progress: Console | None, every: str = "", jobs: int = 1,
             verdicts: Path | None = None, within: float = math.inf) -> tuple[list[Record], list[str]]:  # fmt: skip
    """A record of each choice, and the names of cases that no time was left for: none is begun after `within` seconds. `every`: try every config of kernels whose
    name begins so, and of the others the heuristic's alone. `verdicts`: as bench.Session takes them. Who is not timed is told, with what the gate or a call said."""
    if not torch.cuda.is_available():
        raise ValueError("tuning needs a CUDA device, this machine has 0; without tuned records the heuristics choose")
    end = time.monotonic() + within
    session = Session("cuda", verdicts)
    ops = gatekeeper.named(names)
    session.hold(ops)
    todo = [(op, c) for op, c in timed_cases(ops, only) if sum(max(1, len(k.configs)) for k in op.kernels[:-1]) > 1]
    if jobs != 1:
        session.prepare(todo, [], jobs, every, end)
    winners, left = list[Record](), list[str]()
    with gatekeeper.passing(progress) as bar:
        task = bar.add_task("tuning", total=len(todo))
        for op, key, cases in _alike(todo):
            if time.monotonic() >= end:
                left += [f"{op.spec.name} {case.id}" for case in cases]
                continue
            trials = []
            for case in cases:
                bar.update(task, advance=1, description=f"{op.spec.name} {case.id}")
                trials.append(_tried(session, op, op.spec.draw(case, 0, session.where), case, every))
                if progress is not None:
                    for name, why in trials[-1].left_out.items():
                        progress.print(
                            f"{op.spec.name} {case.id}: {name} is not timed: {why}", style="yellow", highlight=False, markup=False
                        )
            winner = _together(trials)
            if winner is not None:
                name, trial = winner
                t = trial.timings[name]
                kernel, config = trial.who[name]
                told: dict[str, Any] = {"tried": {c.id: _in_order(each) for c, each in zip(cases, trials)}}
                if out := {c.id: each.left_out for c, each in zip(cases, trials) if each.left_out}:
                    told["left_out"] = out
                record = session.record(
                    op, kernel, key, status=Status.PASSED, config=config, us=(t.p20, t.us, t.p80), method=trial.method, extra=told
                )
                winners.append(record)
                device = dev.slug(session.where)
                append(tune.shipped(device), [record]) if ship else tune.remember(device, [record])
                op.forget()
    return winners, left


def _alike(todo: list[tuple[Op, Any]]) -> list[tuple[Op, str, list[Any]]]:
    """Cases that a choice cannot tell apart, as it does not look into tensors (rows that are as long as each other, or one that is half of all), together."""
    found: dict[tuple[str, str], tuple[Op, str, list[Any]]] = {}
    for op, case in todo:
        with explain.imagined("cuda"):
            key = tune.key(explain.drawn(op.spec, case, "cuda"))
        found.setdefault((op.spec.name, key), (op, key, []))[2].append(case)
    return list(found.values())


@dataclass(frozen=True)
class _Trial:
    """What was timed on one case, which kernel and config each name stands for, and why others were not."""

    timings: dict[str, timing.Timing]
    who: dict[str, tuple[str, dict[str, Any]]]
    left_out: dict[str, str] = field(default_factory=dict)
    method: str = ""


def _in_order(trial: _Trial) -> dict[str, float]:
    return {n: round(t.us, 2) for n, t in sorted(trial.timings.items(), key=lambda i: i[1].us)}


def _together(trials: list[_Trial]) -> tuple[str, _Trial] | None:
    """Of those who take all of the cases, who is behind the fastest of each by the least factor, all factors together; and the case that it is slowest on."""
    us = [{n: t.us for n, t in trial.timings.items()} for trial in trials]
    everywhere = [n for n in us[0] if all(n in each for each in us)]
    if not everywhere:
        return None
    name = min(everywhere, key=lambda n: math.prod(each[n] / min(each.values()) for each in us))
    return name, max(trials, key=lambda trial: trial.timings[name].us)


def from_records(folder: Path) -> list[Record]:
    """Of cases that were benched, where another kernel was faster than who is chosen by more than two runs may differ: a choice each, shipped with the
    package. Nothing is timed; a choice is its record's, digest and all, so it counts until that kernel changes."""
    ledger.there(folder)
    winners: dict[str, list[Record]] = {}
    for device, chosen, fastest in ledger.chosen_and_fastest(folder):
        if ledger.apart(chosen, fastest):
            op = OPS[fastest.op]
            case = next(c for c in op.spec.cases if c.id == fastest.case)
            with explain.imagined("cuda"):
                winners.setdefault(device, []).append(replace(fastest, case=tune.key(explain.drawn(op.spec, case, "cuda"))))
    for device, made in winners.items():
        append(tune.shipped(device), made)
    return [r for made in winners.values() for r in made]


def _tried(session: Session, op: Op, call: dict[str, Any], case: Any, every: str) -> _Trial:
    own, limit = own_run(op.spec, case, call, session.where), LIMIT[op.spec.io(call)]
    versions: dict[str, Any] = {}
    who: dict[str, tuple[str, dict[str, Any]]] = {}
    left_out = {}
    for kernel in op.kernels[:-1]:
        if kernel.objection(call) is not None:
            continue
        if why := session.green(op, kernel):
            left_out[kernel.name] = f"the gate says: {why}"
            continue
        configs = kernel.configs if kernel.name.startswith(every) else (kernel.heuristic(call),)
        for config in configs or ({},):
            name, run = f"{kernel.name} {dict(config)}", kernel.bound(config)
            try:
                off = distance(op.spec, run, call, own)
            except Exception as error:  # it may not fit this device
                left_out[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                continue
            if off <= limit:
                versions[name], who[name] = partial(run, *call.values()), (kernel.name, dict(config))
            else:
                left_out[name] = f"it is {off:.3g} off, {limit:g} is allowed"
    if not versions:
        return _Trial({}, {}, left_out)
    with torch.no_grad():
        compared = timing.compare(versions, session.where, budget_ms=40)
    return _Trial(compared.timings, who, left_out, compared.method)
