"""What the hardware counts beside what the simulator says, rung by rung: wavefronts of shared memory and sectors of global memory a request.

On the GPU, `python -m rooftile.workbench.counters launch --plan plan.json transpose` runs every CUDA C++ rung of the operators once between
cudaProfilerStart and cudaProfilerStop, under `ncu --profile-from-start off --csv --metrics ...` (`... counters metrics` prints the list), and
writes down what it launched in which order. Anywhere, `... counters read --plan plan.json --records records counters.csv` puts the two together
with the simulator's figures of the same launches and appends a Record a rung.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rooftile.core import device as dev
from rooftile.core.kernel import OPS, Kernel, Op, nearest
from rooftile.core.record import Environment, Record, Status, append
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.cuda.launch import Launch, recording

UNITS = {  # what is asked of a memory -> its units and its requests, by the hardware's names
    "shared_load": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "smsp__inst_executed_op_shared_ld.sum"),
    "shared_store": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "smsp__inst_executed_op_shared_st.sum"),
    "global_load": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
    "global_store": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
}
METRICS = tuple(m for pair in UNITS.values() for m in pair)
# Whole tiles, so that no request is cut short: enough for every rung's full path, little enough to simulate in seconds.
CASES: dict[str, tuple[Case, ...]] = {
    "transpose": tuple(Case({"N": 256, "K": 256}, t) for t in (torch.float32, torch.bfloat16)),
    "reduce_sum": tuple(Case({"...": (2**17,)}, t) for t in (torch.float32, torch.bfloat16)),
    "gemv": tuple(
        Case({"M": 64, "K": 8192 // t.itemsize}, t) for t in (torch.float32, torch.float16)
    ),  # one slice, however many a machine has room for
    "softmax": tuple(Case({"...": (64,), "N": 4096}, t) for t in (torch.float32, torch.bfloat16)),
}


Launches = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]  # (name, grid, block) each


@dataclass(frozen=True)
class Planned:
    """One rung on one case, with the config it ran with and what it launched, in order."""

    op: str
    kernel: str
    case: str
    digest: str
    config: dict[str, Any]
    launches: Launches


@dataclass(frozen=True)
class Counted:
    """One kernel's row of the report."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    metrics: dict[str, float]


def rungs(names: Sequence[str]) -> list[tuple[Op, Kernel, Case]]:
    found = []
    for name in names:
        op = OPS[nearest(name, list(OPS), "operator")]
        if name not in CASES:
            raise ValueError(f"{name} has no case to be counted on; there are {', '.join(CASES)}")
        found += [(op, kernel, case) for case in CASES[name] for kernel in op.kernels if kernel.sources]
    if not found:
        raise ValueError(f"{', '.join(names) or 'nothing'} has no kernel in CUDA C++")
    return found


def launch(names: Sequence[str], where: torch.device) -> dict[str, Any]:
    """Run every rung once, warm, with the profiler on around it; what was launched, in order, and on what."""
    planned = []
    for op, kernel, case in rungs(names):
        call = op.spec.draw(case, 0, where)
        with recording() as seen:
            if kernel.refuse(call) is not None:
                continue
            config = dict(kernel.heuristic(call))
            run = kernel.bound(config)
            run(*call.values())
        run(*call.values())  # compiles
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        run(*call.values())
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        planned.append(Planned(op.spec.name, kernel.name, case.id, kernel.digest, config, launched(seen)))
    return {"device": dev.slug(where), "environment": dict(vars(Environment.here())), "rungs": [asdict(p) for p in planned]}


def launched(seen: Sequence[Launch]) -> Launches:
    """What was recorded, less launches of no block."""
    return tuple((one.instance.partition("<")[0], tuple(one.grid), tuple(one.block)) for one in seen if 0 not in one.grid)


