"""Whole training steps as Records: op `train.gpt2-124m`, a record a table of operators, the peers beside ours in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rooftile.core import device as dev
from rooftile.core.record import Environment, Record, Status, append, digest

NAME = "train.gpt2-124m"
KERNEL = {"rooftile": "rooftile", "torch": "peer.torch", "compile": "peer.compile"}
SMOOTH = 20  # steps the loss is averaged over before two series are compared


def training_digest() -> str:
    """Of everything our steps are made of: the models and every operator they reach."""
    return digest("rooftile.models.gpt2", ("rooftile.models.", "rooftile.ops."))


def bench(
    against: list[str], where: torch.device, run: str, loss_steps: int, progress: Console | None, folder: Path | None
) -> list[Record]:
    from rooftile.training.benchmark import benchmark_gpt2, compare_losses

    kernels = ("rooftile", *(p for p in against if p in KERNEL))
    if progress is not None:
        progress.print(f"{NAME}: {', '.join(kernels)} in turn", style="dim")
    rows = benchmark_gpt2(kernels, device=where.type)
    series = {r["kernels"]: r["losses"] for r in compare_losses(kernels, steps=loss_steps, device=where.type)}
    apart = {name: {other: distances(losses, series[other]) for other in series if other != name} for name, losses in series.items()}
    environment = dict(vars(Environment.here()))
    records = []
    for r in rows:
        ours = r["kernels"] == "rooftile"
        facts: dict[str, Any] = {n: r[n] for n in ("tokens_per_s", "peak_bytes", "loss", "interleaved", "steps", "rounds")}
        facts |= {"losses": series[r["kernels"]], "loss_steps": loss_steps, "largest_smoothed_loss_difference_to": apart[r["kernels"]]}
        records.append(Record(
            NAME, KERNEL[r["kernels"]], f"B{r['batch_size']}_T{r['context']}_V{r['vocab_size']}-{r['dtype']}", Status.PASSED,
            us=(r["ms_low"] * 1e3, r["ms"] * 1e3, r["ms_high"] * 1e3), method="wall clock between synchronisations, turns interleaved, median of rounds",
            digest=training_digest() if ours else "", run=run, extra=facts, environment=environment))  # fmt: skip
    if folder is not None:
        append(folder / dev.slug(where) / f"{NAME}.jsonl", records)
    return records


def distances(ours: list[float], theirs: list[float]) -> float:
    """The largest difference of the two series, each averaged over the last SMOOTH steps."""

    def smooth(x: list[float]) -> list[float]:
        return [sum(x[max(0, i - SMOOTH + 1) : i + 1]) / len(x[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(x))]

    return max(abs(a - b) for a, b in zip(smooth(ours), smooth(theirs)))
