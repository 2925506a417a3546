"""What one launch of the optimizer keeps from step to step: its parameters, how many steps each has seen, and the rates on their way to it.

At GPT-2's 148 tensors a count of its own for each (an addition, a float and two powers) cost 0.9 ms of host time a step. Here all counts are one
tensor, and each state's "step" is an element of it, so that state dicts are what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

Member = tuple[Tensor, dict[str, Any]]  # a parameter and its group


def with_numbers() -> AbstractContextManager[Any]:
    """Where counts are made and read. Fake tensors hold no numbers, and rates are made of these: theirs alone are real there, as PyTorch's are."""
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


class Members:
    """Parameters of one device, dtype, betas and eps, whatever their group."""

    def __init__(self, members: Sequence[Member], states: Sequence[dict[str, Any]], betas: tuple[float, float], eps: float):
        self.params, self.groups = [p for p, _ in members], [g for _, g in members]
        self.betas, self.eps, self.states = betas, eps, list(states)
        with with_numbers():
            self.counts = torch.stack([torch.as_tensor(s["step"], dtype=torch.float32, device="cpu").reshape(()) for s in states])
            self.steps = [self.counts[i] for i in range(len(states))]
        for state, step in zip(states, self.steps):
            state["step"] = step
        self.hyper = torch.empty(
            (len(states), 4), dtype=torch.float32, device=self.params[0].device
        )  # where a captured step reads its rates
        self.counted = False  # a step that has not been launched yet

    def are(self, members: Sequence[Member], states: Sequence[dict[str, Any]]) -> bool:
        """Whether these are still they: the same parameters in the same groups, and nobody has put other states in place."""
        return len(members) == len(self.params) and all(
            p is q and g is h and state is mine and state.get("step") is step
            for (p, g), state, q, h, mine, step in zip(members, states, self.params, self.groups, self.states, self.steps)
        )

    def advance(self) -> None:
        """Count a step, and send its rates after whatever was launched before: page-locked memory is taken anew for each step, as the
        last step's may still be on its way."""
        with with_numbers():
            self.counts += 1
            self.counted = True
            counts = self.counts.tolist()
        beta1, beta2 = self.betas
        corrections = {n: (1 - beta1**n, 1 - beta2**n) for n in set(counts)}
        rates = {id(g): (float(g["lr"]), g["weight_decay"]) for g in self.groups}
        rows = [(*rates[id(g)], *corrections[n]) for g, n in zip(self.groups, counts)]
        sent = torch.tensor(rows, dtype=torch.float32, device="cpu", pin_memory=self.hyper.is_cuda)
        self.hyper.copy_(sent, non_blocking=True)

    def take_back(self) -> None:
        """Of a step that was counted and could not be launched."""
        if self.counted:
            with with_numbers():
                self.counts -= 1
            self.counted = False

    def column(self, name: str) -> list[Tensor]:
        return [state[name] for state in self.states]
