"""`scaling.llama-1.2b`: `rooftile train` by one process and by two, as a user starts them. Tokens a second, and how far the losses lie from those of
one process that has all the rows. No two GPUs are equally fast, and two processes wait for the slower one: `one` trains on each by itself, at the same
time, and its rate is the mean of both."""

from __future__ import annotations

import contextlib
import os
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
ALONE = {"one": 2}  # runs side by side, each on a GPU of its own
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


def _train(processes: int, parallel: str, rows: int, alone: int) -> tuple[list[list[dict]], str | None]:
    """What the run left in its metrics, of each of `alone` such runs side by side; and what the first that failed said."""
    with contextlib.ExitStack() as stack:
        outs = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(alone)]
        said = [stack.enter_context((out / "stderr").open("w+")) for out in outs]  # no pipe, which a run would wait for
        environments = [{**os.environ, "CUDA_VISIBLE_DEVICES": gpu} for gpu in _gpus(alone)] if alone > 1 else [None]
        started = [
            subprocess.Popen(command(processes, parallel, rows, out), stdout=subprocess.DEVNULL, stderr=text, env=environment)
            for out, text, environment in zip(outs, said, environments)
        ]
        for failed, text in [(one.wait(), text) for one, text in zip(started, said)]:
            if failed:
                text.seek(0)
                return [], text.read()
        return [[r for r in read_metrics(out / "metrics.jsonl") if "loss" in r] for out in outs], None


def _gpus(count: int) -> list[str]:
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen.split(",")[:count] if seen else [str(i) for i in range(count)]


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
        seen, wrong = _train(processes, parallel, rows, ALONE.get(name, 1))
        if wrong is not None:
            facts = {"status": Status.ERROR, "message": reason(wrong)}
        else:
            losses[name] = [r["loss"] for r in seen[0]]
            each = [statistics.median(r["tokens_per_s"] for r in rows if r["step"] > WARM) for rows in seen]
            rates[name] = statistics.mean(each)
            us = 1e6 * processes * rows * CONTEXT / rates[name]
            extra = {"processes": processes, "tokens_per_s": rates[name], "peak_bytes": seen[0][-1]["memory_bytes"], "losses": losses[name]}
            if len(each) > 1:
                extra["tokens_per_s_of_each"] = each
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
        if folder is not None:  # run by run: who is cut off keeps those that have ended
            append(folder / dev.slug(where) / f"{NAME}.jsonl", records[-1:])
    return records
