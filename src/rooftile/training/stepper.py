"""One update after another: eagerly, or as replays of one CUDA graph.

A step of GPT-2 is some 500 launches from Python, which the host needs as long for as the H200 for the work. As a graph it is one call. Of a step
only its batch and its rates change; they are sent before each replay to where the graph reads them.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rooftile.training.config import TrainConfig
from rooftile.training.data import to_device
from rooftile.training.errors import TrainError

__all__ = ["Stepper", "build_optimizer", "train_step"]

WARMUP = 3  # eager steps: the first compiles, the second writes launches down (core/replay.py), the third allocates as all others will


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The table's AdamW; matrices decay, vectors (biases and norms) do not. With weights "master" the model is narrowed here: what products
    read becomes bfloat16, the same numbers that float32 weights are cast to where they are used; norms read float32."""
    table = model.precision.operators
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    options: dict[str, Any] = {"max_norm": config.clip or math.inf} if table.clips else {}
    if config.weights == "master":
        options["master"] = True
    optimizer = table.adamw(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=1e-8, weight_decay=config.weight_decay, **options)
    if config.weights == "master":
        wide = {p for m in model.modules() if isinstance(m, (nn.LayerNorm, nn.RMSNorm)) for p in m.parameters()}
        optimizer.narrow(p for p in model.parameters() if p not in wide)
    return optimizer


def train_step(
    forward: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, Tensor],
    config: TrainConfig,
    step: int,
    look: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """One update from a batch of `accumulate` x `batch_size` rows -> mean loss and gradient norm, both still on the device.

    `look` sees the loss when all gradients are there and no weight has changed."""
    _set_rate(optimizer, config, step)
    return _step(forward, optimizer, batch, config, optimizer.step, look)


class Stepper:
    """`stepper(batch, step)`: `train_step` from a batch on the host. With `config.graph` "on" the steps after WARMUP are replays.

    Losses and norms are tensors of their own, and the host waits for nothing. The graph keeps its memory (`pool_bytes`) between steps;
    what runs eagerly there, an evaluation say, takes other memory.
    """

    def __init__(self, forward: nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig):
        self.forward, self.optimizer, self.config, self.device = forward, optimizer, config, torch.device(config.device)
        self.static = _Static(self) if config.graph == "on" else None

    def __call__(self, batch: tuple[Tensor, Tensor], step: int) -> tuple[Tensor, Tensor]:
        if self.static is not None:
            return self.static(batch, step)
        return train_step(self.forward, self.optimizer, to_device(batch, self.device), self.config, step)

    @property
    def pool_bytes(self) -> int:
        """What the graph holds, beside what PyTorch counts as allocated."""
        return self.static.pool_bytes if self.static is not None else 0


class _Static:
    """Steps on one pair of buffers. On a CPU, which has no graphs, the device's part of a step is called where it would be replayed."""

    def __init__(self, stepper: Stepper):
        self.forward, self.optimizer, self.config, self.device = stepper.forward, stepper.optimizer, stepper.config, stepper.device
        self.done, self.pool_bytes = 0, 0
        self.batch: tuple[Tensor, ...] = ()
        self.results: tuple[Tensor, Tensor] | None = None  # the graph's loss and norm, written anew by every replay
        self.replay: Callable[[], None] | None = None
        # warmed up and captured on a stream of its own: work on the default stream cannot be captured
        self.side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __call__(self, batch: tuple[Tensor, Tensor], step: int) -> tuple[Tensor, Tensor]:
        self._send(batch)
        _set_rate(self.optimizer, self.config, step)
        self.done += 1
        if self.done <= WARMUP:
            results = self._aside(self.optimizer.step)
        else:
            if self.replay is None:
                self.replay = self._capture()
            self.optimizer.advance()
            self.replay()
            results = self.results
        loss, norm = results
        return loss.clone(), norm.clone()

    def _send(self, batch: tuple[Tensor, Tensor]) -> None:
        if not self.batch:
            self.batch = tuple(torch.empty_like(t, device=self.device) for t in batch)
        for here, there in zip(self.batch, batch):
            if here.shape != there.shape:
                raise ValueError(f"the step was captured on a batch of {list(here.shape)}, this one is {list(there.shape)}")
            here.copy_(there.pin_memory() if self.side is not None else there, non_blocking=True)

    def _step(self, optimize: Callable[[], object]) -> tuple[Tensor, Tensor]:
        return _step(self.forward, self.optimizer, self.batch, self.config, optimize)

    def _aside(self, optimize: Callable[[], object]) -> tuple[Tensor, Tensor]:
        if self.side is None:
            return self._step(optimize)
        here = torch.cuda.current_stream(self.device)
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            results = self._step(optimize)
        here.wait_stream(self.side)
        return results

    def _capture(self) -> Callable[[], None]:
        if self.side is None:
            return self._again
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the warm-up's activations: the graph's memory would stand beside them
        before = torch.cuda.memory_reserved(self.device)
        try:
            # the outer stream: a capture that fails leaves its own current
            with torch.cuda.stream(torch.cuda.current_stream(self.device)), torch.cuda.graph(graph, stream=self.side):
                self.results = self._step(self.optimizer.step)  # of which a capture takes the device's part
        except RuntimeError as error:
            generator = torch.cuda.default_generators[self.side.device.index]
            generator.graphsafe_set_state(generator.clone_state())  # it takes itself to be captured still, and would draw nothing more
            first: BaseException = error  # the end of a capture that has failed raises again, and says less
            while isinstance(first.__context__, RuntimeError):
                first = first.__context__
            raise TrainError(f"the step cannot be captured in a CUDA graph, run it with graph off: {str(first).splitlines()[0]}") from error
        self.pool_bytes = torch.cuda.memory_reserved(self.device) - before
        return graph.replay

    def _again(self) -> None:
        self.results = self._step(self.optimizer.update)


def _set_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate(step)


def _step(
    forward: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, ...],
    config: TrainConfig,
    optimize: Callable[[], object],
    look: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Everything of a step that the device does; the host decides nothing here unless it looks, so that it can be captured."""
    total = None
    for x, y in zip(*(t.split(config.batch_size) for t in batch)):
        loss = forward(x, y) / config.accumulate
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    if look is not None:
        look(total)
    clips = getattr(optimizer, "max_norm", None) is not None  # ours, which scales gradients as it reads them
    norm = None if clips else _clip(optimizer, config.clip)
    optimize()
    optimizer.zero_grad(set_to_none=True)
    return total, optimizer.grad_norm if clips else norm


def _clip(optimizer: torch.optim.Optimizer, most: float) -> Tensor:
    """The norm of all gradients, which are scaled down to `most` where that is not 0."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if most > 0:
        return nn.utils.clip_grad_norm_(parameters, most, foreach=True)
    return nn.utils.get_total_norm([p.grad for p in parameters], foreach=True)
