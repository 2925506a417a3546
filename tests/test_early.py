"""early.cuh: a launch that begins while the one before it runs sees all the same what that one wrote."""

from pathlib import Path

import pytest
import torch

from rooftile.core import replay
from rooftile.cuda import simulator
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.workbench import build

EARLY = Source(Path(__file__).parent / "cuda" / "early.cu")
LATE = 2_000_000  # cycles, a millisecond


def both(x, out, value, name="read", cycles=0):
    launch(EARLY, "write", 1, 32, x, value, cycles)
    launch(EARLY, name, 1, 32, out, x)


def test_the_source_says_which_launches_are_early():
    assert {n: f.early for n, f in EARLY.functions.items()} == {"write": False, "read": True, "read_too_soon": True}
    assert [p.name for p in EARLY.functions["read"].parameters] == ["gOut", "gX"]


def test_every_early_launch_waits_for_those_before_it():
    """In the simulator all do, and on a GPU only a slow launch before it would tell."""
    early = 0
    for path in build.shipped():
        source = Source(path)
        kernels = sum(f.early for f in source.functions.values())
        waits = sum(file.read_text().count("earlier_done()") for file in source.files if file.name != "early.cuh") if kernels else 0
        assert waits >= kernels, f"{path}: {kernels} early launches, {waits} waits"
        early += kernels
    assert early


def test_in_the_simulator_launches_wait_their_turn():
    x, out = torch.zeros(1), torch.zeros(1)
    with simulator.active():
        both(x, out, 3.0)
    assert out.item() == 3.0


@pytest.mark.gpu
def test_gpu_what_was_written_before_is_seen():
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("launches begin early from Hopper on")
    x, out = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    both(x, out, 1.0, "read_too_soon")  # compiled and loaded
    both(x, out, 1.0)
    both(x, out, 2.0, "read_too_soon", LATE)
    assert out.item() == 1.0  # it did begin early, and an error shows
    both(x, out, 3.0, "read", LATE)
    assert out.item() == 3.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both(x, out, 4.0, "read", LATE)
    x.zero_()
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert out.item() == 4.0


@pytest.mark.gpu
def test_gpu_a_replayed_launch_is_early_too():
    x, out = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")

    def run(x, out):
        both(x, out, 5.0, "read", LATE)

    run(x, out)
    _, again = replay.record(run, (x, out), x.device)
    assert again is not None
    out.zero_()
    again(x, out)
    assert out.item() == 5.0
