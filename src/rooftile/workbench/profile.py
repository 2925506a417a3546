"""`rooftile profile train`: a training step's operators by time, each with its floor and what it loses to it.

One step runs under a mode that sees every operator, ours and PyTorch's, forward, backward and update: from the arguments of a call follow its
bytes and operations, from those its floor, and a range of PyTorch's profiler around it says how long its kernels took. Bytes count each
tensor read once and each written once, as in `bench`; what an operator reads again is its loss. The mode costs host time, and logits are not
overwritten by their gradient under it: the step's own time is taken before, without it.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Column, Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import rooftile.ops  # noqa: F401  fills OPS
from rooftile.core.device import Ceilings, ceilings
from rooftile.core.kernel import OPS
from rooftile.models.atomic import atomic_file
from rooftile.training import TrainConfig, TrainError
from rooftile.training.anomaly import written
from rooftile.training.data import load_data, to_device, training_batch
from rooftile.training.loop import deterministic
from rooftile.training.model import build_model
from rooftile.training.stepper import build_optimizer, train_step

__all__ = ["Loss", "draw", "profile_training", "table"]

MARK = "rooftile-profile::"
WARMUP, TIMED, SEEN = 3, 5, 2  # steps: first to warm up, then for the clock, then under the mode
TOLD, DRAWN = 30, 20  # operators in the table, and in the picture


@dataclasses.dataclass
class Loss:
    """One operator in one step: how often it ran, how long, and how long at least."""

    name: str
    calls: float = 0.0
    us: float = 0.0
    floor_us: float = 0.0

    @property
    def lost_us(self) -> float:
        return self.us - self.floor_us


class Costs(TorchDispatchMode):
    """Inside, every operator has a range of the profiler around it and its floor added up under its name."""

    def __init__(self, limits: Ceilings):
        super().__init__()
        self.limits, self.losses = limits, dict[str, Loss]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_view(func) or func.namespace == "profiler":
            return func(*args, **kwargs)
        name = f"rooftile.{func._opname}" if func.namespace == "rooftile" else str(func._overloadpacket)
        with record_function(MARK + name):
            out = func(*args, **kwargs)
        loss = self.losses.setdefault(name, Loss(name))
        loss.calls += 1
        loss.floor_us += self.limits.floor_us(*_cost(func, args, kwargs, out))
        return out


def profile_training(config: TrainConfig) -> dict[str, Any]:
    """A run's step, profiled -> {"step_ms", "rows": [Loss], sorted by what is lost, "device"}. TrainError where there are no operators to see."""
    config = config.resolved()
    if config.kernels == "compile":
        raise TrainError("profile looks at single operators, and kernels 'compile' has none to look at: take torch or rooftile")
    if config.parallel != "none":
        raise TrainError(f"parallel is {config.parallel!r}, and profile looks at the step of one process: leave it at 'none'")
    for name in ("resume", "resume_from", "memory", "detect_anomaly"):
        if value := getattr(config, name):
            raise TrainError(f"{name} is {value!r}, and profile looks at {WARMUP + TIMED + SEEN} steps of a new model: leave it away")
    with deterministic(config.deterministic):
        return _profiled(config)


