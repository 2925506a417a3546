"""Whole training steps, the same model on each table, or a peer's of the same weights: milliseconds, tokens a second, peak memory, and whether the losses agree.

Each contestant starts from the same weights and sees the same batches. Peak memory is taken with nobody else alive; then all live
side by side and take turns, so that a clock that drifts or a neighbour that wakes up hurts them alike, and each follows each other as
often (`timing.turns`). Our steps are replays of a CUDA graph, as `rooftile train` makes them, unless `Setup.graph` is "off"; PyTorch's
are launched one by one, compiled or not.
"""

import dataclasses
import gc
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rooftile.core.timing import turns
from rooftile.models import KERNELS, LLAMA_1_2B, GPT2Config, LlamaConfig
from rooftile.training.config import TrainConfig
from rooftile.training.data import training_batch
from rooftile.training.model import new_model
from rooftile.training.peers import PEERS, peer_model
from rooftile.training.stepper import Stepper, build_optimizer
from rooftile.training.text import standard_library

__all__ = ["GPT2_124M", "LLAMA", "Setup", "benchmark_training", "compare_losses"]

GPT2_124M = GPT2Config(vocab_size=50304)  # 50257 rounded up to whole matrix tiles, as everyone trains it
WARMUP = 4  # steps: compiling, tuning, the optimizer's state, the allocator's growth and the capture are over by then
TEXT_BYTES = 8_000_000


@dataclass(frozen=True)
class Setup:
    """What is trained, and how a step is made up."""

    model: GPT2Config | LlamaConfig = GPT2_124M
    batch_size: int = 32
    context: int = 1024
    dtype: str = "bfloat16"
    weights: str = "auto"
    device: str = "cuda"
    graph: str = "auto"
    seed: int = 0

    def config(self, **changes: float | str) -> TrainConfig:
        if self.context > self.model.n_positions:
            raise ValueError(f"context is {self.context}, the model's n_positions is {self.model.n_positions}")
        kind = "llama" if isinstance(self.model, LlamaConfig) else "gpt2"
        return TrainConfig(**{**vars(self), "model": kind, **changes}).resolved()


LLAMA = Setup(LLAMA_1_2B, batch_size=4, context=4096, weights="bfloat16")


def benchmark_training(kernels: Iterable[str] = KERNELS, setup: Setup = Setup(), *, steps: int = 20, rounds: int = 6) -> list[dict]:
    """One row a table: `ms` a step (the median over `rounds` turns of `steps` steps, with the lowest and the highest),
    `tokens_per_s`, `peak_bytes`, `loss` after the last step, and what was run.

    Clipping is off and the learning rate constant: a step is forward, backward and AdamW. When the contestants together would
    not fit beside the largest peak they are timed one after another, and `interleaved` says so.
    """
    kernels = tuple(kernels)
    config, model, device = setup.config(steps=WARMUP + rounds * steps, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0), setup.model, setup.device
    peaks, resident, configs = {}, {}, {}
    for name in kernels:
        with _contestant(name, model, config) as one:
            one.run(WARMUP)
            held = one.stepper.pool_bytes  # a replay allocates nothing, and its memory is nobody else's between steps
            resident[name] = _allocated(device) + held
            _reset_peak(device)
            one.run(2)
            peaks[name], configs[name] = _peak(device) + held, one.config
    together = sum(resident.values()) + max(p - resident[n] for n, p in peaks.items())
    interleaved = together < 0.9 * _memory(device)
    times, losses = (_interleaved if interleaved else _in_turn)(kernels, model, config, rounds, steps)
    tokens = setup.batch_size * setup.context
    return [
        {
            "kernels": name,
            "ms": statistics.median(times[name]),
            "ms_low": min(times[name]),
            "ms_high": max(times[name]),
            "tokens_per_s": 1e3 * tokens / statistics.median(times[name]),
            "peak_bytes": peaks[name],
            "loss": losses[name],
            "interleaved": interleaved,
            "steps": steps,
            "rounds": rounds,
            **vars(setup),
            "graph": configs[name].graph == "on",
            "weights": configs[name].weights,
            "model": dataclasses.asdict(model),
        }
        for name in kernels
    ]


def compare_losses(kernels: Iterable[str] = KERNELS, setup: Setup = Setup(), *, steps: int = 200) -> list[dict]:
    """One row a table: {"kernels", "dtype", "losses": [float] * steps} from the same weights over the same batches.

    GPT-2 124M's usual recipe on the tokens of `rooftile train` (bytes): a peak rate of 6e-4 after 700 steps of warm-up, cut off after
    `steps`. Where the loss falls steeply any two runs part before they meet again, PyTorch's eager and compiled ones too; their
    distance is in the record beside ours.
    """
    config = setup.config(steps=steps, lr=6e-4, min_lr=6e-5, warmup=700, clip=1.0)
    rows = []
    for name in kernels:
        with _contestant(name, setup.model, config, width=1) as one:
            losses = torch.stack(one.run(steps)).tolist()
        rows.append({"kernels": name, "dtype": setup.dtype, "losses": losses})
    return rows


