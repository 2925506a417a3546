"""What was replaced in a model, what was left and why, and the way back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["Entry", "Report", "Swap"]

SLOTS = ("_old_forward", "forward")  # accelerate's hooks keep the forward they wrap under the first name


@dataclass(frozen=True)
class Entry:
    """One part of one module."""

    part: str  # norm, gated mlp, activation, rotary embedding, attention, embedding, loss
    module: str  # its name in the model
    operator: str  # what computes it now; empty where it was left
    note: str = ""  # what goes the model's own way still, or why it was left


@dataclass
class Swap:
    """One module's forward, exchanged on the instance: its class, its parameters and its hooks stay what they are."""

    name: str
    module: nn.Module
    function: Callable[..., Any]

    @staticmethod
    def place(module: nn.Module) -> str:
        return SLOTS[0] if SLOTS[0] in vars(module) else SLOTS[1]

    @staticmethod
    def free(module: nn.Module) -> bool:
        """Whether the class's own forward is still there."""
        there = vars(module).get(Swap.place(module))
        return there is None or getattr(there, "__func__", None) is type(module).forward

    def __post_init__(self) -> None:
        self.slot = Swap.place(self.module)
        self.before = vars(self.module).get(self.slot)
        self.bound = MethodType(self.function, self.module)
        setattr(self.module, self.slot, self.bound)

    def found(self) -> str | None:
        """Where our forward is by now: hooks may have come or gone since, and who took a wrapper off has bound it anew."""
        return next((slot for slot in SLOTS if vars(self.module).get(slot) == self.bound), None)

    def undo(self) -> None:
        slot = self.found()
        if slot == self.slot and self.before is None:
            delattr(self.module, slot)
        elif slot == self.slot:
            setattr(self.module, slot, self.before)
        elif slot == SLOTS[0]:  # a hook came after us
            setattr(self.module, slot, MethodType(type(self.module).forward, self.module))
        elif slot == SLOTS[1]:  # it left, and put ours where the class's own was
            delattr(self.module, slot)


@dataclass
class Report:
    """`print(report)` says it all; `undo()` gives the model back as it was."""

    model: str
    replaced: list[Entry] = field(default_factory=list)
    left: list[Entry] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list, repr=False)
    attributes: list[tuple[nn.Module, str, Any]] = field(default_factory=list, repr=False)  # (module, name, what we set) that was not there

    def undo(self) -> None:
        """Put every forward back. The model then computes what it did before, bit for bit; a second call changes nothing.

        Raises:
            ValueError: someone has put another forward over ours since; nothing is changed then.
        """
        lost = [swap.name for swap in self.swaps if swap.found() is None]
        if lost:
            raise ValueError(
                f"undo: {len(lost)} of {len(self.swaps)} modules have another forward by now, {lost[0]} among them: take that away first"
            )
        for swap in self.swaps:
            swap.undo()
        for module, name, value in self.attributes:
            if vars(module).get(name) is value:
                delattr(module, name)
        self.swaps, self.attributes = [], []

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.replaced)} parts replaced, {len(self.left)} left"]
        for entries in (self.replaced, self.left):
            groups: dict[tuple[str, str, str], list[str]] = {}
            for e in entries:
                groups.setdefault((e.part, e.operator, e.note), []).append(e.module)
            for (part, operator, note), modules in groups.items():
                more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
                to = f"now {operator}" if operator else "left"
                lines.append(f"  {part}: {to} in {modules[0] or 'the model'}{more}" + (f"; {note}" if note else ""))
        return "\n".join(lines)
