"""Work shared out to processes: what is compiled and judged has no clock, so as many may do it at once as there are processors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

Unit = tuple[str, ...]
Result = TypeVar("Result")


def spread(work: Callable[..., Result], units: list[Unit], jobs: int) -> Iterator[tuple[Unit, Result]]:
    """(unit, work(*unit)) of each unit, whichever is done first. `work` is a function of a module, by its name; new processes begin with nothing
    of this one's but the environment. What it raises is raised here."""
    if jobs < 1:
        raise ValueError(f"{jobs} jobs are less than 1")
    if not units:
        return
    with ProcessPoolExecutor(min(jobs, len(units)), mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(work, *unit): unit for unit in units}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
