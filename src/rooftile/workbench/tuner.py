"""`rooftile tune`: every kernel and every config on the bench cases; the fastest right one is remembered for this device."""

from __future__ import annotations

from dataclasses import replace
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
        for op, case in todo:
            bar.update(task, advance=1, description=f"{op.spec.name} {case.id}")
            winner = _fastest(session, op, op.spec.draw(case, 0, session.where), case, every)
            if winner is not None:
                winners.append(winner)
                name = dev.slug(session.where)
                append(tune.shipped(name), [winner]) if ship else tune.remember(name, [winner])
                op.forget()
    return winners


def from_records(folder: Path) -> list[Record]:
    """Of cases that were benched, where another kernel was faster than who is chosen by more than two runs may differ: a choice each, shipped with the
    package. Nothing is timed; a choice is its record's, digest and all, so it counts until that kernel changes."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder of records")
    winners: dict[str, list[Record]] = {}
    for device, chosen, fastest in ledger.chosen_and_fastest(folder):
        if ledger.apart(chosen, fastest):
            op = OPS[fastest.op]
            case = next(c for c in op.spec.cases if c.id == fastest.case)
            with explain.imagined("cuda"):
                winners.setdefault(device, []).append(replace(fastest, case=tune.key(explain.blank(op.spec, case, "cuda"))))
    for device, made in winners.items():
        append(tune.shipped(device), made)
    return [r for made in winners.values() for r in made]


def _fastest(session: Session, op: Op, call: dict[str, Any], case: Any, every: str) -> Record | None:
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
    name = min(compared.timings, key=lambda n: compared.timings[n].us)
    t = compared.timings[name]
    others = {n: round(x.us, 2) for n, x in sorted(compared.timings.items(), key=lambda i: i[1].us)}
    return session.record(op, who[name][0], tune.key(call), status=Status.PASSED, config=who[name][1], us=(t.p20, t.us, t.p80),
                          method=compared.method, extra={"tried": others})  # fmt: skip
