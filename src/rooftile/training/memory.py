"""`--memory`: what one step holds, by time, as PyTorch's profiler saw every allocation of it.

The picture has the weights and the optimizer's state as levels, the curve above them, where the first gradient is made, the optimizer's
span, and the peak with the operator that reached it. The same numbers are in memory.json.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from rooftile.models.atomic import atomic_file

__all__ = ["MemoryTimeline"]

OPTIMIZER, GRADIENT = "Optimizer.step#", "autograd::engine::evaluate_function"  # PyTorch's own names for them
MIB = 2**20


class MemoryTimeline:
    """Around one step; afterwards `points` are (microseconds, bytes) and `draw` makes the picture. The host is slower meanwhile."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device):
        self.model, self.optimizer, self.device = model, optimizer, device

    def __enter__(self) -> "MemoryTimeline":
        self.weights = _bytes(self.model.parameters())
        self.states = _bytes(v for s in self.optimizer.state.values() for v in s.values())
        on_gpu = self.device.type == "cuda"
        self.start = torch.cuda.memory_allocated(self.device) if on_gpu else self.weights + self.states
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self.profile = profile(activities=activities, profile_memory=True, acc_events=False).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.profile.__exit__(*error)
        if error[0] is None:
            self._read(self.profile.profiler.kineto_results.events())
        del self.profile

    def _read(self, events: list[Any]) -> None:
        """Allocations in the order of the host's clock: the allocator works on the host, on a GPU's memory too."""
        kind = torch._C._autograd.DeviceType.CUDA if self.device.type == "cuda" else torch._C._autograd.DeviceType.CPU
        moves = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and e.device_type() == kind)
        host = [e for e in events if e.device_type() == torch._C._autograd.DeviceType.CPU and e.name() != "[memory]"]
        began = min((e.start_ns() for e in host), default=0)
        held, self.points = self.start, [(0.0, self.start)]
        for at, size in moves:
            held += size
            self.points.append(((at - began) / 1e3, held))
        at, self.peak = max(self.points, key=lambda point: point[1])
        around = [e for e in host if e.start_ns() <= began + at * 1e3 <= e.start_ns() + e.duration_ns()]
        self.peak_at, self.peak_in = at, min(around, key=lambda e: e.duration_ns()).name() if around else ""
        gradients = [(e.start_ns() - began) / 1e3 for e in host if e.name().startswith(GRADIENT)]
        updates = [(e.start_ns() - began, e.duration_ns()) for e in host if e.name().startswith(OPTIMIZER)]
        self.gradient_at = min(gradients, default=None)
        self.update = (updates[0][0] / 1e3, sum(updates[0]) / 1e3) if updates else None

    def facts(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "weights_bytes": self.weights,
            "optimizer_bytes": self.states,
            "start_bytes": self.start,
            "peak_bytes": self.peak,
            "peak_in": self.peak_in,
            "points": self.points,
        }

    def draw(self, folder: Path, step: int) -> Path:
        """Write memory.json and memory.png -> the picture's path."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        ms, held = [t / 1e3 for t, _ in self.points], [b / MIB for _, b in self.points]
        axes.fill_between(ms, held, step="post", alpha=0.3)
        axes.step(ms, held, where="post", linewidth=0.8)
        for level, label in ((self.weights, "weights"), (self.weights + self.states, "weights and optimizer state")):
            axes.axhline(level / MIB, linestyle="--", linewidth=0.8, color="gray")
            axes.annotate(label, (0, level / MIB), fontsize=7, va="bottom")
        if self.gradient_at is not None:
            axes.axvline(self.gradient_at / 1e3, color="tab:red", linewidth=0.8, label="first gradient")
        if self.update is not None:
            axes.axvspan(self.update[0] / 1e3, self.update[1] / 1e3, alpha=0.2, color="tab:green", label="optimizer")
        axes.plot(
            [self.peak_at / 1e3], [self.peak / MIB], "v", color="black", label=f"peak {self.peak / MIB:.1f} MiB in {self.peak_in}"[:70]
        )
        axes.set(xlabel="ms on the host", ylabel="MiB allocated", title=f"step {step}", ylim=(0, None))
        axes.legend(loc="lower right", fontsize=7)
        with atomic_file(folder / "memory.json") as file:
            file.write(json.dumps(self.facts(step)).encode() + b"\n")
        with atomic_file(folder / "memory.png") as file:
            figure.savefig(file, format="png", dpi=120)
        return folder / "memory.png"


def _bytes(tensors: Any) -> int:
    """Of tensors on a device, of shards this process's; what counts steps on the host is not in it."""
    tensors = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor) and t.dim())
