"""`rooftile tune`: every kernel and every config on the bench cases; the fastest right one is remembered for this device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
             verdicts: Path | None = None) -> list[Record]:  # fmt: skip
    """`every`: try every config of kernels whose name begins so, and of the others the heuristic's alone. `verdicts`: as bench.Session takes them."""
    if not torch.cuda.is_available():
        raise ValueError("tuning needs a CUDA device, this machine has 0; without tuned records the heuristics choose")
    session = Session("cuda", verdicts)
    ops = gatekeeper.named(names)
    session.hold(ops)
    todo = [(op, c) for op, c in timed_cases(ops, only) if sum(max(1, len(k.configs)) for k in op.kernels[:-1]) > 1]
    if jobs != 1:
        session.prepare(todo, [], jobs, every)
    winners = []
    with gatekeeper.passing(progress) as bar:
        task = bar.add_task("tuning", total=len(todo))
        for op, key, cases in _alike(todo):
            trials = []
            for case in cases:
                bar.update(task, advance=1, description=f"{op.spec.name} {case.id}")
                trials.append(_tried(session, op, op.spec.draw(case, 0, session.where), case, every))
            found = [t for t in trials if t is not None]
            winner = _together(found) if len(found) == len(cases) else None
            if winner is not None:
                name, trial = winner
                t = trial.compared.timings[name]
                kernel, config = trial.who[name]
                record = session.record(op, kernel, key, status=Status.PASSED, config=config, us=(t.p20, t.us, t.p80), method=trial.compared.method,
                                        extra={"tried": {c.id: _in_order(each) for c, each in zip(cases, found)}})  # fmt: skip
                winners.append(record)
                device = dev.slug(session.where)
                append(tune.shipped(device), [record]) if ship else tune.remember(device, [record])
                op.forget()
    return winners


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
    """What was timed on one case, and which kernel and config each name stands for."""

    compared: timing.Comparison
    who: dict[str, tuple[str, dict[str, Any]]]


def _in_order(trial: _Trial) -> dict[str, float]:
    return {n: round(t.us, 2) for n, t in sorted(trial.compared.timings.items(), key=lambda i: i[1].us)}


def _together(trials: list[_Trial]) -> tuple[str, _Trial] | None:
    """Of those who take all of the cases, who is behind the fastest of each by the least factor, all factors together; and the case that it is slowest on."""
    us = [{n: t.us for n, t in trial.compared.timings.items()} for trial in trials]
    everywhere = [n for n in us[0] if all(n in each for each in us)]
    if not everywhere:
        return None
    name = min(everywhere, key=lambda n: math.prod(each[n] / min(each.values()) for each in us))
    return name, max(trials, key=lambda trial: trial.compared.timings[name].us)


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


def _tried(session: Session, op: Op, call: dict[str, Any], case: Any, every: str) -> _Trial | None:
    own = own_run(op.spec, case, call, session.where)
    versions: dict[str, Any] = {}
    who: dict[str, tuple[str, dict[str, Any]]] = {}
    for kernel in op.kernels[:-1]:
        if kernel.objection(call) is not None or session.green(op, kernel):
            continue
        configs = kernel.configs if kernel.name.startswith(every) else (kernel.heuristic(call),)
        for config in configs or ({},):
            run = kernel.bound(config)
            try:
                right = distance(op.spec, run, call, own) <= LIMIT[op.spec.io(call)]
            except Exception:  # a config that does not fit this device is no candidate here
                continue
            if right:
                name = f"{kernel.name} {dict(config)}"
                versions[name], who[name] = partial(run, *call.values()), (kernel.name, dict(config))
    if not versions:
        return None
    with torch.no_grad():
        compared = timing.compare(versions, session.where, budget_ms=40)
    return _Trial(compared, who)