def read_csv(text: str) -> list[Counted]:
    """ncu's report, with a row a kernel (--page raw) or a row a metric (without), behind whatever ncu and the program printed."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise ValueError(f'{len(lines)} lines, and none begins with "ID": this is no report of ncu --csv')
    rows = [r for r in csv.DictReader(lines[head:]) if (r["ID"] or "").isdigit()]  # under the names of --page raw stand the units
    kernels: dict[int, list[dict[str, str]]] = {}
    for r in rows:
        kernels.setdefault(int(r["ID"]), []).append(r)
    counted = []
    for number, group in sorted(kernels.items()):
        one = group[0]
        values = {r["Metric Name"]: r["Metric Value"] for r in group} if "Metric Name" in one else one
        missing = [m for m in METRICS if not values.get(m)]
        if missing:
            raise ValueError(
                f"kernel {number} ({one['Kernel Name']}) has {len(METRICS) - len(missing)} of {len(METRICS)} metrics, not {missing[0]}"
            )
        metrics = {m: float(values[m].replace(",", "")) for m in METRICS}
        counted.append(Counted(_base(one["Kernel Name"]), _extent(one["Grid Size"]), _extent(one["Block Size"]), metrics))
    return counted


def _base(name: str) -> str:
    """void transpose<float>(T1 *, ...) -> transpose."""
    match = re.match(r"(?:void )?([\w:]+)", name)
    return match[1].rpartition("::")[2] if match else name


def _extent(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def records(text: str, plan: dict[str, Any], only: Sequence[str] = ()) -> list[Record]:
    """A Record a rung, or a rung of the operators named: units a request as the hardware counted them, and as the simulator does."""
    counted = read_csv(text)
    planned = [Planned(**p) for p in plan["rungs"]]
    for name in only:
        nearest(name, list(dict.fromkeys(p.op for p in planned)), "operator of this plan")
    wanted = sum(len(p.launches) for p in planned)
    if len(counted) != wanted:
        raise ValueError(f"the report has {len(counted)} kernels, the plan {wanted}: they are not of one run")
    run, made, rest = uuid.uuid4().hex[:10], [], iter(counted)
    for p in planned:
        mine = [next(rest) for _ in p.launches]
        for (name, grid, block), c in zip(p.launches, mine):
            if (name, tuple(grid), tuple(block)) != (c.name, c.grid, c.block):
                raise ValueError(
                    f"{p.op} {p.kernel}: the plan says {name} {tuple(grid)} x {tuple(block)}, the report {c.name} {c.grid} x {c.block}"
                )
        if only and p.op not in only:
            continue
        totals, asked = {m: sum(c.metrics[m] for c in mine) for m in METRICS}, simulated(p)
        per = {what: _requests(what, totals[requests], asked) for what, (_, requests) in UNITS.items()}
        hardware = {what: round(totals[units] / per[what], 3) for what, (units, _) in UNITS.items() if per[what]}
        simulator = {what: round(units / requests, 3) for what, (units, requests) in asked.items()}
        extra = {"hardware": hardware, "simulator": simulator, "counters": totals, "asked": {what: n for what, (_, n) in asked.items()}}
        made.append(Record(p.op, p.kernel, f"counters-{p.case}", Status.PASSED, method="ncu --clock-control none, one launch", digest=p.digest,
                           run=run, extra=extra, environment=plan["environment"]))  # fmt: skip
    return made


def _requests(what: str, counted: float, asked: dict[str, tuple[float, float]]) -> float:
    """The hardware counts requests of global memory. Of shared memory it counts instructions instead, also those that no lane takes part in and
    those that wait at a barrier: there it is what the source asks for."""
    return asked.get(what, (0, 0))[1] if what.startswith("shared") else counted


def simulated(planned: Planned) -> dict[str, tuple[float, float]]:
    """Units and requests from the simulator, on the same case with the same config."""
    op = OPS[planned.op]
    kernel, case = op.kernel(planned.kernel), next(c for c in CASES[planned.op] if c.id == planned.case)
    call, run = op.spec.draw(case), kernel.bound(planned.config)
    with recording() as seen:
        run(*call.values())
    here, there = ([(name, tuple(block)) for name, _, block in made] for made in (launched(seen), planned.launches))
    if here != there:  # grids may differ: a persistent kernel has one for its machine
        raise ValueError(f"{planned.op} {planned.kernel}: with {planned.config} this machine launches {here}, the plan says {there}")
    with simulator.active("all") as reports:
        run(*call.values())
    totals: dict[str, tuple[float, float]] = {}
    for a in (a for r in reports for a in r.accesses):
        if not (a.asynchronous and a.store):
            what = f"{a.space}_{'store' if a.store else 'load'}"
            units, requests = totals.get(what, (0.0, 0.0))
            totals[what] = units + a.requests * a.per_request, requests + a.requests
    return {what: totals[what] for what in UNITS if what in totals}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m rooftile.workbench.counters", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("metrics", help="the list for ncu --metrics")
    doing = verbs.add_parser("launch", help="under ncu: run every rung once")
    doing.add_argument("ops", nargs="+")
    reading = verbs.add_parser("read", help="the report and the plan to records")
    reading.add_argument("report", type=Path)
    reading.add_argument(
        "--only", metavar="OP", action="append", default=[], help="records of this operator; all of the plan's unless given"
    )
    reading.add_argument("--records", type=Path, default=Path("records"))
    for verb in (doing, reading):
        verb.add_argument("--plan", type=Path, required=True)
    args = parser.parse_args(words)
    try:
        _do(args)
    except ValueError as error:
        parser.error(str(error))


def _do(args: argparse.Namespace) -> None:
    if args.verb == "metrics":
        print(",".join(METRICS))
    elif args.verb == "launch":
        if not torch.cuda.is_available():
            raise ValueError("counting needs a CUDA device, this machine has 0")
        where = torch.device("cuda", torch.cuda.current_device())
        args.plan.write_text(json.dumps(launch(args.ops, where), indent=1), encoding="utf-8")
    else:
        plan = json.loads(args.plan.read_text(encoding="utf-8"))
        for r in records(args.report.read_text(encoding="utf-8"), plan, args.only):
            append(args.records / plan["device"] / f"{r.op}.jsonl", [r])
            print(r.op, r.kernel, r.case, "hardware", r.extra["hardware"], "simulator", r.extra["simulator"])


if __name__ == "__main__":
    main(sys.argv[1:])
