"""The one clock.

Cold L2: before every timed call a buffer of more than twice the L2 is rewritten, when lines that were read to be the last to leave have been
made like others: those outlive the rewriting, and what one version read so the next would find. Versions take turns in one process, so
that drift hits all of them, and each follows each other as often: at the board's power a call's time hangs on who came before, and forth and
back each had the same two neighbours all along. The first is timed a second time as its own rival, and that A/A difference is the noise
floor. Where it is NOISY the turns are taken again, as a clock that is halved now and then needs more of them. Never on zeros.

A call is timed when all of it was issued before the device begins with it, which is asked of every sample: while a device waits for its host, what the
events see is the host, and a kernel of 4 us that is two launches was 40 where something else had the cores.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rooftile.core.driver import libcuda

FLUSH_BYTES = 256 * 2**20  # the H200's L2 is 60 MB
NOISY, SERIES = 0.02, 3  # the A/A difference from which turns are taken again, and how often they are taken at most
AHEAD_US = 100.0  # the host needs to be ahead even of a slow Python wrapper
REPEATS = 20  # of what is timed alone
TRIES = 6  # to get ahead, each with twice the time of the one before: 3 ms and more in all
TURNS = "turns in which each follows each other as often"
METHOD_COLD = f"CUDA events around calls issued ahead, L2 reset and flushed by a {FLUSH_BYTES >> 20} MiB write, {TURNS}, median"
METHOD_CPU = f"perf_counter, {TURNS}, median"


@dataclass(frozen=True)
class Timing:
    p20: float
    us: float  # the median
    p80: float
    samples: int

    @staticmethod
    def of(samples: list[float]) -> Timing:
        s = sorted(samples)
        return Timing(s[int(0.2 * (len(s) - 1))], statistics.median(s), s[round(0.8 * (len(s) - 1))], len(s))


@dataclass(frozen=True)
class Comparison:
    timings: dict[str, Timing]
    noise: float  # relative A/A difference of the medians of one and the same version
    method: str


LONG_US = 1e5  # of a call: beyond it the clock and what else runs are nothing


def compare(versions: Mapping[str, Callable[[], Any]], where: torch.device, *, budget_ms: float = 120.0, rounds: int = 100) -> Comparison:
    """Time the versions side by side. `budget_ms` bounds the time spent in each, SERIES times where it is noisy; at least 6 samples are taken. A naive rung
    that takes a thousand times as long drops out after its 6, and the others go on without it; of calls of a tenth of a second and more one is enough."""
    first, again = next(iter(versions)), "\0again"
    runs = {**versions, again: versions[first]}
    clock = _gpu_clock(where, cold=True) if where.type == "cuda" else _cpu_clock
    begun = {n: _begin(run, clock, budget_ms, rounds) for n, run in runs.items()}
    samples = {n: taken for n, (_, taken, _) in begun.items()}
    for _ in range(SERIES):
        reads = [(n, clock(runs[n], begun[n][2])) for n in turns({n: count for n, (count, *_) in begun.items()})]
        for n, read in reads:
            samples[n].append(read())
        timings = {n: Timing.of(s) for n, s in samples.items()}
        noise = abs(timings[first].us / timings.pop(again).us - 1)
        if noise < NOISY or not reads:
            break
    return Comparison(timings, noise, METHOD_CPU if where.type != "cuda" else METHOD_COLD)


def turns(counts: Mapping[str, int]) -> Iterator[str]:
    """Every name as often as it counts, in rounds. Who comes next is of those left in the round the one that has followed the last least often; nobody
    follows itself where another is left."""
    followed: Counter[tuple[str | None, str]] = Counter()
    last = None
    for i in range(max(counts.values(), default=0)):
        left = [n for n, count in counts.items() if i < count]
        while left:
            name = min([n for n in left if n != last] or left, key=lambda n: followed[last, n])
            followed[last, name] += 1
            left.remove(name)
            last = name
            yield name


Clock = Callable[[Callable[[], Any], float], Callable[[], float]]


def _begin(run: Callable[[], Any], clock: Clock, budget_ms: float, rounds: int) -> tuple[int, list[float], float]:
    """Samples to take, after calls enough to warm it up, those already taken (of a long one the second call, as the first may have compiled), and
    how far ahead of the device the host must be to issue one."""
    run()
    us = clock(run, AHEAD_US)()
    if us > LONG_US:
        return 0, [us], AHEAD_US
    start = time.perf_counter()
    run()
    ahead = max(AHEAD_US, 1.5e6 * (time.perf_counter() - start))
    return max(6, min(rounds, int(budget_ms * 1e3 / max(clock(run, ahead)(), 1.0)))), [], ahead


def best(run: Callable[[], Any], where: torch.device) -> float:
    """Microseconds of one version alone, back to back and warm: how ceilings are measured."""
    clock = _gpu_clock(where, cold=False) if where.type == "cuda" else _cpu_clock
    for _ in range(3):
        run()
    reads = [clock(run, AHEAD_US) for _ in range(REPEATS)]
    return statistics.median(r() for r in reads)


def hosts(versions: Mapping[str, Callable[[], Any]], where: torch.device, calls: int = 100, rounds: int = 20) -> dict[str, float]:
    """Host microseconds a call: how fast one thread can issue it, the device idle or not. The versions take turns, for what else a host does
    makes it slower and faster; the median of `rounds` turns of `calls`."""
    for run in versions.values():
        for _ in range(100):
            run()
    costs: dict[str, list[float]] = {n: [] for n in versions}
    for n in turns(dict.fromkeys(versions, rounds)):
        run = versions[n]
        _synchronize(where)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        costs[n].append((time.perf_counter() - start) / calls * 1e6)
    _synchronize(where)
    return {n: statistics.median(c) for n, c in costs.items()}


def _synchronize(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def _cpu_clock(run: Callable[[], Any], ahead_us: float) -> Callable[[], float]:
    start = time.perf_counter()
    run()
    us = (time.perf_counter() - start) * 1e6
    return lambda: us


def _gpu_clock(where: torch.device, cold: bool) -> Clock:
    """Enqueue one timed call; the returned function waits and reads it. While the device idles for `ahead_us` the host gets ahead, so that
    what the events see is the device's time and not the launch; where it did not, the call is made again. Of a version that waits for the device
    nobody gets ahead, and it is not tried twice."""
    flush = torch.empty(FLUSH_BYTES if cold else 0, dtype=torch.uint8, device=where)
    waiting = set[Callable[[], Any]]()

    def clock(run: Callable[[], Any], ahead_us: float) -> Callable[[], float]:
        for _ in range(1 if run in waiting else TRIES):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if cold:
                _reset_persisting(where)
                flush.fill_(1)
            torch.cuda._sleep(int(ahead_us * 2000))  # cycles
            start.record()
            run()
            end.record()
            if not start.query():
                break
            ahead_us *= 2
        else:
            waiting.add(run)

        def read() -> float:
            end.synchronize()
            return start.elapsed_time(end) * 1e3

        return read

    return clock


def _reset_persisting(where: torch.device) -> None:
    """Lines of the L2 that were read as evict_last are like others when this returns. The driver does it at once, beside whatever runs: so
    first everything has run."""
    torch.cuda.synchronize(where)
    with torch.cuda.device(where):
        status = libcuda().cuCtxResetPersistingL2Cache()
    if status:
        raise RuntimeError(f"the CUDA driver cannot reset the L2 of {where} before a call is timed: error {status}")