def _profiled(config: TrainConfig) -> dict[str, Any]:
    where, data = torch.device(config.device), load_data(config)
    torch.manual_seed(config.seed)
    model = build_model(config, data).to(where)
    optimizer = build_optimizer(model, config)
    steps = iter(range(1, WARMUP + TIMED + SEEN + 1))

    def run() -> None:
        step = next(steps)
        batch = training_batch(data.train, config.context, config.step_rows, seed=config.seed, step=step)
        x, y = to_device(batch, where)
        train_step(model, optimizer, (x, y), config, step)
        if where.type == "cuda":
            torch.cuda.synchronize(where)

    times = []
    for _ in range(WARMUP + TIMED):
        began = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - began))
    costs, gpu = Costs(ceilings(where)), where.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as seen, costs:
        for _ in range(SEEN):
            run()
    ran = covered([e for e in seen.events() or () if e.device_type == torch._C._autograd.DeviceType.CUDA])
    for event in seen.key_averages():
        if event.key.startswith(MARK) and event.device_type == torch._C._autograd.DeviceType.CPU:
            costs.losses[event.key.removeprefix(MARK)].us += ran.get(event.key, event.device_time_total) if gpu else event.cpu_time_total
    rows = [Loss(x.name, x.calls / SEEN, x.us / SEEN, x.floor_us / SEEN) for x in costs.losses.values()]
    rows.sort(key=lambda x: -x.lost_us)
    return {"device": str(where), "step_ms": statistics.median(times[WARMUP:]), "rows": rows}


def covered(events: Sequence[Any]) -> dict[str, float]:
    """What the device did -> of each operator's ranges there, how long any of its kernels ran, in us. One that is launched early (early.cuh) stands by
    while the one before it runs: added up, that time would count twice."""
    kernels = sorted((e.time_range.start, e.time_range.end) for e in events if not e.name.startswith(MARK))
    found: dict[str, float] = {}
    for span in (e for e in events if e.name.startswith(MARK)):
        us, until = 0.0, span.time_range.start
        for start, end in kernels[bisect_left(kernels, (span.time_range.start,)) :]:
            if start >= span.time_range.end:
                break
            us, until = us + max(0.0, min(end, span.time_range.end) - max(start, until)), max(until, end)
        found[span.name] = found.get(span.name, 0.0) + us
    return found


def table(found: dict[str, Any]) -> Table:
    """The operators that lose most, and the sums of all."""
    rows, made = found["rows"], Table(Column("operator", overflow="fold"), "calls", "ms", "share", "floor ms", "of floor", "lost ms")
    whole = Loss("all operators", *(sum(getattr(x, f) for x in rows) for f in ("calls", "us", "floor_us")))
    for x in (*rows[:TOLD], whole):
        share, of = (f"{100 * a / b:.0f}%" if b else "" for a, b in ((x.us, whole.us), (x.floor_us, x.us)))
        made.add_row(x.name, f"{x.calls:g}", f"{x.us / 1e3:.3f}", share, f"{x.floor_us / 1e3:.3f}", of, f"{x.lost_us / 1e3:.3f}")
    return made


def draw(found: dict[str, Any], path: Path) -> None:
    """A bar an operator: its floor, and what it takes beyond."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sorted(found["rows"], key=lambda x: x.us)[-DRAWN:]
    figure = Figure(figsize=(8, 1 + 0.3 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names, floors = [x.name for x in rows], [min(x.floor_us, x.us) / 1e3 for x in rows]
    axes.barh(names, floors, label="floor")
    axes.barh(names, [x.us / 1e3 - low for x, low in zip(rows, floors)], left=floors, label="beyond it")
    axes.set(xlabel="ms a step", title=f"{found['device']}: a step takes {found['step_ms']:.1f} ms")
    axes.legend()
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=120)


def _cost(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[float, float, torch.dtype]:
    """Bytes, operations and the dtype they are done in."""
    results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    if func.namespace == "rooftile":
        spec = OPS[func._opname].spec
        call = spec.complete(args, kwargs)
        return spec.bytes(call, results), spec.operations(call), _dtype(call.values())
    read = {t.data_ptr(): t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
    made = {t.data_ptr(): t for t in (*results, *written(func, args, kwargs))}
    moved = sum(t.numel() * t.element_size() for t in (*read.values(), *made.values()))
    count = flop_registry.get(func._overloadpacket)
    return moved, count(*args, **kwargs, out_val=out) if count else 0, _dtype(read.values())


def _dtype(values: Any) -> torch.dtype:
    return next((t.dtype for t in tree_leaves(list(values)) if isinstance(t, Tensor) and t.is_floating_point()), torch.float32)


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
