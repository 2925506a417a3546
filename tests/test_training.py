"""The training floor: it learns, it resumes to the bit, it survives kill -9, and it refuses in one sentence."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rooftile.models import GPT2, GPT2Config, Llama, operators
from rooftile.training import TrainConfig, TrainError
from rooftile.training.benchmark import Setup, benchmark_training, compare_losses
from rooftile.training.checkpoint import checkpoints, load_checkpoint
from rooftile.training.data import to_device
from rooftile.training.model import new_model
from rooftile.training.peers import HuggingFaceLlama, peer_model
from rooftile.training.stepper import build_optimizer, train_step
from test_llama import SMALL as SMALL_LLAMA
from test_models import one_thread, rooftile  # noqa: F401 - a fixture for every test here
from training_runs import MASTER, maker, run, series


@pytest.fixture
def tiny(tmp_path):
    return maker(tmp_path)


def test_loss_falls_and_everything_is_left(tiny, tmp_path):
    result = run(tiny("run", steps=80, decay_steps=80, lr=1e-2, eval_every=40, save_every=20))
    rows = series(tmp_path / "run")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 81))
    assert [row["step"] for row in rows if "val_loss" in row] == [40, 80]
    assert 5.0 < losses[0] < 6.0 and losses[-1] < 3.0 and result.val_loss < 3.0
    assert result.loss == losses[-1] and result.val_loss == rows[-1]["val_loss"]
    assert [f.name for f in checkpoints(tmp_path / "run")] == ["checkpoint-00000080.pt", "checkpoint-00000060.pt"]
    assert Path(result.curve).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len((tmp_path / "run" / "sample.txt").read_bytes()) >= 9 and json.dumps(result.to_dict())
    exported = GPT2.from_pretrained(result.model).state_dict()
    stored = load_checkpoint(Path(result.checkpoint))["model"]
    assert all(torch.equal(exported[name], stored[name]) for name in stored)
    assert not list((tmp_path / "run").glob(".*"))  # nothing temporary left


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.2, "accumulate": 2, "dtype": "bfloat16", "checkpointing": True}, MASTER])
def test_resumed_series_is_bitwise_the_uninterrupted_one(tiny, tmp_path, changes):
    run(tiny("whole", **changes))
    run(tiny("parts", steps=3, **changes))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")[:4]
    run(tiny("parts", resume=True, **changes))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")
    a, b = (load_checkpoint(checkpoints(tmp_path / out)[0])["model"] for out in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_a_resumed_run_has_its_own_knobs_of_the_optimizer(tiny, tmp_path, kernels):
    """Seen red: decay and betas were the checkpoint's, whatever was asked for, and PyTorch's AdamW was no longer fused beside a checkpoint of ours."""
    run(tiny("other", kernels="rooftile" if kernels == "torch" else "torch", steps=3))
    start = str(tmp_path / "other" / "checkpoint-00000003.pt")
    for out, more in (("as_before", {}), ("asked", {"weight_decay": 0.5, "beta1": 0.5, "beta2": 0.7})):
        run(tiny(out, kernels=kernels, resume_from=start, **more))
    here, asked = (load_checkpoint(tmp_path / out / "checkpoint-00000006.pt") for out in ("as_before", "asked"))
    fused = True if kernels == "torch" else None
    for group, decay in zip(asked["optimizer"]["param_groups"], (0.5, 0.0)):
        assert (group["weight_decay"], group["betas"], group["fused"]) == (decay, (0.5, 0.7), fused)
    assert not all(torch.equal(asked["model"][name], here["model"][name]) for name in here["model"])


def test_an_early_end_leaves_no_trace_in_the_longer_series(tiny, tmp_path):
    """The run that stops at 4 evaluates there; the one that goes on to 6 must not show it."""
    run(tiny("whole"))
    run(tiny("parts", steps=4))
    assert series(tmp_path / "parts")[-1].keys() == {"step", "val_loss"}
    run(tiny("parts", resume=True))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tiny, tmp_path):
    first = run(tiny("run"))
    before = series(tmp_path / "run")
    again = run(tiny("run", resume=True))
    assert series(tmp_path / "run") == before and again.val_loss == first.val_loss and again.sample == first.sample
    assert again.loss is None


def test_an_end_where_nothing_is_left_to_train(tiny, tmp_path):
    """At a checkpoint where nobody has evaluated: what is left behind is what a run of so many steps leaves, there or in another folder."""
    whole = run(tiny("whole", steps=2))
    run(tiny("longer", steps=4, save_every=2))
    newest, older = checkpoints(tmp_path / "longer")
    newest.unlink()
    for out, how in (("other", {"resume_from": str(older)}), ("longer", {"resume": True})):
        ended = run(tiny(out, steps=2, **how))
        assert ended.val_loss == whole.val_loss and Path(ended.checkpoint).parent == tmp_path / out
    assert series(tmp_path / "longer") == series(tmp_path / "whole")


def test_evaluations_of_another_period_stand(tiny, tmp_path):
    run(tiny("run", steps=4, eval_every=2, save_every=4))
    run(tiny("run", eval_every=3, resume=True))
    assert [row["step"] for row in series(tmp_path / "run") if "val_loss" in row] == [2, 6]


def test_seed_decides_everything(tiny, tmp_path):
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tiny(out, seed=seed))
    assert series(tmp_path / "a") == series(tmp_path / "b") != series(tmp_path / "c")


KILLED = """
import json, sys
from rooftile.training import TrainConfig, train
train(TrainConfig(**json.loads(sys.argv[1])), progress=False)
"""


def test_kill_minus_nine(tiny, tmp_path):
    """Killed for real while it saves every step; whatever instant that was, resuming joins the series without a seam."""
    often = {"steps": 120, "decay_steps": 120, "save_every": 1, "eval_every": 10, "log_every": 1}
    killed, whole = tiny("killed", **often), tiny("whole", **often)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", KILLED, json.dumps(dataclasses.asdict(killed))], env=environment)
    try:
        until = time.monotonic() + 60
        while len(checkpoints(tmp_path / "killed")) < 2:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = checkpoints(tmp_path / "killed")
    assert found and load_checkpoint(found[0])["step"] < 120  # it was killed on the way, and what stands is whole
    run(dataclasses.replace(killed, resume=True))
    run(whole)
    assert series(tmp_path / "killed") == series(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob(".rooftile-tmp-*"))


# Forks after the imports; the n-th child dies the n-th time a file is half written, about to be synced or about to be renamed.
KILLED_AT = """
import io, json, os, signal, sys
import torch._dynamo  # what optimizers import at their first use: a second a child
from rooftile.training import TrainConfig, train

