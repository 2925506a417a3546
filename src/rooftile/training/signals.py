"""SIGTERM and Ctrl-C as a wish: the step that runs is finished, saved, and only then the process ends."""

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "Terminated", "Termination"]


class Terminated(SystemExit):
    """Raised by `train` once the checkpoint stands. Nobody has to catch it: the process ends with 143, as a shell expects of SIGTERM."""

    def __init__(self, sentence: str, number: int = signal.SIGTERM):
        super().__init__(128 + number)
        self.sentence = sentence


class Interrupted(Terminated, KeyboardInterrupt):
    """The same after Ctrl-C, for who catches that; the process ends with 130."""

    def __init__(self, sentence: str):
        super().__init__(sentence, signal.SIGINT)


class Termination:
    """Inside, `asked` is the signal of these that has come, or 0. Only the main thread may listen: in any other it never does. What is ignored stays so, as
    Ctrl-C of what a shell runs in the background. Ctrl-C is heard once: who presses it again will not wait."""

    def __init__(self, *numbers: int) -> None:
        self.asked, self.numbers = 0, numbers or (signal.SIGTERM,)
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Termination":
        if threading.current_thread() is threading.main_thread():
            for number in (n for n in self.numbers if signal.getsignal(n) != signal.SIG_IGN):
                self.before[number] = signal.signal(number, self._heard) or signal.SIG_DFL  # None: one that Python did not set
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)

    def answer(self, number: int) -> None:
        self.asked = number

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, self.before[number])
        self.answer(number)
