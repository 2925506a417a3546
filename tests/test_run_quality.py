"""What a run does when the world is unkind: SIGTERM, a full disk, a nan, a loss that diverges; and where its memory goes."""

import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import rooftile
from rooftile.cli import app
from rooftile.models import GPT2, GPT2Config, Llama, llama_operators
from rooftile.training import Interrupted, Terminated, TrainError
from rooftile.training import loop as training
from rooftile.training.anomaly import Watch
from rooftile.training.checkpoint import checkpoints, load_checkpoint
from rooftile.training.loop import build_optimizer, train_step
from test_llama import shape
from test_models import one_thread  # noqa: F401 - a fixture for every test here
from test_training import maker, run, series

resource = pytest.importorskip("resource", reason="a system that limits files otherwise")


@pytest.fixture
def tiny(tmp_path):
    return maker(tmp_path)


def terminated_at(monkeypatch, when, number=signal.SIGTERM, times=1):
    real = training._Run.batch

    def batch(self, step):
        if step == when:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return real(self, step)

    monkeypatch.setattr(training._Run, "batch", batch)


def test_sigterm_saves_and_exits(tiny, tmp_path, monkeypatch):
    run(tiny("whole"))
    before = signal.getsignal(signal.SIGTERM)
    terminated_at(monkeypatch, 4)
    with pytest.raises(Terminated) as ended:
        run(tiny("parts"))
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert [f.name for f in checkpoints(tmp_path / "parts")] == ["checkpoint-00000004.pt", "checkpoint-00000003.pt"]
    monkeypatch.undo()
    run(tiny("parts", resume=True))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")
    terminated_at(monkeypatch, 6)
    run(tiny("last"))  # at the last step there is nothing left to interrupt
    assert series(tmp_path / "last") == series(tmp_path / "whole")


@pytest.fixture
def a_terminal():
    """Where Ctrl-C is heard: what a shell runs in the background, this process too, has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_and_exits_and_a_second_one_does_not_wait(a_terminal, tiny, tmp_path, monkeypatch):
    """Seen red: it ended with neither a checkpoint nor a word."""
    run(tiny("whole"))
    before = signal.getsignal(signal.SIGINT)
    terminated_at(monkeypatch, 5, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as ended:
        run(tiny("parts"))
    assert isinstance(ended.value, Interrupted) and ended.value.code == 130 and signal.getsignal(signal.SIGINT) is before
    assert re.fullmatch(
        r"Ctrl-C came: stopped after step 5 of 6, \S+/checkpoint-00000005\.pt stands; go on with resume", ended.value.sentence
    )
    monkeypatch.undo()
    run(tiny("parts", resume=True))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")
    terminated_at(monkeypatch, 5, signal.SIGINT, times=2)
    with pytest.raises(KeyboardInterrupt) as ended:
        run(tiny("at once"))
    assert not isinstance(ended.value, Interrupted) and signal.getsignal(signal.SIGINT) is before
    assert [f.name for f in checkpoints(tmp_path / "at once")] == ["checkpoint-00000003.pt"]


def test_ctrl_c_that_is_ignored_stays_ignored(tiny, tmp_path, monkeypatch):
    """A shell without job control has what runs in the background ignore it: it is meant for others."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        terminated_at(monkeypatch, 2, signal.SIGINT)
        run(tiny("on"))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_bar_of_80_columns_has_the_step(monkeypatch, capsys):
    """Seen red: "step 2…" of 200 steps of 300, in the terminal that everyone has, for the sake of the bar."""
    monkeypatch.setenv("COLUMNS", "80")
    going = SimpleNamespace(config=SimpleNamespace(steps=300), step=0, val_loss=2.398)
    with training._bar(going, True) as advance:
        advance(200, {"step": 200, "loss": 2.388, "tokens_per_s": 12961.0, "memory_bytes": 2**29})
    assert "200/300 " in capsys.readouterr().err


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_on_the_command_line(number, said, a_terminal, tiny, tmp_path, monkeypatch):
    """Seen red: --json said nothing at all."""
    tiny("unused")
    terminated_at(monkeypatch, 2, number)
    words = ["train", "--text", str(tmp_path / "text"), "--out", str(tmp_path / "run"), "--n-layer", "1", "--n-embd", "16", "--n-head", "2"]
    ended = CliRunner().invoke(app, [*words, "--context", "16", "--batch-size", "2", "--device", "cpu", "--json"])
    assert ended.exit_code == 128 + number and checkpoints(tmp_path / "run")
    assert f"{said} came: stopped after step 2 of 300" in ended.stderr and "checkpoint-00000002.pt stands" in ended.stderr
    assert f"rooftile: {json.loads(ended.stdout)['error']}" == ended.stderr.strip()


