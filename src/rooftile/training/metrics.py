"""metrics.jsonl, one object a line, and the curve drawn from it.

    {"step": 10, "loss": 3.1, "lr": 0.003, "grad_norm": 0.9, "tokens_per_s": 21000.0, "memory_bytes": 512000000}
    {"step": 250, "val_loss": 2.4}

`loss` is in nats a token, before update `step`; `val_loss` after it. `tokens_per_s` is the mean since the last look at the
device, evaluating and saving left out.
"""

import json
import math
import os
import resource
import time
from pathlib import Path

import torch
from torch import Tensor

from rooftile.models.atomic import atomic_file
from rooftile.training.errors import TrainError

__all__ = ["Metrics", "draw_curve", "memory_bytes", "read_metrics"]

ADVICE = "try a lower lr, a longer warmup or dtype float32"


class Metrics:
    """Collects losses as device tensors and writes them at `flush`, in one transfer: the only place the host waits for them."""

    def __init__(self, path: Path | None, *, step: int, steps: int, eval_every: int, step_tokens: int, device: torch.device):
        """Opens `path` for appending after dropping every line past `step`, so that a resumed series has no line twice. None: writes nothing."""
        self.step_tokens, self.device = step_tokens, device
        self.last: dict = {}  # the newest row
        self.waiting: list[tuple[int, float, Tensor, Tensor]] = []
        self.clock = 0.0
        self.silent = path is None
        if path is None:
            self.file = open(os.devnull, "ab")  # noqa: SIM115 - closed by close()
            return
        kept = [row for row in read_metrics(path) if _belongs(row, step, steps, eval_every)] if step else []
        with atomic_file(path) as file:
            file.writelines(_line(row) for row in kept)
        self.file = open(path, "ab")  # noqa: SIM115 - closed by close()

    def begin(self) -> None:
        """Call before a step: the first one since a flush starts the clock."""
        if not self.waiting:
            self.clock = time.perf_counter()

    def add(self, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Note one step. Both tensors are scalars and stay where they are."""
        self.waiting.append((step, lr, loss, grad_norm))

    def flush(self) -> dict:
        """Write what waits and return the newest row. TrainError at the first number that is not finite; rows before it stand."""
        if self.waiting:
            steps, rates, losses, norms = zip(*self.waiting)
            numbers = torch.stack([torch.stack(losses).float(), torch.stack(norms).float()]).tolist()  # waits for the device
            rate = len(steps) * self.step_tokens / max(time.perf_counter() - self.clock, 1e-9)
            self.waiting = []
            memory = memory_bytes(self.device)
            for step, lr, loss, norm in zip(steps, rates, *numbers):
                self._check(step, lr, loss, norm)
                self.last = {
                    "step": step,
                    "loss": loss,
                    "lr": lr,
                    "grad_norm": norm,
                    "tokens_per_s": round(rate, 1),
                    "memory_bytes": memory,
                }
                self.file.write(_line(self.last))
            self.file.flush()
        return self.last

    def evaluation(self, step: int, val_loss: float) -> None:
        """Write an evaluation line, after the training lines up to its step. TrainError where the last update has left no finite loss."""
        self.flush()
        if not math.isfinite(val_loss):
            raise TrainError(f"the validation loss is {val_loss} after step {step}: {ADVICE}")
        self.file.write(_line({"step": step, "val_loss": val_loss}))
        self.file.flush()

    def sync(self) -> None:
        """Before a checkpoint is renamed into place the lines up to it are on the disk."""
        self.flush()
        if not self.silent:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()

    def _check(self, step: int, lr: float, loss: float, norm: float) -> None:
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                before = f"it was {self.last['loss']:.4g} at step {self.last['step']}" if self.last else "from the start"
                raise TrainError(f"the {name} is {value} at step {step} with learning rate {lr:.3g} (the loss: {before}): {ADVICE}")


def read_metrics(path: Path) -> list[dict]:
    """The rows of a metrics file, all with a step; what is none is left out, as a last line cut short by a kill."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:  # only the torn end: what follows a torn line was never written
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):  # no line of somebody else's
            rows.append(row)
    return rows


def draw_curve(rows: list[dict], path: Path) -> None:
    """Training and validation loss against the step, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window system, no global state
    axes = figure.add_subplot()
    for key, label, style in (("loss", "training", "-"), ("val_loss", "validation", "o-")):
        points = [(row["step"], row[key]) for row in rows if key in row]
        if points:
            axes.plot(*zip(*points), style, label=label, linewidth=1, markersize=4)
    axes.set(xlabel="step", ylabel="loss (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=120)


def memory_bytes(device: torch.device) -> int:
    """The most this process has held: on the GPU as PyTorch allocates it, on a CPU the resident set, which Linux counts in kilobytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _belongs(row: dict, step: int, steps: int, eval_every: int) -> bool:
    """Rows up to `step`; an evaluation made only because the earlier run ended there is no part of the longer series, and that at the end of
    all `steps` is made again."""
    if "val_loss" not in row or row["step"] != step:
        return row["step"] <= step
    return step < steps and step % eval_every == 0


def _line(row: dict) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"
