"""`--detect-anomaly`: the first operator that makes a nan or an infinity out of finite numbers, and a loss that runs away."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from rooftile.training.errors import TrainError

__all__ = ["Watch", "check_divergence", "written"]

# Operators that hand over an infinity they were given, or memory that nobody has written.
GIVEN = ("fill", "full", "masked_fill", "where", "scalar_tensor", "empty", "new_empty", "_to_copy", "zeros", "ones")
DIVERGED = 1.5  # times the loss of guessing every token alike


class Watch(TorchDispatchMode):
    """Inside, every operator's results are looked at: slow, and it waits for the device at each.

    Raises TrainError at the first that makes a nan where it read none, or an infinity where it read neither, with the module it ran in,
    forward or backward.
    """

    def __init__(self, step: int):
        super().__init__()
        self.step, self.tracker = step, ModuleTracker()

    def __enter__(self) -> "Watch":
        self.tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.tracker.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = set().union(*(_found(t) for t in _tensors((args, kwargs))))
        out = func(*args, **kwargs)
        if "nan" not in read and not func._opname.startswith(GIVEN):
            for t in (*_tensors(out), *written(func, args, kwargs)):
                if made := _found(t) - read:
                    raise TrainError(self._sentence(func, t, min(made, key=len)))  # a nan before an infinity
        return out

    def _sentence(self, func: Any, out: Tensor, what: str) -> str:
        where = sorted(self.tracker.parents - {"Global"}, key=len)
        module = where[-1].split(".", 1)[-1] if where else "no module"
        phase = "the backward pass" if self.tracker.is_bw else "the forward pass"
        bad = int((out.isnan() if what == "nan" else out.isinf()).sum())
        return f"step {self.step}: {func._overloadpacket} makes {bad} of {out.numel()} numbers {what}, in {module}, in {phase}"


def check_divergence(step: int, loss: Tensor, vocab_size: int, model: nn.Module) -> None:
    """TrainError where the loss is far above that of knowing nothing, with the parameter whose gradient is the largest. Before the update."""
    value, guess = loss.item(), math.log(vocab_size)
    if value <= DIVERGED * guess:
        return
    # of shards this process's: others may see no divergence
    here = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norms = {name: (g.to_local() if hasattr(g, "to_local") else g).double().norm().item() for name, g in here.items()}
    name = max(norms, key=norms.__getitem__)
    total = math.sqrt(sum(n * n for n in norms.values()))
    raise TrainError(
        f"step {step}: the loss is {value:.4g}, more than {DIVERGED} times the {guess:.4g} of guessing among {vocab_size} tokens; "
        f"the largest gradient is that of {name}, {norms[name]:.4g} of {total:.4g}"
    )


def _found(t: Tensor) -> set[str]:
    """Which of "nan" and "infinite" are in it; one look where there is neither."""
    if not t.is_floating_point() or t.isfinite().all():
        return set()
    return {name for name, there in (("nan", t.isnan()), ("infinite", t.isinf())) if there.any()}


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Of shards this process's."""
    for leaf in torch.utils._pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf.to_local() if hasattr(leaf, "to_local") else leaf


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """What the operator has written over, by its schema."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[i] if i < len(args) else kwargs.get(argument.name))
