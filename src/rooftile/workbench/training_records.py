"""Whole training steps as Records: ops `train.gpt2-124m` and `train.llama-1.2b`, a record a table of operators, the peers beside ours in one run;
and `losses.gpt2-124m`, `losses.llama-1.2b`: the loss of 500 steps of real text beside the band of three seeds of PyTorch's. scaling.py has one more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import rooftile.ops  # noqa: F401  every door
from rooftile.core import device as dev
from rooftile.core.kernel import OPS, doors, launched
from rooftile.core.record import Environment, Record, Status, append, digest, reachable, with_files
from rooftile.core.timing import TURNS

MODULES = {f"{what}.{model}": f"rooftile.models.{module}" for what in ("train", "losses")
           for model, module in (("gpt2-124m", "gpt2"), ("llama-1.2b", "llama"))} | {"scaling.llama-1.2b": "rooftile.models.llama"}  # fmt: skip
PEERS = {"train.gpt2-124m": ("torch", "compile"), "train.llama-1.2b": ("torch", "compile", "liger")}
BAND_STEPS, SEEDS = 500, (0, 1, 2)  # ours takes the first
TIMED_STEPS = {"train.gpt2-124m": 20, "train.llama-1.2b": 10}  # of a turn
LOSS_STEPS = {"train.gpt2-124m": 200, "train.llama-1.2b": 40}  # of the series held beside the peers'
SMOOTH = 20  # steps the loss is averaged over before two series are compared


def training_digest(name: str, ran: Iterable[str] | None = None) -> str:
    """Of everything our steps are made of: the model with every operator it reaches, in Python and CUDA C++, and what runs them. ran: the operators that were
    launched; others, which only a kernel would come to that was not chosen, as decoding from attention of a few queries, are left out."""
    within, names = ("rooftile.models.", "rooftile.ops."), None if ran is None else set(ran)
    shut = frozenset(door for door, declared in doors().items() if names is not None and not declared & names)
    return digest_with_cuda((MODULES[name],), within, shut)[:8] + "".join(digest(m, ())[:8] for m in _runners(name))


def digest_with_cuda(modules: Iterable[str], within: tuple[str, ...], shut: frozenset[str] = frozenset()) -> str:
    """Of modules and what they reach, and of the CUDA C++ of the kernels among that."""
    reached = frozenset[str]().union(*(reachable(m, within, shut) for m in modules))
    files = {path for op in OPS.values() for k in op.kernels if k.run.__module__ in reached for s in k.sources for path in s.files}
    return with_files("".join(digest(m, within, shut) for m in modules), sorted(files))


def digest_of_record(r: Record) -> str:
    """What it is now of what the record's run launched."""
    return training_digest(r.op, r.extra.get("ran"))


def _runners(name: str) -> list[str]:
    return [f"rooftile.training.{module}" for module in (("stepper", "parallel") if name.startswith("scaling.") else ("stepper",))]


def bench(name: str, against: list[str], where: torch.device, run: str, progress: Console | None, folder: Path | None) -> list[Record]:
    from rooftile.training.benchmark import LLAMA, Setup, benchmark_training, compare_losses

    training_digest(name)  # reads all sources before the clock runs: what is edited meanwhile is not what was timed
    if name.startswith("losses."):
        return _losses(name, where, run, progress, folder)
    setup = replace(LLAMA if name == "train.llama-1.2b" else Setup(), device=where.type)
    kernels = ("rooftile", *(p for p in against if p in PEERS[name]))
    if progress is not None:
        progress.print(f"{name}: {', '.join(kernels)} in turn", style="dim")
    with launched() as ran:
        rows = benchmark_training(kernels, setup, steps=TIMED_STEPS[name])
        series = {r["kernels"]: r["losses"] for r in compare_losses(kernels, setup, steps=LOSS_STEPS[name])}
    apart = {one: {other: distances(losses, series[other]) for other in series if other != one} for one, losses in series.items()}
    environment = dict(vars(Environment.here()))
    records = []
    for r in rows:
        ours = r["kernels"] == "rooftile"
        facts: dict[str, Any] = {
            n: r[n] for n in ("tokens_per_s", "peak_bytes", "loss", "interleaved", "steps", "rounds", "graph", "weights")
        }
        facts |= {
            "losses": series[r["kernels"]],
            "loss_steps": LOSS_STEPS[name],
            "largest_smoothed_loss_difference_to": apart[r["kernels"]],
        } | ({"ran": sorted(ran)} if ours else {})
        records.append(Record(
            name, r["kernels"] if ours else f"peer.{r['kernels']}", f"B{r['batch_size']}_T{r['context']}_V{setup.model.vocab_size}-{r['dtype']}", Status.PASSED,
            us=(r["ms_low"] * 1e3, r["ms"] * 1e3, r["ms_high"] * 1e3), method=f"wall clock between synchronisations, {TURNS if r['interleaved'] else 'one after the other'}, median",
            digest=training_digest(name, ran) if ours else "", run=run, extra=facts, environment=environment))  # fmt: skip
    if folder is not None:
        append(folder / dev.slug(where) / f"{name}.jsonl", records)
    return records


