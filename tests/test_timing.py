"""The clock: a slow version costs the others no samples."""

import contextlib
import itertools
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from rooftile.core import timing


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(timing, "NOISY", float("inf"))


def test_a_slow_version_drops_out_and_the_others_go_on(quiet):
    versions = {"fast": lambda: None, "slow": lambda: time.sleep(0.02), "other": lambda: None}
    timed = timing.compare(versions, torch.device("cpu"), budget_ms=60, rounds=20).timings
    assert {n: t.samples for n, t in timed.items()} == {"fast": 20, "slow": 6, "other": 20}


def test_one_sample_of_a_long_call_is_enough(quiet):
    calls = []
    timed = timing.compare(
        {"short": lambda: None, "long": lambda: calls.append(time.sleep(0.12))}, torch.device("cpu"), budget_ms=1, rounds=3
    ).timings
    assert timed["long"].samples == 1 and len(calls) == 2 and timed["short"].samples == 6
    assert 1.2e5 <= timed["long"].us < 10e5


class Device:
    """A GPU and its host by what they would have done when: both begin at 0, a call takes the host as long as the next of `costs`, and the device 5."""

    def __init__(self, costs, waits=False):
        self.host, self.device, self.costs, self.waits, self.calls = 0.0, 0.0, iter(costs), waits, 0

    def event(self, enable_timing):
        made = SimpleNamespace(at=None)
        made.record = lambda: setattr(made, "at", self.enqueued(0.0))
        made.query = lambda: made.at <= self.host
        made.synchronize = lambda: setattr(self, "host", max(self.host, made.at))
        made.elapsed_time = lambda end: (end.at - made.at) / 1e3
        return made

    def enqueued(self, us):
        self.device = max(self.device, self.host) + us
        return self.device

    def call(self):
        self.calls += 1
        self.host += next(self.costs)
        self.enqueued(5.0)
        if self.waits:
            self.host = max(self.host, self.device)


@pytest.fixture
def clocked(monkeypatch):
    def on(device):
        monkeypatch.setattr(torch.cuda, "Event", device.event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: device.enqueued(cycles / 2000))
        clock = timing._gpu_clock(torch.device("cpu"), cold=False)
        return lambda: clock(device.call, timing.AHEAD_US)()

    return on


def test_a_call_that_the_device_overtook_is_timed_again(clocked):
    """Seen red: 305 us, of which the device had waited 300 for its host. Twenty peers' gradients of few rows were up to fifty times as slow in the records
    as they are."""
    device = Device([80.0, 400.0, 350.0, 300.0])
    sample = clocked(device)
    assert sample() == pytest.approx(5.0)
    device.host = device.device
    assert sample() == pytest.approx(5.0) and device.calls == 4  # 400 in 100, 350 in 200, 300 in 400


@pytest.mark.gpu
def test_on_a_gpu_a_host_that_is_late_is_not_in_the_time():
    x, late = torch.zeros(1 << 10, device="cuda"), itertools.cycle([0.0, 0.002])

    def twice():
        x.add_(1.0)
        time.sleep(next(late))
        x.add_(1.0)

    timed = timing.compare({"at once": lambda: x.add_(1.0).add_(1.0), "late": twice}, x.device, budget_ms=20).timings
    assert timed["late"].p80 < 10 * timed["at once"].us, timed


def test_who_waits_for_the_device_is_not_tried_for_ever(clocked):
    device = Device(itertools.repeat(10.0), waits=True)
    sample = clocked(device)
    assert sample() > 0 and device.calls == timing.TRIES
    sample()
    assert device.calls == timing.TRIES + 1


@pytest.mark.parametrize(("quiet_from", "series"), [(0, 1), (1, 3), (9, 3)])
def test_where_it_is_noisy_turns_are_taken_again(monkeypatch, quiet_from, series):
    """Seen red: a kernel that was a tenth slower every other time was compared by the halves that its turns fell into. All samples count: a series that
    was slow outweighs one that was not."""
    taken = Counter()

    def clock(run, ahead_us):
        """Of the first, one of its two is slower in each series before `quiet_from`."""
        taken["a"] += run is one
        slow = run is one and taken["a"] > 4 and (taken["a"] - 5) // 12 < quiet_from and taken["a"] % 2
        return lambda: 110.0 if slow else 100.0

    def one():
        pass

    monkeypatch.setattr(timing, "_cpu_clock", clock)
    monkeypatch.setattr(timing, "turns", lambda counts: (n for _ in range(6) for n in counts))
    made = timing.compare({"a": one, "b": lambda: None}, torch.device("cpu"), budget_ms=1e-9)
    assert {n: t.samples for n, t in made.timings.items()} == {"a": 6 * series, "b": 6 * series}
    assert (made.noise >= timing.NOISY) == (quiet_from == 9)


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdefgh"])
@pytest.mark.parametrize("rounds", [6, 30, 100])
def test_each_follows_each_as_often(names, rounds):
    """At the board's power a call's time hangs on who came before it."""
    taken = list(timing.turns(dict.fromkeys(names, rounds)))
    for i in range(0, len(taken), len(names)):
        assert sorted(taken[i : i + len(names)]) == list(names), "every round has each of them once"
    follows = Counter(itertools.pairwise(taken))
    assert not any(follows[n, n] for n in names)
    even = (len(taken) - 1) / (len(names) * (len(names) - 1))
    assert all(abs(follows[pair] - even) < 3 for pair in itertools.permutations(names, 2))


def test_who_has_had_its_turns_leaves_the_others_theirs():
    taken = list(timing.turns({"a": 5, "b": 2, "c": 0}))
    assert Counter(taken) == {"a": 5, "b": 2} and taken[4:] == ["a"] * 3
    assert list(timing.turns({})) == []


def test_hosts_are_timed_in_turn():
    seen = []
    took = timing.hosts({n: lambda n=n: seen.append(n) for n in "ab"}, torch.device("cpu"), calls=2, rounds=3)
    assert "".join(seen[200:]) == "aabbaabbaabb" and seen[:200] == ["a"] * 100 + ["b"] * 100
    assert set(took) == {"a", "b"} and all(us > 0 for us in took.values())


def test_before_a_cold_call_all_has_run_and_what_was_to_stay_in_the_cache_is_like_the_rest(monkeypatch):
    """In that order: the driver resets at once, so a kernel that still runs would leave such lines behind it, and what is reset after the
    flush is still there."""
    did, status = [], 0

    def told(name, made=None):
        return lambda *_, **__: did.append(name) or made

    event = SimpleNamespace(record=told("record"), synchronize=told("wait"), elapsed_time=lambda end: 0.002, query=lambda: False)
    driver = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: told("reset")() or status)
    monkeypatch.setattr(timing, "libcuda", lambda: driver)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SimpleNamespace(fill_=told("flush")))
    for name, made in {"synchronize": None, "_sleep": None, "device": contextlib.nullcontext(), "Event": event}.items():
        monkeypatch.setattr(torch.cuda, name, told(name, made))
    clock = timing._gpu_clock(torch.device("cuda", 0), cold=True)
    assert clock(told("run"), 100.0)() == 2.0
    assert [d for d in did if d not in ("Event", "device")] == [
        "synchronize",
        "reset",
        "flush",
        "_sleep",
        "record",
        "run",
        "record",
        "wait",
    ]
    status = 801
    with pytest.raises(RuntimeError, match="error 801"):
        clock(told("run"), 100.0)
