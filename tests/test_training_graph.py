"""Steps from static buffers: bitwise the plain ones. On a CPU the device's part of a step is called where CUDA replays it."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rooftile.models import GPT2, GPT2Config, operators
from rooftile.ops._shared import constants
from rooftile.ops.adamw.api import AdamW
from rooftile.training import TrainConfig, TrainError
from rooftile.training.benchmark import Setup, benchmark_training
from rooftile.training.stepper import WARMUP, Stepper, _Static, build_optimizer
from training_runs import maker, run, series

SHAPE = GPT2Config(vocab_size=61, n_positions=12, n_embd=16, n_layer=2, n_head=2)


@pytest.fixture
def tiny(tmp_path):
    return maker(tmp_path)


@pytest.fixture
def anywhere(monkeypatch):
    """Graphs are let through on a CPU, where a step in two parts stands for one."""
    monkeypatch.setattr(TrainConfig, "_check_graph", lambda self, kind: None)


def steps(config, graph, count=WARMUP + 4):
    """Losses, norms and parameters after `count` steps on batches that differ, under a rate that moves."""
    config = dataclasses.replace(config, graph=graph)
    torch.manual_seed(0)
    shape = dataclasses.replace(SHAPE, resid_pdrop=config.dropout, embd_pdrop=config.dropout)
    model = GPT2(shape, operators("rooftile"), {"bfloat16": torch.bfloat16}.get(config.dtype, torch.float32), config.checkpointing)
    stepper = Stepper(model, build_optimizer(model, config), config)
    made = []
    for step in range(1, count + 1):
        tokens = torch.randint(0, 61, (config.step_rows, 13), generator=torch.Generator().manual_seed(step))
        made.append(stepper((tokens[:, :-1], tokens[:, 1:]), step))
    return [t for pair in made for t in pair] + [p.detach() for p in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "changes", [{}, {"clip": 0.0}, {"accumulate": 2, "checkpointing": True}, {"dropout": 0.2}, {"dtype": "bfloat16", "weights": "master"}]
)
def test_static_steps_are_the_plain_ones(tiny, changes):
    config = tiny("run", kernels="rooftile", lr=1e-2, **changes)
    plain = steps(config, "off")
    assert equal(plain, steps(config, "on"))
    norms = plain[1 : 2 * (WARMUP + 4) : 2]
    assert len({float(n) for n in norms}) == len(norms), "a norm that is always the same would hide one that is never written"


@pytest.mark.parametrize("owner, name", [(AdamW, "advance"), (_Static, "_send"), (torch.Tensor, "clone")])
def test_what_stands_still_shows(tiny, monkeypatch, owner, name):
    """Rates, batches or results that are not moved after the warm-up: each alone is seen."""
    config = tiny("run", kernels="rooftile", lr=1e-2)
    plain, calls, real = steps(config, "off"), [], getattr(owner, name)

    def late(self, *args):
        calls.append(name)
        if name == "clone":  # the graph's own tensors, which the next replay writes over
            return self if self.dim() == 0 else real(self, *args)
        return real(self, *args) if len(calls) <= WARMUP else None

    if name == "clone":  # a CPU makes its results anew at each step: write them where a replay would
        again = _Static._again

        def over(self):
            before = self.results
            again(self)
            if before is not None:
                for old, new in zip(before, self.results):
                    old.copy_(new)
                self.results = before

        monkeypatch.setattr(_Static, "_again", over)
        assert equal(plain, steps(config, "on"))
    monkeypatch.setattr(owner, name, late)
    assert not equal(plain, steps(config, "on"))


def test_a_run_evaluates_and_resumes_between_replays(tiny, tmp_path, anywhere):
    changes = {"kernels": "rooftile", "lr": 1e-2, "decay_steps": 12, "eval_every": 4}
    run(tiny("plain", steps=12, **changes))
    run(tiny("parts", steps=5, graph="on", **changes))
    run(tiny("parts", steps=12, graph="on", resume=True, **changes))
    assert series(tmp_path / "parts") == series(tmp_path / "plain")


def test_a_batch_of_another_shape_is_refused(tiny):
    config = tiny("run", kernels="rooftile", graph="on")
    model = GPT2(SHAPE, operators("rooftile"))
    stepper = Stepper(model, build_optimizer(model, config), config)
    stepper((torch.zeros(4, 12, dtype=torch.int64),) * 2, 1)
    with pytest.raises(ValueError, match=r"a batch of \[4, 12\], this one is \[3, 12\]"):
        stepper((torch.zeros(3, 12, dtype=torch.int64),) * 2, 2)


def test_who_gets_a_graph(tiny, monkeypatch):
    refuse = [
        ({"graph": "maybe"}, "graph is 'maybe', must be one of auto, on, off"),
        ({"graph": "on", "kernels": "rooftile"}, "graph is 'on', but the device is cpu"),
        ({"graph": "on", "device": "cuda"}, "graph is 'on' beside kernels 'torch': only rooftile's AdamW"),
        (
            {"graph": "on", "device": "cuda", "kernels": "rooftile", "dropout": 0.1, "checkpointing": True},
            r"dropout 0\.1 and checkpointing",
        ),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for changes, match in refuse:
        with pytest.raises(TrainError, match=match):
            tiny("run", **changes).resolved()
    for changes, graph in (
        ({"device": "cpu"}, "off"),
        ({}, "on"),
        ({"kernels": "torch"}, "off"),
        ({"dropout": 0.1}, "off"),
        ({"dropout": 0.1, "graph": "on"}, "on"),
        ({"graph": "off"}, "off"),
    ):
        config = tiny("run", **{"device": "cuda", "kernels": "rooftile", **changes}).resolved()
        assert config.graph == graph and config.resolved() == config


def test_a_table_for_graphs_is_made_aside(monkeypatch):
    """A stand-in for CUDA: streams by number, of which 1 is being captured. The table is made once, on another, and has arrived."""
    now, made, arrived, pool = [1], [], [], iter((1, 2, 3, 4))

    @contextlib.contextmanager
    def entered(stream):
        now.append(stream)
        yield
        now.pop()

    def constant(make, about, device):
        made.append(now[-1])
        return torch.tensor(make(*about))

    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: now[-1] == 1, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: next(pool))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: arrived.append(now[-1])))
    for name, stand_in in (("relaxed", contextlib.nullcontext), ("constant", constant), ("_held", {})):
        monkeypatch.setattr(constants, name, stand_in)
    device = torch.device("cuda", 0)
    first, again = (constants.lasting(tuple, ((5, 6),), device) for _ in range(2))
    assert first.tolist() == [5, 6] and again is first and made == arrived == [2] and now == [1]
    now[0] = 3
    constants.lasting(tuple, ((5, 6),), device)
    assert made == [2, 3] and arrived == [2]  # as ever where nothing is captured


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weights": "float32"},
        {"accumulate": 2, "checkpointing": True},
        {"dropout": 0.2},
        {"model": "llama", "weights": "bfloat16"},
    ],
)
def test_replays_are_the_eager_steps_on_cuda(tiny, tmp_path, changes):
    """Bitwise, with evaluations and checkpoints between replays, and resumed; dropout and stochastic rounding draw anew at each."""
    changes = {"kernels": "rooftile", "device": "cuda", "dtype": "bfloat16", "lr": 1e-2, "n_layer": 2, "n_embd": 64, "decay_steps": 14,
               "eval_every": 5, **changes}  # fmt: skip
    run(tiny("eager", steps=14, graph="off", **changes))
    run(tiny("whole", steps=14, graph="on", **changes))
    assert series(tmp_path / "whole") == series(tmp_path / "eager")
    run(tiny("parts", steps=6, graph="on", **changes))
    run(tiny("parts", steps=14, graph="on", resume=True, **changes))
    assert series(tmp_path / "parts") == series(tmp_path / "eager")


def on_a_gpu(tiny):
    """A stepper that captures its step, and tokens of a batch."""
    config = tiny("run", kernels="rooftile", device="cuda", dtype="bfloat16", graph="on")
    model = GPT2(GPT2Config(vocab_size=64, n_positions=64, n_embd=128, n_layer=2, n_head=2), operators("rooftile"), torch.bfloat16).cuda()
    stepper = Stepper(model, build_optimizer(model, config), config)
    tokens = torch.randint(0, 64, (4, 65))
    return stepper, tokens


@pytest.mark.gpu
def test_a_replay_never_waits(tiny):
    stepper, tokens = on_a_gpu(tiny)
    for step in range(1, WARMUP + 6):
        torch.cuda.set_sync_debug_mode("error" if step > WARMUP + 1 else "default")
        try:
            loss, _ = stepper((tokens[:, :-1], tokens[:, 1:]), step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert stepper.pool_bytes > 0 and torch.isfinite(loss)


@pytest.mark.gpu
def test_a_replay_copies_nothing_from_the_host(tiny):
    """Tables of addresses and schedules are there before the capture: a copy of one would be made again by every replay."""
    stepper, tokens = on_a_gpu(tiny)
    for step in range(1, WARMUP + 3):
        stepper((tokens[:, :-1], tokens[:, 1:]), step)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        stepper.static.replay()
        torch.cuda.synchronize()
    names = [event.name for event in seen.events()]
    assert any("adamw" in name for name in names) and not [name for name in names if "HtoD" in name]


@pytest.mark.gpu
def test_the_benchmark_counts_the_memory_a_graph_holds():
    setup = Setup(GPT2Config(vocab_size=512, n_positions=256, n_embd=256, n_layer=4, n_head=4), batch_size=16, context=256)
    eager, graphed = (
        benchmark_training(("rooftile",), dataclasses.replace(setup, graph=graph), steps=2, rounds=1)[0] for graph in ("off", "on")
    )
    assert not eager["graph"] and graphed["graph"] and graphed["loss"] == eager["loss"]
    assert 0.8 < graphed["peak_bytes"] / eager["peak_bytes"] < 2


@pytest.mark.gpu
def test_what_cannot_be_captured_says_so(tiny):
    """And the process draws random numbers as before. Seen red: PyTorch's generator took itself to be captured still."""

    class Waits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.precision = model, model.precision

        def forward(self, x, y):
            return self.model(x, y) * float(x.sum() > 0)

    config = tiny("run", kernels="rooftile", device="cuda", graph="on")
    model = Waits(GPT2(SHAPE, operators("rooftile"))).cuda()
    stepper = Stepper(model, build_optimizer(model, config), config)
    with pytest.raises(TrainError, match="cannot be captured in a CUDA graph, run it with graph off"):
        for step in range(1, WARMUP + 2):
            stepper((torch.zeros(4, 12, dtype=torch.int64),) * 2, step)
    torch.manual_seed(0)
    first = torch.randn(4, device="cuda")
    torch.manual_seed(0)
    assert torch.equal(torch.randn(4, device="cuda"), first)