def tick():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def trap(real):
    def call(*args):
        tick()
        return real(*args)
    return call

def save_in_two(state, file, real=torch.save):
    real(state, whole := io.BytesIO())
    half = len(whole.getvalue()) // 2
    file.write(whole.getvalue()[:half])
    file.flush()
    tick()
    file.write(whole.getvalue()[half:])

configs = [TrainConfig(**config) for config in json.loads(sys.argv[1])]
os.fsync, os.replace, torch.save = trap(os.fsync), trap(os.replace), save_in_two
for left, config in enumerate(configs, 3):  # the first two instants lie before the first line of metrics
    if os.fork() == 0:
        train(config, progress=False)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_killed_at_every_write_sync_and_rename(tiny, tmp_path):
    """The instants that matter, one by one, up to the moment the second checkpoint has its name."""
    configs = [tiny(f"killed{n}", save_every=2, eval_every=2) for n in range(3, 14)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED_AT, json.dumps([dataclasses.asdict(config) for config in configs])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(configs), done.stderr
    run(tiny("whole", save_every=2, eval_every=2))
    stood = set()
    for config in configs:
        found = checkpoints(Path(config.out))
        stood.add(load_checkpoint(found[0])["step"] if found else 0)
        run(dataclasses.replace(config, resume=bool(found)))
        assert series(config.out) == series(tmp_path / "whole")
        assert not list(Path(config.out).glob(".rooftile-tmp-*"))
    assert stood == {0, 2, 4}


def test_rooftile_trains_like_torch_and_shares_checkpoints(tiny, tmp_path):
    """Three steps on our operators and our AdamW, then three on PyTorch's from its checkpoint, equal six on PyTorch's."""
    rooftile()
    changes = {"lr": 1e-2, "dtype": "float32"}
    run(tiny("torch", **changes))
    run(tiny("mixed", kernels="rooftile", steps=3, **changes))
    run(tiny("mixed", resume=True, **changes))
    for a, b in zip(series(tmp_path / "mixed"), series(tmp_path / "torch"), strict=True):
        assert a.keys() == b.keys() and all(a[key] == pytest.approx(b[key], rel=1e-4) for key in a)


def test_llama_trains_resumes_and_exports(tiny, tmp_path):
    """On our operators with weights in bfloat16, whose rounding is random: the resumed series is bitwise the whole one, and the folder is read."""
    changes = {
        "model": "llama",
        "kernels": "rooftile",
        "dtype": "bfloat16",
        "weights": "bfloat16",
        "lr": 1e-2,
        "n_head": 4,
        "decay_steps": 20,
    }
    run(tiny("whole", steps=20, **changes))
    run(tiny("parts", steps=9, **changes))
    result = run(tiny("parts", steps=20, resume=True, **changes))
    assert series(tmp_path / "parts") == series(tmp_path / "whole") and result.loss < 5.0
    trained = Llama.from_pretrained(result.model)
    assert trained.config.kv_heads == 2 and trained.config.intermediate_size == 64
    again = run(tiny("again", **{**changes, "init": result.model, "lr": 0.0, "min_lr": 0.0}))
    kept = Llama.from_pretrained(again.model)
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), kept.parameters()))
    with pytest.raises(TrainError, match=r"n_kv_head is 4, the model in .* has 2"):
        run(tiny("other", **{**changes, "init": result.model, "n_kv_head": 4}))


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_a_step_on_cuda_never_waits(tiny, kernels):
    """PyTorch itself raises at any synchronisation inside the step; the first steps tune and are let through."""
    config = tiny("run", kernels=kernels, device="cuda", dtype="bfloat16")
    model = GPT2(GPT2Config(vocab_size=64, n_positions=64, n_embd=128, n_layer=2, n_head=2), operators(kernels), torch.bfloat16)
    model = model.cuda()
    optimizer = build_optimizer(model, config)
    tokens = torch.randint(0, 64, (4, 65))
    for step in range(1, 7):
        torch.cuda.set_sync_debug_mode("error" if step > 3 else "default")
        try:
            batch = to_device((tokens[:, :-1], tokens[:, 1:]), torch.device("cuda"))
            train_step(model, optimizer, batch, config, step)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_torn_and_surplus_lines_are_dropped(tiny, tmp_path):
    run(tiny("whole"))
    run(tiny("parts", steps=3))
    with open(tmp_path / "parts" / "metrics.jsonl", "ab") as file:
        file.write(b'{"note": "a line of somebody else: seen red"}\n5\n{"step": 4, "loss": 9.9, "lr": 0, "grad_norm": 1}\n{"step": 5, "lo')
    run(tiny("parts", resume=True))
    assert series(tmp_path / "parts") == series(tmp_path / "whole")