def _losses(name: str, where: torch.device, run: str, progress: Console | None, folder: Path | None) -> list[Record]:
    """Ours with the first seed, PyTorch's with each; the same seed is the same weights and batches. PyTorch's weights are float32 under autocast, as
    its documentation trains: of bfloat16 weights its AdamW loses the updates that are too small to show, and the loss falls later."""
    from rooftile.training.benchmark import LLAMA, Setup, compare_losses

    shape = replace(LLAMA, context=1024) if name == "losses.llama-1.2b" else Setup()
    series: dict[str, list[list[float]]] = {}
    with launched() as ran:
        for kernels, seed in (("rooftile", SEEDS[0]), *(("torch", seed) for seed in SEEDS)):
            if progress is not None:
                progress.print(f"{name}: {BAND_STEPS} steps of {kernels}, seed {seed}", style="dim")
            weights = shape.weights if kernels == "rooftile" else "float32"
            (row,) = compare_losses((kernels,), replace(shape, weights=weights, device=where.type, seed=seed), steps=BAND_STEPS)
            series.setdefault(kernels, []).append(row["losses"])
    environment = dict(vars(Environment.here()))
    records = []
    for kernels, made in series.items():
        ours = kernels == "rooftile"
        facts: dict[str, Any] = {"loss": smooth(made[0])[-1], "losses": made[0] if ours else made, "seeds": list(SEEDS[: len(made)])}
        if ours:
            facts |= band(made[0], series["torch"]) | {"ran": sorted(ran)}
        records.append(Record(
            name, kernels if ours else f"peer.{kernels}", f"B{shape.batch_size}_T{shape.context}_V{shape.model.vocab_size}_steps{BAND_STEPS}-{shape.dtype}",
            Status.PASSED, method=f"losses averaged over {SMOOTH} steps", digest=training_digest(name, ran) if ours else "", run=run, extra=facts,
            environment=environment))  # fmt: skip
    if folder is not None:
        append(folder / dev.slug(where) / f"{name}.jsonl", records)
    return records


def band(ours: list[float], theirs: list[list[float]]) -> dict[str, float]:
    """Of smoothed series: the widest the others lie apart at a step, and the furthest that ours lies above or below all of them."""
    each = zip(*map(smooth, theirs))
    return {"band": largest(max(others) - min(others) for others in each), "outside_band": outside(ours, theirs)}


def outside(one: list[float], others: list[list[float]]) -> float:
    """Of smoothed series: the furthest that one lies above or below all others at a step."""
    return largest(max(a - max(rest), min(rest) - a, 0.0) for a, rest in zip(smooth(one), zip(*map(smooth, others))))


def smooth(x: list[float]) -> list[float]:
    """Each averaged with up to SMOOTH - 1 before it."""
    return [sum(x[max(0, i - SMOOTH + 1) : i + 1]) / len(x[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(x))]


def distances(ours: list[float], theirs: list[float]) -> float:
    """The largest difference of the two series, each averaged over the last SMOOTH steps."""
    return largest(abs(a - b) for a, b in zip(smooth(ours), smooth(theirs)))


def largest(values: Iterable[float]) -> float:
    """NaN where one is: `max` passes over those that do not come first, and a run that diverged would lie where it last was."""
    found = list(values)
    return next((v for v in found if v != v), max(found))
