"""Every knob of a run, with its one line of help: the command line is made from this."""

import dataclasses
import math
import numbers
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rooftile.models import KERNELS
from rooftile.training.errors import TrainError

__all__ = ["TrainConfig"]

MODELS = ("gpt2", "llama", "llama-1.2b")
PARALLEL = ("none", "ddp", "fsdp")
TOKENIZERS = ("bytes", "gpt2")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NARROW = ("bfloat16", "master")  # weights that products read as they are


# what a knob of each kind is given as, and how that is said
KINDS = {
    str: ((str, os.PathLike, torch.device), "a text"),
    bool: ((numbers.Integral, np.bool_), "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
}


def _knob(default, help: str):
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TrainConfig:
    """A run. The defaults are a small byte-level model that trains in three minutes on two slow CPU cores."""

    out: str = _knob("", "folder for checkpoints, metrics and the loss curve [a new one under runs/]")
    steps: int = _knob(300, "optimizer steps in all, those before a resume included")
    batch_size: int = _knob(16, "sequences in one forward pass")
    context: int = _knob(128, "tokens in a sequence")
    accumulate: int = _knob(1, "forward passes whose gradients are averaged into one step")
    kernels: str = _knob("rooftile", f"which operators compute: {', '.join(KERNELS)}")
    device: str = _knob("auto", "cpu, cuda, or auto: cuda when there is one")
    graph: str = _knob("auto", "the step as a CUDA graph, on rooftile's kernels: on, off, or auto: on for one cuda device without dropout")
    dtype: str = _knob("auto", "float32, bfloat16, or auto: bfloat16 on cuda")
    weights: str = _knob(
        "auto",
        "float32, bfloat16 (rounded at random), master (bfloat16 beside float32 masters in AdamW), or auto: master on one cuda device, for "
        "rooftile's kernels in bfloat16 without accumulate",
    )
    parallel: str = _knob("none", f"how the processes of torchrun share the model: {', '.join(PARALLEL)}; batch_size is each one's")
    seed: int = _knob(0, "draws the initial weights, the batches, dropout and the sample")

    text: str = _knob("", "a text file, or tinyshakespeare [Python's own standard library]")
    tokenizer: str = _knob("bytes", f"how text becomes tokens: {', '.join(TOKENIZERS)}")
    text_mb: float = _knob(4.0, "megabytes of the standard library to read, when that is the text")

    model: str = _knob("gpt2", f"which one: {', '.join(MODELS)}; the last has its shape by name")
    n_layer: int = _knob(4, "blocks")
    n_head: int = _knob(4, "heads")
    n_kv_head: int = _knob(0, "heads of keys and values of a llama [half as many, where that is whole]")
    n_embd: int = _knob(128, "width of the residual stream")
    dropout: float = _knob(0.0, "dropout of the embedding and of both branches; attention draws none")
    init: str = _knob("", "start from this Hugging Face folder of the same kind of model; its config.json then gives the shape")
    checkpointing: bool = _knob(False, "keep only each block's input and compute the rest again in the backward pass")

    lr: float = _knob(3e-3, "peak learning rate")
    min_lr: float = _knob(3e-4, "learning rate at the end of the cosine")
    warmup: int = _knob(50, "steps over which the learning rate rises from zero")
    decay_steps: int = _knob(0, "step at which the cosine ends [steps]")
    weight_decay: float = _knob(0.1, "decay of the matrices; vectors have none")
    beta1: float = _knob(0.9, "AdamW's first decay rate")
    beta2: float = _knob(0.95, "AdamW's second decay rate")
    clip: float = _knob(1.0, "largest global norm of the gradient; 0 leaves it alone")

    resume: bool = _knob(False, "go on from the newest checkpoint in out [the last run under runs/]")
    resume_from: str = _knob("", "go on from this checkpoint file instead of the newest")
    save_every: int = _knob(100, "steps between checkpoints; the last two are kept")
    eval_every: int = _knob(100, "steps between evaluations on the validation part")
    eval_batches: int = _knob(16, "batches in one evaluation")
    log_every: int = _knob(10, "steps between looks at the device: losses wait there until then")
    memory: bool = _knob(False, "draw memory.png: what the third step holds, by time")
    detect_anomaly: bool = _knob(False, "look at every operator's result: a nan, or a loss that diverges, stops with its operator; slow")
    deterministic: bool = _knob(False, "only kernels that repeat to the last bit: a resumed run on a GPU then equals the whole one")
    sample_tokens: int = _knob(256, "tokens of text drawn at the end")
    prompt: str = _knob("\n", "what that text begins with")

    def __post_init__(self):
        self._make_plain()
        for name in ("steps", "batch_size", "context", "accumulate", "save_every", "eval_every", "eval_batches", "log_every"):
            self._at_least(name, 1)
        for name in ("seed", "warmup", "decay_steps", "sample_tokens", "n_kv_head", "lr", "min_lr", "weight_decay", "clip"):
            self._at_least(name, 0)
        for name in ("beta1", "beta2", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise TrainError(f"{name} is {getattr(self, name)}, must be at least 0 and below 1")
        if not 1e-6 <= self.text_mb < math.inf:
            raise TrainError(f"text_mb is {self.text_mb}, must be at least 0.000001, a byte, and finite")
        if self.min_lr > self.lr:
            raise TrainError(f"min_lr is {self.min_lr}, above lr {self.lr}: the rate would rise to it; make it at most lr")
        if self.seed >= 2**64:
            raise TrainError(f"seed is {self.seed}, must be below {2**64}")
        for name, words in (
            ("kernels", KERNELS),
            ("model", MODELS),
            ("parallel", PARALLEL),
            ("tokenizer", TOKENIZERS),
            ("graph", ("auto", "on", "off")),
            ("dtype", ("auto", *DTYPES)),
            ("weights", ("auto", *DTYPES, "master")),
        ):
            if getattr(self, name) not in words:
                raise TrainError(f"{name} is {getattr(self, name)!r}, must be one of {', '.join(words)}")
        if self.detect_anomaly and self.kernels == "compile":
            raise TrainError("detect_anomaly looks at single operators, and kernels 'compile' has none to look at: take torch or rooftile")
        if self.parallel != "none" and self.dropout > 0:
            raise TrainError(
                f"dropout is {self.dropout} beside parallel {self.parallel!r}: each process would draw the same mask for other rows"
            )
        self._fit_the_model()

    def _make_plain(self) -> None:
        """A checkpoint holds the knobs, and torch.load takes no path and no number of numpy's again. None is a text that is not there."""
        for f in dataclasses.fields(self):
            value, kind = getattr(self, f.name), type(f.default)
            value = "" if value is None and kind is str else value
            taken, said = KINDS[kind]
            if not isinstance(value, taken) or (isinstance(value, bool) and kind in (int, float)):  # Python counts True as 1
                raise TrainError(f"{f.name} is {value!r}, must be {said}")
            object.__setattr__(self, f.name, kind(value))

    def _fit_the_model(self) -> None:
        """Knobs that a model does not have are refused where they are not at their default."""
        given = {f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        without = {"gpt2": ("n_kv_head",), "llama": ("dropout",)}.get(
            self.model, ("dropout", "n_layer", "n_head", "n_embd", "n_kv_head", "init")
        )
        for name in without:
            if name in given:
                raise TrainError(
                    f"{name} is {getattr(self, name)!r}, but the model {self.model} does not take it: leave it at {TrainConfig.__dataclass_fields__[name].default!r}"
                )
        if self.weights in NARROW and self.dtype == "float32":
            raise TrainError(
                f"weights is {self.weights!r} beside dtype 'float32': products would be float32 of bfloat16 numbers; make dtype bfloat16"
            )
        if self.weights == "master" and self.kernels != "rooftile":
            raise TrainError(f"weights is 'master' beside kernels {self.kernels!r}: only rooftile's AdamW keeps float32 masters")
        if self.weights == "master" and self.parallel != "none":
            raise TrainError(
                f"weights is 'master' beside parallel {self.parallel!r}: gradients would be added up over processes in bfloat16; leave it at 'auto'"
            )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not least <= value < math.inf:
            raise TrainError(f"{name} is {value}, must be at least {least} and finite")

    def resolved(self) -> "TrainConfig":
        """The same run with every "auto" and empty default decided. TrainError when the device is not there, or others that run the same are."""
        processes = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
        if processes > 1 and self.parallel == "none":
            raise TrainError(f"parallel is 'none', but these are {processes} processes, which would write one folder: make it ddp or fsdp")
        if self.resume_from and Path(self.resume_from).is_dir():
            raise TrainError(
                f"resume_from is {self.resume_from}, a folder, must be one checkpoint file; out and resume go on from a folder's newest"
            )
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            kind = torch.device(device).type
        except RuntimeError:
            kind = ""
        if kind not in ("cpu", "cuda"):
            raise TrainError(f"device is {device!r}, must be auto, cpu, cuda or cuda:N")
        if kind == "cuda" and not torch.cuda.is_available():
            raise TrainError(f"device {device} was asked for, but torch {torch.__version__} finds no CUDA device")
        dtype = self.dtype
        if dtype == "auto":
            dtype = "bfloat16" if kind == "cuda" or self.weights in NARROW else "float32"
        weights = self.weights
        if weights == "auto":
            # bfloat16 gradients are those of float32 weights before their cast; added up, over batches or processes, they would be rounded again
            alone = self.accumulate == 1 and self.parallel == "none"
            weights = "master" if self.kernels == "rooftile" and kind == "cuda" and dtype == "bfloat16" and alone else "float32"
        out = self.out
        if not out:
            new = time.strftime(f"runs/%Y%m%d-%H%M%S-{os.getpid()}")  # two may begin in the same second
            out = str(self._last_run()) if self.resume or self.resume_from else new
        graph = self.graph
        if graph == "auto":
            eager = self.dropout or self.detect_anomaly or self.parallel != "none"
            graph = "on" if kind == "cuda" and self._graphed and not eager else "off"
        elif graph == "on":
            self._check_graph(kind)
        decay_steps = self.decay_steps or self.steps
        return dataclasses.replace(self, device=device, dtype=dtype, weights=weights, out=out, graph=graph, decay_steps=decay_steps)

    @property
    def _graphed(self) -> bool:
        return self.kernels == "rooftile"

    def _check_graph(self, kind: str) -> None:
        for name, value in (("detect_anomaly", self.detect_anomaly), ("parallel", self.parallel != "none" and self.parallel)):
            if value:
                raise TrainError(f"graph is 'on' beside {name} {value!r}: the host takes part in each such step, leave graph at 'auto'")
        if kind != "cuda":
            raise TrainError(f"graph is 'on', but the device is {kind}: CUDA graphs are of a CUDA device")
        if not self._graphed:
            raise TrainError(
                f"graph is 'on' beside kernels {self.kernels!r}: only rooftile's AdamW takes its rates where a graph can read them"
            )
        if self.dropout and self.checkpointing:  # it puts the random state back by asking for it, which a capture forbids
            raise TrainError(
                f"graph is 'on' beside dropout {self.dropout} and checkpointing: the random state cannot be put back inside a graph"
            )

    def _last_run(self) -> Path:
        """The run to go on with when none is named: the checkpoint's own, or the newest under runs/ that has one."""
        if self.resume_from:
            return Path(self.resume_from).parent
        found = sorted(Path("runs").glob("*/checkpoint-*.pt"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise TrainError("resume found 0 checkpoints under runs/: name the run's folder with out")
        return found[-1].parent

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def built_dtype(self) -> torch.dtype:
        """What the model is made in; masters are what it was made of."""
        return DTYPES.get(self.weights, torch.float32)

    @property
    def step_rows(self) -> int:
        """Sequences behind one optimizer step."""
        return self.batch_size * self.accumulate

    def learning_rate(self, step: int) -> float:
        """The rate of update `step` = 1, 2, ...: a straight rise over `warmup`, then half a cosine from lr to min_lr."""
        if step <= self.warmup:
            return self.lr * step / self.warmup
        end = self.decay_steps or self.steps
        done = min(1.0, (step - self.warmup) / max(1, end - self.warmup))
        return self.min_lr + 0.5 * (self.lr - self.min_lr) * (1 + math.cos(math.pi * done))
