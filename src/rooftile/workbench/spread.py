"""Work shared out to processes: what is compiled and judged has no clock, so as many may do it at once as there are processors."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

import torch

Unit = tuple[str, ...]
Result = TypeVar("Result")


def spread(work: Callable[..., Result], units: list[Unit], jobs: int) -> Iterator[tuple[Unit, Result]]:
    """(unit, work(*unit)) of each unit, whichever is done first. `work` is a function of a module, by its name; new processes begin with nothing
    of this one's but the environment. What it raises is raised here."""
    if jobs < 1:
        raise ValueError(f"{jobs} jobs are less than 1")
    if not units:
        return
    with ProcessPoolExecutor(min(jobs, len(units)), multiprocessing.get_context("spawn"), _one_thread) as pool:
        waiting = {pool.submit(work, *unit): unit for unit in units}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _one_thread() -> None:
    """Each process has one, and torch.compile no processes of its own: they would be as many again."""
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
