"""`scaling.llama-1.2b`: `rooftile train` by one process and by two, as a user starts them. Tokens a second, and how far the losses lie from those of
one process that has all the rows."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rooftile.core import device as dev
from rooftile.core.record import Environment, Record, Status, append
from rooftile.training.metrics import read_metrics
from rooftile.workbench import training_records

NAME = "scaling.llama-1.2b"
STEPS, WARM = 40, 20  # of the rest each look at the device is a rate
ROWS, CONTEXT = 4, 4096  # of each process
RUNS = {
    "one": (1, "none", ROWS),
    "whole": (1, "none", 2 * ROWS),
    "ddp": (2, "ddp", ROWS),
    "fsdp": (2, "fsdp", ROWS),
}  # processes, parallel, rows of each
KNOBS = {"model": "llama-1.2b", "weights": "bfloat16", "context": CONTEXT, "steps": STEPS, "log_every": 5, "eval_every": STEPS, "eval_batches": 1,
         "save_every": STEPS, "sample_tokens": 0, "lr": 3e-4, "min_lr": 3e-5, "warmup": STEPS}  # fmt: skip


def command(processes: int, parallel: str, rows: int, out: Path) -> list[str]:
    knobs = {**KNOBS, "parallel": parallel, "batch_size": rows, "out": str(out)}
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    return [sys.executable, *start, "-m", "rooftile", "train", *(w for n, v in knobs.items() for w in (f"--{n.replace('_', '-')}", str(v)))]


def reason(stderr: str) -> str:
    """The first error that a process gave: torchrun's own report of it, behind, has none."""
    said = [line.strip() for line in stderr.splitlines() if "Error: " in line or line.startswith("rooftile: ")]
    return said[0] if said else stderr.strip()[-300:]


def bench(where: torch.device, run: str, progress: Console | None, folder: Path | None) -> list[Record]:
    there = torch.cuda.device_count()
    if where.type == "cuda" and there < 2:
        raise ValueError(f"{NAME} trains on 2 GPUs, this machine has {there}")
    environment, digest, records = dict(vars(Environment.here())), training_records.training_digest(NAME), list[Record]()
    losses: dict[str, list[float]] = {}
    rates: dict[str, float] = {}
    for name, (processes, parallel, rows) in RUNS.items():
        if progress is not None:
            progress.print(f"{NAME}: {name}", style="dim")
        facts: dict[str, Any]
        with tempfile.TemporaryDirectory() as out:
            made = subprocess.run(command(processes, parallel, rows, Path(out)), capture_output=True, text=True)
            seen = [r for r in read_metrics(Path(out) / "metrics.jsonl") if "loss" in r]
        if made.returncode:
            facts = {"status": Status.ERROR, "message": reason(made.stderr)}
        else:
            losses[name] = [r["loss"] for r in seen]
            rates[name] = statistics.median(r["tokens_per_s"] for r in seen if r["step"] > WARM)
            us = 1e6 * processes * rows * CONTEXT / rates[name]
            extra = {"processes": processes, "tokens_per_s": rates[name], "peak_bytes": seen[-1]["memory_bytes"], "losses": losses[name]}
            if "one" in rates:
                extra["of_one"] = rates[name] / rates["one"]
            if "whole" in losses and processes > 1:
                extra["largest_smoothed_loss_difference_to"] = {"whole": training_records.distances(losses[name], losses["whole"])}
            facts = {
                "status": Status.PASSED,
                "us": (us, us, us),
                "method": f"the run's own clock, median from step {WARM} on",
                "extra": extra,
            }
        records.append(
            Record(NAME, f"rooftile.{name}", f"B{ROWS}_T{CONTEXT}-bfloat16", **facts, run=run, environment=environment, digest=digest)
        )
    if folder is not None:
        append(folder / dev.slug(where) / f"{NAME}.jsonl", records)
    return records