@pytest.mark.parametrize(
    ("file", "room", "match"),
    [
        ("checkpoint-00000003.pt", -1000, r"checkpoint-00000006\.pt could not be written, the checkpoint before it stands: .*"),
        ("metrics.jsonl", 20, r"run stopped: File too large; checkpoint-00000003\.pt stands"),
    ],
)
def test_a_disk_that_fills_up_loses_nothing(tiny, tmp_path, file, room, match):
    """The system itself refuses to let a file grow: in the middle of a checkpoint, and in the middle of a line of metrics."""
    run(tiny("whole"))
    run(tiny("run", steps=3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "run" / file).stat().st_size + room, before[1]))
    try:
        with pytest.raises(TrainError, match=match):
            run(tiny("run", resume=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (stands,) = checkpoints(tmp_path / "run")
    assert load_checkpoint(stands)["step"] == 3 and not list((tmp_path / "run").glob(".*"))
    run(tiny("run", resume=True))
    assert series(tmp_path / "run") == series(tmp_path / "whole")


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_a_watched_run_is_the_same_run(tiny, tmp_path, model, kernels):
    for out, watched in (("plain", False), ("watched", True)):
        run(tiny(out, model=model, kernels=kernels, detect_anomaly=watched, deterministic=watched))
    assert series(tmp_path / "plain") == series(tmp_path / "watched")
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_caller_who_wants_warnings_keeps_them():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for wanted in (True, False):
            with training.deterministic(wanted):
                pass
            assert torch.is_deterministic_algorithms_warn_only_enabled(), wanted
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_nan_is_found_where_it_is_made(tiny, tmp_path, monkeypatch):
    def spoilt(change):
        real = GPT2.forward

        def forward(self, tokens, targets=None):
            forward.calls += self.training and targets is not None
            mlp, spoils = self.h[0].mlp, forward.calls == 5

            def branch(x, residual):
                made = type(mlp).forward(mlp, x, residual)
                return change(made) if spoils else made

            mlp.forward = branch
            return real(self, tokens, targets)

        forward.calls = 0
        monkeypatch.setattr(GPT2, "forward", forward)

    def refused(out, match, **changes):
        with pytest.raises(TrainError, match=match):
            run(tiny(out, detect_anomaly=True, **changes))
        assert [f.name for f in checkpoints(tmp_path / out)] == ["checkpoint-00000003.pt"]
        monkeypatch.undo()

    spoilt(lambda x: x + (x.detach() * 0 - 1).log())
    refused("a", r"^step 5: aten\.log makes 1024 of 1024 numbers nan, in h\.0\.mlp, in the forward pass$")
    spoilt(lambda x: x + (x * 0).sqrt())
    refused("b", r"^step 5: aten\.div makes 1024 of 1024 numbers infinite, in h\.0\.mlp, in the backward pass$")
    spoilt(lambda x: x * 1e38 * 1e10)
    refused("c", r"^step 5: aten\.mul makes 1024 of 1024 numbers infinite, in h\.0\.mlp, in the forward pass$", kernels="rooftile")


def test_a_diverging_loss_stops(tiny, tmp_path):
    with pytest.raises(
        TrainError,
        match=r"^step 2: the loss is [\d.e+]+, more than 1\.5 times the 5\.545 of guessing among 256 tokens; .* gradient is that of",
    ):
        run(tiny("run", lr=5.0, min_lr=5.0, warmup=0, clip=0.0, detect_anomaly=True))
    with pytest.raises(TrainError, match="kernels 'compile' has none to look at"):
        tiny("run", detect_anomaly=True, kernels="compile")


def test_given_infinities_are_no_anomaly():
    with Watch(1):
        masked = torch.zeros(2, 3).masked_fill(torch.tensor([True, False, True]), float("-inf"))
        assert (torch.zeros(2, 3) + masked).softmax(-1)[0, 1] == 1
        torch.empty(1000).fill_(0.0)
    with (
        pytest.raises(TrainError, match=r"step 1: aten\.div_? makes 1 of 2 numbers infinite, in no module, in the forward pass"),
        Watch(1),
    ):
        torch.ones(2).div_(torch.tensor([0.0, 1.0]))
    with pytest.raises(TrainError, match=r"aten\.\w*softmax makes 3 of 6 numbers nan"), Watch(1):  # of infinities that were given
        torch.zeros(2, 3).masked_fill(torch.tensor([[True], [False]]), float("-inf")).softmax(-1)
    weight = torch.tensor([-3e38], requires_grad=True)
    weight.grad = torch.ones(1)
    with pytest.raises(TrainError, match=r"rooftile\.adamw makes 1 of 1 numbers infinite"), Watch(1):  # it returns nothing: it writes
        rooftile.AdamW([weight], lr=3e38, weight_decay=0.0).step()


def test_memory_timeline(tiny, tmp_path):
    """What is counted adds up; and keeping only each block's input is seen in it."""
    peaks = []
    for checkpointing in (False, True):
        config = tiny(f"run{checkpointing}", model="llama", kernels="rooftile", n_layer=4, memory=True, checkpointing=checkpointing)
        result = run(config)
        with open(result.memory, "rb") as picture:
            assert picture.read(8) == b"\x89PNG\r\n\x1a\n"
        facts = json.loads((tmp_path / config.out / "memory.json").read_text())
        assert facts["step"] == 3 and facts["weights_bytes"] == 4 * result.parameters and facts["optimizer_bytes"] == 8 * result.parameters
        assert facts["start_bytes"] == 12 * result.parameters < facts["peak_bytes"] == max(held for _, held in facts["points"])
        assert abs(facts["points"][-1][1] - facts["start_bytes"]) < 4096  # gradients and activations are gone; the loss is still there
        peaks.append(facts["peak_bytes"] - facts["start_bytes"])
    assert peaks[1] < 0.7 * peaks[0]
    assert run(tiny("without")).memory is None


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_accumulation_equals_the_big_batch(tiny, model, kernels):
    """The same eight rows at once and in four parts: equal gradients, hence equal updates."""
    tokens = torch.randint(0, 61, (8, 13), generator=torch.Generator().manual_seed(0))
    after = []
    for batch_size, accumulate in ((8, 1), (2, 4)):
        config = tiny("run", batch_size=batch_size, accumulate=accumulate, warmup=0)
        torch.manual_seed(0)
        if model == "llama":
            made = Llama(shape(), llama_operators(kernels))
        else:
            made = GPT2(GPT2Config(vocab_size=61, n_positions=12, n_embd=16, n_layer=2, n_head=2), llama_operators(kernels))
        seen = {}

        def look(loss, made=made, seen=seen):
            seen.update({name: p.grad.clone() for name, p in made.named_parameters()}, loss=loss)

        train_step(made, build_optimizer(made, config), (tokens[:, :-1], tokens[:, 1:]), config, 1, look)
        after.append(seen)
    for name, value in after[0].items():
        if value.norm() > 1e-6:
            assert ((after[1][name] - value).norm() / value.norm()).item() < 1e-5, name


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_deterministic_resume_on_a_gpu(tiny, tmp_path, model):
    changes = {
        "model": model,
        "kernels": "rooftile",
        "device": "cuda",
        "dtype": "bfloat16",
        "deterministic": True,
        "n_embd": 128,
        "context": 64,
    }
    run(tiny("whole", **changes))
    run(tiny("parts", steps=3, **changes))
    run(tiny("parts", resume=True, **changes))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")
    a, b = (load_checkpoint(checkpoints(tmp_path / out)[0])["model"] for out in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.gpu
def test_memory_timeline_on_a_gpu(tiny, tmp_path):
    """The allocator's own peak and the picture's are the same number."""
    changes = {
        "model": "llama",
        "kernels": "rooftile",
        "device": "cuda",
        "dtype": "bfloat16",
        "n_embd": 128,
        "context": 64,
        "steps": 3,
        "n_layer": 4,
    }
    result = run(tiny("run", memory=True, eval_batches=1, **changes))
    facts = json.loads((tmp_path / "run" / "memory.json").read_text())
    assert facts["peak_bytes"] == pytest.approx(result.memory_bytes, rel=0.1)
