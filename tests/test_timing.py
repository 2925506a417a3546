"""The clock: a slow version costs the others no samples."""

import time

import torch

from rooftile.core import timing


def test_a_slow_version_drops_out_and_the_others_go_on():
    versions = {"fast": lambda: None, "slow": lambda: time.sleep(0.02), "other": lambda: None}
    timed = timing.compare(versions, torch.device("cpu"), budget_ms=60, rounds=20).timings
    assert {n: t.samples for n, t in timed.items()} == {"fast": 20, "slow": 6, "other": 20}


def test_one_sample_of_a_long_call_is_enough():
    calls = []
    timed = timing.compare(
        {"short": lambda: None, "long": lambda: calls.append(time.sleep(0.12))}, torch.device("cpu"), budget_ms=1, rounds=3
    ).timings
    assert timed["long"].samples == 1 and len(calls) == 2 and timed["short"].samples == 6
    assert 1.2e5 <= timed["long"].us < 10e5


def test_hosts_are_timed_in_turn():
    seen = []
    took = timing.hosts({n: lambda n=n: seen.append(n) for n in "ab"}, torch.device("cpu"), calls=2, rounds=3)
    assert "".join(seen[200:]) == "aabbbbaaaabb" and seen[:200] == ["a"] * 100 + ["b"] * 100
    assert set(took) == {"a", "b"} and all(us > 0 for us in took.values())
