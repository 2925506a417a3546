"""The training loop: `train(TrainConfig(...))`.

On CUDA the host never waits for the device inside a step: batches come from pinned memory, the gradient is clipped by a norm
that stays on the device, and losses are looked at every `log_every` steps. On our kernels a step is the replay of a CUDA graph (stepper.py).
"""

import dataclasses
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch import Tensor

from rooftile.core.record import unwritable
from rooftile.models.atomic import atomic_file
from rooftile.training.anomaly import Watch, check_divergence
from rooftile.training.checkpoint import checkpoints, load_checkpoint, newest, restore, save_checkpoint
from rooftile.training.config import TrainConfig
from rooftile.training.data import evaluation_batches, load_data, to_device, training_batch
from rooftile.training.errors import TrainError
from rooftile.training.memory import MemoryTimeline
from rooftile.training.metrics import Metrics, draw_curve, memory_bytes, read_metrics
from rooftile.training.model import build_model, export
from rooftile.training.parallel import Team
from rooftile.training.signals import Interrupted, Terminated, Termination
from rooftile.training.stepper import Stepper, build_optimizer, train_step

__all__ = ["TrainResult", "train"]

# What decides the series of batches and losses besides the text: a resumed run must agree on these with its checkpoint.
SERIES = ("seed", "batch_size", "accumulate", "context", "tokenizer", "weights")
SAMPLE = {"temperature": 0.8, "top_k": 50}


@dataclass(frozen=True)
class TrainResult:
    """What a run came to. Losses are in nats a token; `loss` is the last training batch's, None when no step was left."""

    out: str
    steps: int
    loss: float | None
    val_loss: float
    parameters: int
    seconds: float  # wall time of this call, everything included
    tokens_per_s: float | None
    memory_bytes: int
    checkpoint: str
    metrics: str
    curve: str
    model: str  # a Hugging Face folder
    sample: str
    memory: str | None = None  # the picture of --memory

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)


def train(config: TrainConfig, *, progress: bool = True) -> TrainResult:
    """Train, evaluate, save, and leave in `config.out`: checkpoints, metrics.jsonl, loss.png, sample.txt and model/.

    Whatever can be refused is refused before anything is written: TrainError (a ValueError), ValueError or FileNotFoundError, one
    sentence. A non-finite loss raises TrainError and leaves the last good checkpoint, and so does a full disk. SIGTERM is answered after the
    step that runs: a checkpoint is saved and Terminated raised, which is a SystemExit; so is the first Ctrl-C, with a KeyboardInterrupt. A second ends at once.
    """
    began = time.perf_counter()
    config = config.resolved()
    team = Team(config)
    try:
        run = _Run(team.agree(config), team)
        with _alone(run):
            return _go(run, progress and team.rank == 0, began)
    finally:
        team.close()


def _go(run: "_Run", progress: bool, began: float) -> TrainResult:
    config, team = run.config, run.team
    try:
        with (
            deterministic(config.deterministic),
            Termination(signal.SIGTERM, signal.SIGINT) as termination,
            run.metrics() as metrics,
            _bar(run, progress) as advance,
        ):
            for step in range(run.step + 1, config.steps + 1):
                metrics.begin()
                loss, norm = run.update(step)
                metrics.add(step, config.learning_rate(step), loss, norm)
                log, evaluate, save = (step == config.steps or step % every == 0 for every in run.periods)
                asked = team.anyone(termination.asked > 0) if log or evaluate or save or team.world == 1 else False
                if log or evaluate or save or asked:  # raises on a loss that is not finite: such weights are never evaluated or saved
                    advance(step, metrics.flush())
                if evaluate:
                    metrics.evaluation(step, run.evaluate())
                if save or asked:
                    metrics.sync()  # a checkpoint never outlives its lines, be it the power that fails
                    run.save(step)
                if asked and step < config.steps:
                    came, ended = ("Ctrl-C", Interrupted) if termination.asked == signal.SIGINT else ("SIGTERM", Terminated)
                    raise ended(f"{came} came: stopped after step {step} of {config.steps}, {newest(run.out)} stands; go on with resume")
            if run.step == config.steps:  # none was left: the evaluation that ends a run may not have been made there
                metrics.evaluation(config.steps, run.evaluate())
                if run.elsewhere:
                    run.save(config.steps)
            trained = metrics.last
        return run.finish(trained, began)
    except OSError as error:  # a full disk, mostly
        stands = next((f"{path.name} stands" for path in checkpoints(run.out)), "no checkpoint had been written")
        where = f"{error.filename2 or error.filename}: " if error.filename else ""
        raise TrainError(f"the run in {run.out} stopped: {where}{error.strerror or error}; {stands}") from error