def test_truncated_checkpoint_is_refused_and_the_older_one_works(tiny, tmp_path):
    run(tiny("run"))
    expected = series(tmp_path / "run")
    newest, older = checkpoints(tmp_path / "run")
    whole = newest.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        newest.write_bytes(whole[:length])
        with pytest.raises(TrainError, match=f"truncated or damaged: its {length} bytes .*; {older.name} of step 3 is whole"):
            run(tiny("run", resume=True))
    run(tiny("run", resume_from=str(older)))
    assert series(tmp_path / "run") == expected and load_checkpoint(newest)["step"] == 6
    older.write_bytes(b"")
    newest.write_bytes(b"")
    with pytest.raises(TrainError, match="no older checkpoint"):
        run(tiny("run", resume=True))


def test_flipped_bit_in_a_weight_is_refused(tiny, tmp_path):
    path = Path(run(tiny("run")).checkpoint)
    whole, weight = path.read_bytes(), load_checkpoint(path)["model"]["wte.weight"].numpy().tobytes()
    place = whole.index(weight) + 37
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(TrainError, match=r"the checksum of its part .* is wrong"):
        run(tiny("run", resume=True))


def test_a_failed_save_leaves_the_older_checkpoint(tiny, tmp_path, monkeypatch):
    real = torch.save

    def full(state, file):
        if state["step"] == 6:
            file.write(b"half")
            try:
                raise OSError(28, "No space left on device")
            finally:
                raise RuntimeError("unexpected pos 448 vs 334")  # torch's; seen red: nothing else was said
        real(state, file)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(TrainError, match=r"checkpoint-00000006\.pt could not be written.*No space"):
        run(tiny("run"))
    assert sorted(f.name for f in (tmp_path / "run").iterdir()) == ["checkpoint-00000003.pt", "metrics.jsonl"]
    with pytest.raises(TrainError, match=r"written, and there is none before it: \[Errno 28\] No space"):
        run(tiny("first", save_every=6))  # seen red: one was said to stand
    monkeypatch.undo()
    run(tiny("run", resume=True))


