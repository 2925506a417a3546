"""What Triton's launcher does in Python for every call, of a kernel that needs none of it: it looks for scratch memory, and hands on what it was given."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from triton.backends.nvidia.driver import CudaLauncher


def straight(call: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], Sequence[Any]] | None:
    """What it calls in the end, as this release of Triton has it: asked of a copy that only listens."""
    if not isinstance(call, CudaLauncher) or call.global_scratch_size or call.profile_scratch_size or getattr(call, "gsan_enabled", False):
        return None
    said: list[tuple[Any, ...]] = []
    listener = copy.copy(call)
    listener.launch = lambda *given: said.append(given)
    listener(*args)
    return (call.launch, said[0]) if len(said) == 1 else None