@contextmanager
def _alone(run: "_Run") -> Iterator[None]:
    """Two runs in one folder would take each other's files. The lock is the folder's, and goes with the process, however that ends; where a file system has none,
    nobody is refused."""
    folder, taken = os.open(run.out, os.O_RDONLY), False
    try:
        if run.team.rank == 0:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                taken = True
            except OSError:
                pass
        if run.team.anyone(taken):
            raise TrainError(f"{run.out} is another run's, which goes on: wait for its end, or choose another out")
        yield
    finally:
        os.close(folder)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside, only kernels that repeat to the last bit are chosen, ours and PyTorch's."""
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first call
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


class _Run:
    """Everything a run holds. Building it reads and checks all there is to read, and writes nothing before the last line."""

    def __init__(self, config: TrainConfig, team: Team):
        self.team = team
        self.config, self.out, self.device = config, Path(config.out), torch.device(config.device)
        self.periods = (config.log_every, config.eval_every, config.save_every)
        self.step, self.val_loss = 0, None
        self.data = load_data(config)
        self.prompt = self.data.tokenizer.encode(config.prompt.encode(errors="surrogateescape"))  # as it was typed, in whatever encoding
        torch.manual_seed(config.seed)
        self.model = build_model(config, self.data).to(self.device)
        self.forward = team.wrap(self.model)
        self.optimizer = build_optimizer(self.model, config)
        self._check_prompt()
        resumed = config.resume or config.resume_from
        self.elsewhere = bool(config.resume_from) and Path(config.resume_from).resolve().parent != self.out.resolve()
        if (found := checkpoints(self.out)) and (self.elsewhere or not resumed):
            raise TrainError(f"{self.out} already holds {found[0].name}: go on with resume, or choose another out")
        if resumed:
            self._resume(Path(config.resume_from) if config.resume_from else newest(self.out))
        # not the first two: optimizer states and choices of kernels are made there
        self.memory, self.drawn = None, min(self.step + 3, config.steps) if config.memory else None
        self.forward = torch.compile(self.forward) if config.kernels == "compile" else self.forward
        self.stepper = Stepper(self.forward, self.optimizer, config)
        if why := unwritable(self.out):
            raise TrainError(f"the output folder {self.out} cannot be written: {why}")

    def _check_prompt(self) -> None:
        if not self.config.sample_tokens:
            return
        if not len(self.prompt):
            raise TrainError("prompt is empty: a sample needs at least 1 token to begin with")
        if (largest := int(self.prompt.max())) >= (vocab := self.model.config.vocab_size):
            raise TrainError(f"prompt holds token {largest}, the model's vocabulary has only {vocab}")

    def _resume(self, path: Path) -> None:
        state = load_checkpoint(path)
        for name in SERIES:
            here, there = (_knob(name, config) for config in (vars(self.config), state["config"]))
            if there != here:
                raise TrainError(f"{path} was trained with {name} {there}, this run has {here}")
        if state["text_digest"] != self.data.digest:
            there, here = state["text_digest"], self.data.digest
            raise TrainError(f"{path} was trained on another text: its crc32 is {there:08x}, this one's is {here:08x}")
        if state.get("world", 1) != self.team.world:
            raise TrainError(f"{path} was trained by {state.get('world', 1)} processes, this run has {self.team.world}")
        if state["step"] > self.config.steps:
            raise TrainError(f"{path} is at step {state['step']}, past this run's steps {self.config.steps}")
        restore(path, state, self.model, self.optimizer, self.team.load)
        self.step, self.val_loss = state["step"], state["val_loss"]

    @contextmanager
    def metrics(self) -> Iterator[Metrics]:
        metrics = Metrics(
            self.out / "metrics.jsonl" if self.team.rank == 0 else None,
            step=self.step,
            steps=self.config.steps,
            eval_every=self.config.eval_every,
            step_tokens=self.team.world * self.config.step_rows * self.config.context,
            device=self.device,
        )
        try:
            yield metrics
        finally:
            metrics.close()

    def update(self, step: int) -> tuple[Tensor, Tensor]:
        """One step, watched as the config asks."""
        config, batch = self.config, self.batch(step)
        if step == self.drawn:
            with MemoryTimeline(self.model, self.optimizer, self.device) as timeline:
                made = self.stepper(batch, step)
            self.memory = str(timeline.draw(self.out, step)) if self.team.rank == 0 else None
        elif config.detect_anomaly:
            with Watch(step):
                look = partial(check_divergence, step, vocab_size=self.model.config.vocab_size, model=self.model)
                made = train_step(self.forward, self.optimizer, to_device(batch, self.device), config, step, look)
        else:
            made = self.stepper(batch, step)
        return self.team.mean(*made)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        config = self.config
        rows = training_batch(self.data.train, config.context, self.team.world * config.step_rows, seed=config.seed, step=step)
        return self.team.share(rows)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the validation windows; by the plain model: compiling it for this would cost more than it saves."""
        self.model.eval()
        total, rows = torch.zeros((), device=self.device), 0
        config = self.config
        batches = config.eval_batches * self.team.world  # the same windows in every process: no sum to be agreed on
        for batch in evaluation_batches(self.data.validation, config.context, config.batch_size, batches):
            x, y = to_device(batch, self.device)
            total += self.model(x, y) * len(x)
            rows += len(x)
        self.model.train()
        self.val_loss = total.item() / rows
        return self.val_loss

    def save(self, step: int) -> None:
        weights, states = self.team.whole(self.model, self.optimizer)
        if self.team.rank == 0:
            self._save(weights, states, step)
        self.team.wait()

    def _save(self, weights: dict, states: dict, step: int) -> None:
        save_checkpoint(
            self.out,
            weights,
            states,
            step=step,
            world=self.team.world,
            config=dataclasses.asdict(self.config),
            model_config=dataclasses.asdict(self.model.config),
            text_digest=self.data.digest,
            val_loss=self.val_loss,
        )

    def sample(self) -> str:
        """Text drawn from the model, the same for the same weights and seed."""
        if not self.config.sample_tokens:
            return ""
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        start = torch.as_tensor(self.prompt, device=self.device).long()[None]
        drawn = self.model.generate(start, self.config.sample_tokens, generator=generator, **SAMPLE)
        return self.data.tokenizer.decode(drawn[0].tolist())

    def finish(self, trained: dict, began: float) -> TrainResult:
        """Draw the curve and a sample, export the model, and say what came of it."""
        out, sample = self.out, self.sample()
        weights, _ = self.team.whole(self.model, self.optimizer)
        if self.team.rank == 0:
            draw_curve(read_metrics(out / "metrics.jsonl"), out / "loss.png")
            with atomic_file(out / "sample.txt") as file:
                file.write(sample.encode())
            export(self.model, weights, out / "model")
        self.team.wait()
        return TrainResult(
            out=str(out),
            steps=self.config.steps,
            loss=trained.get("loss"),
            val_loss=self.val_loss,
            parameters=sum(p.numel() for p in self.model.parameters()),
            seconds=time.perf_counter() - began,
            tokens_per_s=trained.get("tokens_per_s"),
            memory_bytes=memory_bytes(self.device),
            checkpoint=str(newest(out)),
            metrics=str(out / "metrics.jsonl"),
            curve=str(out / "loss.png"),
            model=str(out / "model"),
            sample=sample,
            memory=self.memory,
        )


def _knob(name: str, config: dict) -> Any:
    """Its value, the default where the knob is younger than the checkpoint. What masters are stored as is float32 weights (`Team.whole`)."""
    value = config.get(name, TrainConfig.__dataclass_fields__[name].default)
    return "float32" if name == "weights" and value != "bfloat16" else value


@contextmanager
def _bar(run: _Run, shown: bool) -> Iterator:
    """A progress bar on stderr -> advance(step, row)."""
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))  # in 80 columns the bar gives way, not the step
    columns = (TextColumn("step"), count, BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("train", total=run.config.steps, completed=run.step, figures="")

        def advance(step: int, row: dict) -> None:
            val = "" if run.val_loss is None else f" (validation {run.val_loss:.3f})"
            speed, memory = f"{row['tokens_per_s']:,.0f} tokens/s", f"{row['memory_bytes'] / 2**30:.2f} GiB"
            bar.update(task, completed=step, figures=f"loss {row['loss']:.3f}{val}  {speed}  {memory}")

        yield advance
