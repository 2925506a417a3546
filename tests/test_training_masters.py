"""Weights in bfloat16 beside float32 masters: the numbers of float32 weights under a cast, and nothing of them in what a run leaves behind."""

import dataclasses
import json

import pytest
import torch

from rooftile.models import GPT2, GPT2Config
from rooftile.training import TrainConfig, benchmark
from rooftile.training.checkpoint import checkpoints, load_checkpoint
from rooftile.training.model import new_model
from rooftile.training.stepper import build_optimizer, train_step
from test_models import one_thread  # noqa: F401 - a fixture for every test here
from training_runs import MASTER, maker, run, series


@pytest.fixture
def tiny(tmp_path):
    return maker(tmp_path)


def test_who_gets_masters(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for changes, weights in (
        ({}, "master"),
        ({"model": "llama"}, "master"),
        ({"weights": "bfloat16"}, "bfloat16"),
        ({"weights": "float32"}, "float32"),
        ({"dtype": "float32"}, "float32"),
        ({"device": "cpu"}, "float32"),
        ({"device": "cpu", "dtype": "bfloat16"}, "float32"),
        ({"kernels": "torch"}, "float32"),
        ({"accumulate": 2}, "float32"),
        ({"parallel": "ddp"}, "float32"),
    ):
        config = tiny("run", **{"device": "cuda", "kernels": "rooftile", **changes}).resolved()
        assert config.weights == weights and config.resolved() == config


def test_narrow_weights_are_the_casts_of_float32_ones():
    """One step: the loss and every gradient have the same bits, but for the embeddings', whose two parts are added up in bfloat16 instead of float32;
    so masters begin as the float32 weights do, and go on as they."""
    model = GPT2Config(vocab_size=61, n_positions=12, n_embd=16, n_layer=2, n_head=2)
    tokens, seen = torch.randint(0, 61, (4, 13), generator=torch.Generator().manual_seed(0)), []
    for weights in ("float32", "master"):
        config = TrainConfig(**{**MASTER, "weights": weights}, device="cpu", lr=1e-2, warmup=0, clip=0.0)
        torch.manual_seed(0)
        made = new_model(model, config)
        with torch.no_grad():
            for name, p in made.named_parameters():
                if name.endswith("bias"):
                    p.normal_(std=0.1)  # zeros would be the same in any dtype
            made.wpe.weight.zero_()  # of float32 weights the sum of both embeddings is rounded once, of narrow ones each
        before = {name: p.detach().clone() for name, p in made.named_parameters()}
        optimizer = build_optimizer(made, config)
        held = {name: optimizer.state[p].get("master", p.detach()) for name, p in made.named_parameters()}
        assert all(torch.equal(held[name], p) and held[name].dtype == torch.float32 for name, p in before.items() if weights == "master")
        kept = {}

        def look(loss, made=made, kept=kept):
            kept.update({name: p.grad for name, p in made.named_parameters()}, loss=loss)

        train_step(made, optimizer, (tokens[:, :-1], tokens[:, 1:]), config, 1, look)
        after = {f"after.{name}": optimizer.state[p].get("master", p.detach()).clone() for name, p in made.named_parameters()}
        seen.append((kept | after, {name: p.dtype for name, p in made.named_parameters()}))
    (wide, _), (narrow, dtypes) = seen
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == {name for name in dtypes if "ln_" in name}
    for name, t in wide.items():
        if "wte" in name or "wpe" in name:
            torch.testing.assert_close(narrow[name].float(), t, rtol=0.02, atol=2 * 1e-2 if "after" in name else 1e-4)
        else:
            assert torch.equal(narrow[name].float(), t), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_masters_train_as_float32_weights_do(tiny, tmp_path, model):
    """Two hundred steps, within the line that is drawn beside PyTorch's."""
    changes = {**MASTER, "model": model, "lr": 3e-3, "warmup": 10, "n_head": 4, "n_embd": 32, "steps": 200, "decay_steps": 200,
               "save_every": 200, "eval_every": 200}  # fmt: skip
    for weights in ("float32", "master"):
        run(tiny(weights, **{**changes, "weights": weights}))
    wide, narrow = ([row["loss"] for row in series(tmp_path / weights) if "loss" in row] for weights in ("float32", "master"))
    assert wide != narrow and max(abs(a - b) for a, b in zip(wide, narrow, strict=True)) < 0.02 and narrow[-1] < narrow[0] - 2


def test_a_run_with_masters_leaves_what_a_float32_run_does(tiny, tmp_path):
    """Its checkpoint and its folder hold the masters as weights: either run goes on from the other's."""
    changes = {**MASTER, "lr": 1e-2}
    wide = {**changes, "weights": "float32"}
    run(tiny("wide", **wide))
    run(tiny("there", steps=3, **changes))
    stored = load_checkpoint(checkpoints(tmp_path / "there")[0])
    assert {t.dtype for t in stored["model"].values()} == {torch.float32}
    assert any(not torch.equal(t, t.bfloat16().float()) for t in stored["model"].values())
    assert {name for state in stored["optimizer"]["state"].values() for name in state} == {"step", "exp_avg", "exp_avg_sq"}
    folder = GPT2.from_pretrained(tmp_path / "there" / "model").state_dict()
    assert all(torch.equal(folder[name], t) for name, t in stored["model"].items())
    run(tiny("there", resume=True, **wide))
    run(tiny("back", steps=3, **wide))
    run(tiny("back", resume=True, **changes))
    for out in ("there", "back"):
        for a, b in zip(series(tmp_path / out), series(tmp_path / "wide"), strict=True):
            assert a.keys() == b.keys() and all(a[key] == pytest.approx(b[key], rel=2e-2) for key in a)
    state = load_checkpoint(checkpoints(tmp_path / "back")[0])
    del state["config"]["weights"]  # a checkpoint older than the knob
    torch.save(state, checkpoints(tmp_path / "back")[0])
    run(tiny("back", resume=True, **changes))


def test_memory_of_masters(tiny, tmp_path):
    """The levels are those of float32 weights: 16 bytes a parameter with its gradient, the master among the optimizer's."""
    run(tiny("run", memory=True, **MASTER))
    facts = json.loads((tmp_path / "run" / "memory.json").read_text())
    parameters = GPT2.from_pretrained(tmp_path / "run" / "model").named_parameters()
    sizes = {name: p.numel() for name, p in parameters}
    norms = sum(n for name, n in sizes.items() if "ln_" in name)
    rest = sum(sizes.values()) - norms
    assert facts["weights_bytes"] == 2 * rest + 4 * norms and facts["optimizer_bytes"] == 12 * rest + 8 * norms


def test_the_first_steps_in_bfloat16_are_those_in_float32():
    """Updates of 1e-6, far below the last bit of anything they are added to, must come out as what they are on average."""
    small = dataclasses.replace(benchmark.GPT2_124M, vocab_size=4096, n_layer=2, n_embd=128, n_head=2, n_positions=128)
    setup = benchmark.Setup(small, batch_size=4, context=128, device="cpu")
    (ours,) = benchmark.compare_losses(["rooftile"], setup, steps=3)
    (theirs,) = benchmark.compare_losses(["torch"], dataclasses.replace(setup, dtype="float32"), steps=3)
    assert max(abs(a - b) for a, b in zip(ours["losses"], theirs["losses"])) < 4e-4
