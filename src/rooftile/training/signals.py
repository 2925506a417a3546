"""SIGTERM as a wish: the step that runs is finished, saved, and only then the process ends."""

import signal
import threading
from types import FrameType

__all__ = ["Terminated", "Termination"]


class Terminated(SystemExit):
    """Raised by `train` once the checkpoint stands. Nobody has to catch it: the process ends with 143, as a shell expects of SIGTERM."""

    def __init__(self, sentence: str):
        super().__init__(128 + signal.SIGTERM)
        self.sentence = sentence


class Termination:
    """Inside, `asked` tells whether SIGTERM has come. Only the main thread may listen: in any other it never does."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "Termination":
        self.listening = threading.current_thread() is threading.main_thread()
        if self.listening:
            self.before = signal.signal(signal.SIGTERM, self._heard) or signal.SIG_DFL  # None: one that Python did not set
        return self

    def __exit__(self, *_: object) -> None:
        if self.listening:
            signal.signal(signal.SIGTERM, self.before)

    def answer(self) -> None:
        self.asked = True

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.answer()
