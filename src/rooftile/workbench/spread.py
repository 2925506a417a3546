"""Work shared out to processes: what is compiled and judged has no clock, so as many may do it at once as there are processors."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

Unit = tuple[Any, ...]
Result = TypeVar("Result")
CROWDED = "out of memory"  # in a complaint that may be due to the others: to be heard again, alone


def spread(work: Callable[..., Result], units: list[Unit], jobs: int, end: float = math.inf) -> Generator[tuple[Unit, Result]]:
    """(unit, work(*unit)) of each unit, whichever is done first; the first that is done after `end` (time.monotonic) is the last but for what is under way
    then, which is waited for and heard. `work` is a function of a module, by its name; new processes begin with nothing
    of this one's but the environment: they are forked from one that has imported that module and has touched no device. What it raises is raised
    here. A process whose device has died under a unit takes no other: new ones do. Who closes it early waits for what is under way, and for no more; Ctrl-C waits
    for nothing: the processes do not hear it, which a terminal sends to all, as some would end and leave a pool that waits for ever, and are killed here."""
    if jobs < 1:
        raise ValueError(f"{jobs} jobs are less than 1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    while units and time.monotonic() < end:
        left, others = [], multiprocessing.active_children()
        with ProcessPoolExecutor(min(jobs, len(units)), context, _begin, (dict(os.environ),)) as pool:
            waiting = {pool.submit(_do, work, unit): unit for unit in units}
            try:
                for future in as_completed(waiting):
                    if future.cancelled():
                        continue
                    done = future.result()
                    if done is None:
                        left.append(waiting[future])
                    else:
                        yield waiting[future], done[0]
                    if time.monotonic() >= end:
                        for other in waiting:
                            other.cancel()  # unless it is under way
            except (KeyboardInterrupt, GeneratorExit) as ended:
                if KeyboardInterrupt in (type(ended), type(ended.__context__)):  # heard here, or by who closes this for it
                    for process in multiprocessing.active_children():
                        if process not in others:
                            process.kill()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
        units = left


def _begin(environment: dict[str, str]) -> None:
    """Each process has one thread, and torch.compile no processes of its own: they would be as many again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment, TORCHINDUCTOR_COMPILE_THREADS="1")


def _do(work: Callable[..., Result], unit: Unit) -> tuple[Result] | None:
    """Nothing where the device of this process is dead: whatever it said of the unit would blame the innocent."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except torch.AcceleratorError:
        return None
    return (work(*unit),)