def test_optimizer_decays_matrices_only_and_clips(tiny):
    config = tiny("run", lr=1e-2, min_lr=1e-2, warmup=0, weight_decay=0.5)
    model = GPT2(GPT2Config(vocab_size=61, n_positions=12, n_embd=16, n_layer=1, n_head=2))
    matrices, vectors = build_optimizer(model, config).param_groups
    assert matrices["weight_decay"] == 0.5 and {p.dim() for p in matrices["params"]} == {2}
    assert vectors["weight_decay"] == 0.0 and {p.dim() for p in vectors["params"]} == {1}
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(model.parameters()))
    tokens = torch.randint(0, 61, (4, 13))
    seen = {}

    class Watch(torch.optim.SGD):
        def step(self):
            seen["norm"] = torch.nn.utils.get_total_norm([p.grad for g in self.param_groups for p in g["params"]])

    for clip, expected in ((0.01, 0.01), (0.0, None), (1e9, None)):
        config = dataclasses.replace(config, clip=clip)
        _, norm = train_step(model, Watch(model.parameters(), lr=0.1), (tokens[:, :-1], tokens[:, 1:]), config, 1)
        assert norm > 0.02 and seen["norm"].item() == pytest.approx(expected or norm.item(), rel=1e-3)


def test_learning_rate():
    config = TrainConfig(steps=110, warmup=10, lr=1.0, min_lr=0.1)
    assert [config.learning_rate(s) for s in (1, 5, 10)] == [0.1, 0.5, 1.0]
    assert config.learning_rate(60) == pytest.approx(0.55) and config.learning_rate(110) == pytest.approx(0.1)
    assert config.learning_rate(500) == pytest.approx(0.1)
    assert dataclasses.replace(config, decay_steps=60).learning_rate(60) == pytest.approx(0.1)


def test_losses_are_looked_at_only_when_due(tiny, monkeypatch):
    """On CUDA every look at a number stops the host: per `log_every` steps there is one, per step none."""
    looks = []

    def watch(name):
        real = getattr(torch.Tensor, name)

        def looked(self, *args, **kwargs):
            looks.append(name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, looked)

    for name in ("item", "tolist", "__float__", "__bool__", "cpu", "numpy"):
        watch(name)
    config = tiny("run", clip=1.0)
    model = GPT2(GPT2Config(vocab_size=61, n_positions=12, n_embd=16, n_layer=1, n_head=2))
    optimizer = build_optimizer(model, config)
    tokens = torch.randint(0, 61, (4, 13))
    for step in range(1, 4):
        loss, _ = train_step(model, optimizer, (tokens[:, :-1], tokens[:, 1:]), config, step)
    assert looks == []
    loss.item()
    assert looks == ["item"]  # the trap does close


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", [GPT2Config(vocab_size=300, n_positions=32, n_embd=32, n_layer=1, n_head=2), SMALL_LLAMA])
def test_benchmark_rows(model):
    setup = Setup(model, batch_size=2, context=24, device="cpu", dtype="float32")
    (row,) = benchmark_training(("torch",), setup, steps=2, rounds=3)
    assert row["kernels"] == "torch" and row["ms_low"] <= row["ms"] <= row["ms_high"] and row["model"] == vars(model)
    assert row["tokens_per_s"] == pytest.approx(48e3 / row["ms"]) and 4 < row["loss"] < 6
    a, b = compare_losses(("torch", "torch"), setup, steps=3)
    assert len(a["losses"]) == 3 and a == b
    with pytest.raises(ValueError, match="context is 33, the model's n_positions is"):
        dataclasses.replace(setup, context=33).config()


def test_a_peer_begins_where_we_do(tiny, monkeypatch):
    """transformers' Llama with our weights has our loss; Liger itself needs a GPU, a stand-in shows that it is put in."""
    pytest.importorskip("transformers")
    tokens = torch.randint(0, 61, (2, 17), generator=torch.Generator().manual_seed(0))
    for shape in (SMALL_LLAMA, dataclasses.replace(SMALL_LLAMA, tie_word_embeddings=True)):
        config, seen, losses = tiny("run", model="llama").resolved(), [], []
        for build in (lambda: new_model(shape, config), lambda: HuggingFaceLlama(shape, config, seen.append)):  # noqa: B023
            torch.manual_seed(3)
            losses.append(build()(tokens[:, :-1], tokens[:, 1:]).item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-6) and type(seen[0]).__name__ == "LlamaForCausalLM"
    with pytest.raises(TrainError, match="the peer liger is timed beside a llama, the model is a GPT2Config"):
        peer_model("liger", GPT2Config(), config)
    monkeypatch.setattr("rooftile.training.benchmark.peer_model", lambda name, shape, config: HuggingFaceLlama(shape, config))
    setup = Setup(SMALL_LLAMA, batch_size=2, context=16, device="cpu", dtype="float32")
    torchs, ligers = compare_losses(("torch", "liger"), setup, steps=3)
    assert ligers["losses"] == pytest.approx(torchs["losses"], rel=1e-5)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(TrainError, match="the peer liger is not installed"):
        peer_model("liger", SMALL_LLAMA, config)
