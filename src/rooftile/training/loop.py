"""The training loop: `train(TrainConfig(...))`.

On CUDA the host never waits for the device inside a step: batches come from pinned memory, the gradient is clipped by a norm
that stays on the device, and losses are looked at every `log_every` steps. On our kernels a step is the replay of a CUDA graph (stepper.py).
"""

import dataclasses
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from rooftile.models.atomic import atomic_file
from rooftile.training.checkpoint import checkpoints, load_checkpoint, newest, restore, save_checkpoint
from rooftile.training.config import TrainConfig
from rooftile.training.data import evaluation_batches, load_data, to_device, training_batch
from rooftile.training.errors import TrainError
from rooftile.training.metrics import Metrics, draw_curve, memory_bytes, read_metrics
from rooftile.training.model import build_model
from rooftile.training.stepper import Stepper, build_optimizer

__all__ = ["TrainResult", "train"]

# What decides the series of batches and losses besides the text: a resumed run must agree on these with its checkpoint.
SERIES = ("seed", "batch_size", "accumulate", "context", "tokenizer")
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

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)


def train(config: TrainConfig, *, progress: bool = True) -> TrainResult:
    """Train, evaluate, save, and leave in `config.out`: checkpoints, metrics.jsonl, loss.png, sample.txt and model/.

    Whatever can be refused is refused before anything is written: TrainError (a ValueError), ValueError or FileNotFoundError, one
    sentence. A non-finite loss raises TrainError and leaves the last good checkpoint.
    """
    began = time.perf_counter()
    run = _Run(config.resolved())
    with run.metrics() as metrics, _bar(run, progress) as advance:
        for step in range(run.step + 1, run.config.steps + 1):
            metrics.begin()
            loss, norm = run.stepper(run.batch(step), step)
            metrics.add(step, run.config.learning_rate(step), loss, norm)
            log, evaluate, save = (step == run.config.steps or step % every == 0 for every in run.periods)
            if log or evaluate or save:  # raises on a loss that is not finite: such weights are never evaluated or saved
                advance(step, metrics.flush())
            if evaluate:
                metrics.evaluation(step, run.evaluate())
            if save:
                metrics.sync()  # a checkpoint never outlives its lines, be it the power that fails
                run.save(step)
        trained = metrics.last
    return run.finish(trained, began)


class _Run:
    """Everything a run holds. Building it reads and checks all there is to read, and writes nothing before the last line."""

    def __init__(self, config: TrainConfig):
        self.config, self.out, self.device = config, Path(config.out), torch.device(config.device)
        self.periods = (config.log_every, config.eval_every, config.save_every)
        self.step, self.val_loss = 0, None
        self.data = load_data(config)
        self.prompt = self.data.tokenizer.encode(config.prompt.encode())
        if config.sample_tokens and not len(self.prompt):
            raise TrainError("prompt is empty: a sample needs at least 1 token to begin with")
        torch.manual_seed(config.seed)
        self.model = build_model(config, self.data).to(self.device)
        self.optimizer = build_optimizer(self.model, config)
        if config.resume or config.resume_from:
            self._resume(Path(config.resume_from) if config.resume_from else newest(self.out))
        elif found := checkpoints(self.out):
            raise TrainError(f"{self.out} already holds {found[0].name}: go on with resume, or choose another out")
        forward = torch.compile(self.model) if config.kernels == "compile" else self.model
        self.stepper = Stepper(forward, self.optimizer, config)
        _make_folder(self.out)

    def _resume(self, path: Path) -> None:
        state = load_checkpoint(path)
        for name in SERIES:
            there, here = state["config"][name], getattr(self.config, name)
            if there != here:
                raise TrainError(f"{path} was trained with {name} {there}, this run has {here}")
        if state["text_digest"] != self.data.digest:
            there, here = state["text_digest"], self.data.digest
            raise TrainError(f"{path} was trained on another text: its crc32 is {there:08x}, this one's is {here:08x}")
        if state["step"] > self.config.steps:
            raise TrainError(f"{path} is at step {state['step']}, past this run's steps {self.config.steps}")
        restore(path, state, self.model, self.optimizer)
        self.step, self.val_loss = state["step"], state["val_loss"]

    @contextmanager
    def metrics(self) -> Iterator[Metrics]:
        metrics = Metrics(
            self.out / "metrics.jsonl",
            step=self.step,
            eval_every=self.config.eval_every,
            step_tokens=self.config.step_rows * self.config.context,
            device=self.device,
        )
        try:
            yield metrics
        finally:
            metrics.close()

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        config = self.config
        return training_batch(self.data.train, config.context, config.step_rows, seed=config.seed, step=step)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the validation windows; by the plain model: compiling it for this would cost more than it saves."""
        self.model.eval()
        total, rows = torch.zeros((), device=self.device), 0
        config = self.config
        for batch in evaluation_batches(self.data.validation, config.context, config.batch_size, config.eval_batches):
            x, y = to_device(batch, self.device)
            total += self.model(x, y) * len(x)
            rows += len(x)
        self.model.train()
        self.val_loss = total.item() / rows
        return self.val_loss

    def save(self, step: int) -> None:
        save_checkpoint(
            self.out,
            self.model,
            self.optimizer,
            step=step,
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
        out = self.out
        draw_curve(read_metrics(out / "metrics.jsonl"), out / "loss.png")
        sample = self.sample()
        with atomic_file(out / "sample.txt") as file:
            file.write(sample.encode())
        self.model.save_pretrained(out / "model")
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
        )


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass  # permission bits do not tell the truth on every file system: writing does
    except OSError as error:
        raise TrainError(f"the output folder {out} cannot be written: {error.strerror}") from None


@contextmanager
def _bar(run: _Run, shown: bool) -> Iterator:
    """A progress bar on stderr -> advance(step, row)."""
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("train", total=run.config.steps, completed=run.step, figures="")

        def advance(step: int, row: dict) -> None:
            val = "" if run.val_loss is None else f" (validation {run.val_loss:.3f})"
            speed, memory = f"{row['tokens_per_s']:,.0f} tokens/s", f"{row['memory_bytes'] / 2**30:.2f} GiB"
            bar.update(task, completed=step, figures=f"loss {row['loss']:.3f}{val}  {speed}  {memory}")

        yield advance