class _Contestant:
    """One table's model and optimizer, and how many steps it has done."""

    def __init__(self, kernels: str, model: GPT2Config | LlamaConfig, config: TrainConfig, tokens: Tensor):
        theirs = {"graph": "off", "weights": "float32" if config.weights == "master" else config.weights}
        table = "torch" if kernels in PEERS else kernels  # of what is not the model's: a peer's optimizer is PyTorch's
        self.config = config = dataclasses.replace(config, kernels=table, **({} if kernels == "rooftile" else theirs))
        self.tokens, self.step = tokens, 0
        torch.manual_seed(config.seed)
        with torch.device(config.device):  # a CPU takes a quarter of a minute to draw a billion weights
            made = peer_model(kernels, model, config) if kernels in PEERS else new_model(model, config)
        network = made.to(config.device)
        forward = torch.compile(network) if kernels == "compile" else network
        self.stepper = Stepper(forward, build_optimizer(network, config), config)

    def run(self, steps: int) -> list[Tensor]:
        """Do `steps` steps -> their losses, still on the device."""
        config, losses = self.config, []
        for _ in range(steps):
            self.step += 1
            batch = training_batch(self.tokens, config.context, config.batch_size, seed=config.seed, step=self.step)
            losses.append(self.stepper(batch, self.step)[0])
        return losses

    def timed(self, steps: int) -> tuple[float, float]:
        """Do `steps` steps -> milliseconds a step by the wall clock between two synchronisations, and the last loss."""
        _synchronise(self.config.device)
        began = time.perf_counter()
        losses = self.run(steps)
        _synchronise(self.config.device)
        return 1e3 * (time.perf_counter() - began) / steps, losses[-1].item()


@contextmanager
def _contestant(kernels: str, model: GPT2Config | LlamaConfig, config: TrainConfig, width: int = 2) -> Iterator[_Contestant]:
    """A contestant alone on the device; everything it held is given back at the end."""
    _free(config.device)
    one = _Contestant(kernels, model, config, _tokens(model.vocab_size, width))
    try:
        yield one
    finally:
        _synchronise(config.device)  # a graph is not taken from under its replays
        one.__dict__.clear()  # the caller's name still points to `one`: empty it
        _free(config.device)


def _interleaved(kernels: tuple, model: GPT2Config | LlamaConfig, config: TrainConfig, rounds: int, steps: int) -> tuple[dict, dict]:
    """A B C, A C B, ...: times and last losses by name."""
    tokens = _tokens(model.vocab_size)
    field = {name: _Contestant(name, model, config, tokens) for name in kernels}
    times, losses = {name: [] for name in kernels}, {}
    for one in field.values():
        one.run(WARMUP)
    for name in turns(dict.fromkeys(kernels, rounds)):
        ms, losses[name] = field[name].timed(steps)
        times[name].append(ms)
    field.clear()
    _free(config.device)
    return times, losses


def _in_turn(kernels: tuple, model: GPT2Config | LlamaConfig, config: TrainConfig, rounds: int, steps: int) -> tuple[dict, dict]:
    """A A A, B B B, ...: for a device too small to hold them all."""
    times, losses = {}, {}
    for name in kernels:
        with _contestant(name, model, config) as one:
            one.run(WARMUP)
            taken = [one.timed(steps) for _ in range(rounds)]
        times[name], losses[name] = [ms for ms, _ in taken], taken[-1][1]
    return times, losses


def _tokens(vocab_size: int, width: int = 2) -> Tensor:
    """Source code, with no download. Two bytes to a token for timing: real text's skewed frequencies (they decide how the embedding's
    gradient collides) over a vocabulary of GPT-2's size. One byte, the tokens of `rooftile train`, for losses: four megabytes of pairs
    are seen more than once in 200 steps."""
    pieces = np.frombuffer(standard_library(TEXT_BYTES), dtype="<u2" if width == 2 else np.uint8)
    return torch.from_numpy(pieces.astype(np.int32) % vocab_size)


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _free(device: str) -> None:
    gc.collect()
    torch.compiler.reset()  # compiled graphs hold on to their model's memory
    if device != "cpu":
        torch.cuda.empty_cache()


def _reset_peak(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: str) -> int:
    """Bytes; 0 on a CPU, where PyTorch does not count."""
    return 0 if device == "cpu" else torch.cuda.max_memory_allocated(device)


def _allocated(device: str) -> int:
    return 0 if device == "cpu" else torch.cuda.memory_allocated(device)


def _memory(device: str) -> int:
    return 1 if device == "cpu" else torch.cuda.get_device_properties(device).total_memory
