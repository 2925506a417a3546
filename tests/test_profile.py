"""Where a step's time goes: every operator is seen, and its floor is what its arguments say."""

import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from rooftile.cli import app
from rooftile.core.device import Ceilings
from rooftile.core.kernel import OPS
from rooftile.training import TrainError
from rooftile.workbench import bench, profile
from test_models import one_thread  # noqa: F401 - a fixture for every test here
from training_runs import TINY, maker

LIMITS = Ceilings(1.0, {"float32": 1e-3})  # a GB/s is 1000 bytes a us, and a GFLOP/s 1000 operations


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "ceilings", lambda where: LIMITS)
    return maker(tmp_path)


def test_floors_of_a_step(tiny):
    found = profile.profile_training(tiny("run", model="llama", kernels="rooftile", n_layer=2, n_head=4))
    rows = {row.name: row for row in found["rows"]}
    assert found["step_ms"] > 0 and all(row.us > 0 and row.calls for row in rows.values())
    assert [row.lost_us for row in found["rows"]] == sorted((row.lost_us for row in found["rows"]), reverse=True)
    tokens, width, inner = 4 * 16, 16, 64
    assert rows["rooftile.gated_mlp"].calls == rows["rooftile.gated_mlp_backward"].calls == 2
    assert rows["rooftile.gated_mlp"].floor_us == pytest.approx(2 * (6 * width + 5) * tokens * inner / 1e3)
    assert rows["rooftile.gated_mlp_backward"].floor_us == pytest.approx(2 * (12 * width + 15) * tokens * inner / 1e3)
    assert rows["rooftile.rmsnorm"].calls == 5 and rows["rooftile.adamw"].calls == 1
    assert rows["rooftile.linear"].floor_us == pytest.approx(2 * 2 * tokens * width * 2 * width / 1e3)  # q k v of a block
    assert rows["rooftile.linear_add"].floor_us == pytest.approx(2 * 2 * tokens * width * width / 1e3)  # o
    assert not any(name.startswith(("profiler", "aten.view", "aten.detach")) for name in rows)


def test_floors_of_pytorchs_own():
    a, b = torch.ones(8, 16), torch.ones(16, 32)
    with profile.Costs(LIMITS) as costs:
        a @ b
        a.add_(1)
        a.t()
        torch._foreach_mul_([a, b], 2.0)  # gives nothing back: it writes
    assert {name: loss.floor_us for name, loss in costs.losses.items()} == {
        "aten.mm": pytest.approx(2 * 8 * 16 * 32 / 1e3),
        "aten.add_": pytest.approx(2 * 8 * 16 * 4 / 1e3),
        "aten._foreach_mul_": pytest.approx(2 * (8 * 16 + 16 * 32) * 4 / 1e3),
    }


def test_on_the_command_line(tiny, tmp_path, monkeypatch):
    tiny("unused")
    knobs = {**TINY, "text": tmp_path / "text", "out": tmp_path / "run", "kernels": "rooftile"}
    words = [word for name, value in knobs.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = CliRunner().invoke(app, ["profile", "train", *words])
    assert done.exit_code == 0 and "rooftile.layernorm" in done.output.replace("\n", "") and "a step takes" in done.output
    assert (tmp_path / "run" / "profile.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    found = json.loads(CliRunner().invoke(app, ["profile", "train", *words, "--json"]).output.splitlines()[-1])
    assert {"name", "calls", "us", "floor_us"} == found["rows"][0].keys()
    monkeypatch.setattr(profile, "profile_training", lambda _: pytest.fail("profiled in vain"))  # seen red: the folder was made behind it
    refused = CliRunner().invoke(app, ["profile", "train", *words, "--out", str(tmp_path / "text")])
    assert "text cannot be written: File exists" in str(refused.exception)
    monkeypatch.undo()
    with pytest.raises(TrainError, match="kernels 'compile' has none to look at"):
        profile.profile_training(tiny("run", kernels="compile"))
    with pytest.raises(TrainError, match="parallel is 'ddp', and profile looks at the step of one process"):
        profile.profile_training(tiny("run", parallel="ddp"))


@pytest.mark.parametrize("name, value", [("resume", True), ("memory", True), ("detect_anomaly", True)])
def test_what_a_profile_does_not_do_is_refused(tiny, name, value):
    """Seen red: profiled without it, and without a word."""
    with pytest.raises(TrainError, match=f"{name} is {value!r}, and profile looks at 10 steps of a new model"):
        profile.profile_training(tiny("run", **{name: value}))


def test_a_profile_is_of_the_kernels_that_are_asked_for(tiny, monkeypatch):
    """Seen red: --deterministic was dropped."""
    asked = []
    monkeypatch.setattr(profile, "train_step", lambda *_: asked.append(torch.are_deterministic_algorithms_enabled()))
    for wanted in (True, False):
        profile.profile_training(tiny("run", deterministic=wanted))
    assert asked == [True] * 10 + [False] * 10 and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
def test_kernels_are_found_on_a_gpu(tmp_path):
    """Those launched through Triton, the driver and cuBLAS alike; together they are no longer than the step."""
    config = maker(tmp_path)("run", model="llama", kernels="rooftile", device="cuda", dtype="bfloat16", n_embd=512, n_head=8, context=512)
    found = profile.profile_training(config)
    rows = {row.name: row for row in found["rows"]}
    for name in (
        "rmsnorm",
        "rmsnorm_backward",
        "rotary_attention",
        "rotary_attention_backward",
        "gated_mlp",
        "linear",
        "linear_add",
        "adamw",
    ):
        assert rows[f"rooftile.{name}"].us > 0, name
    assert sum(row.us for row in found["rows"]) / 1e3 < 3 * found["step_ms"]


def test_kernels_that_stand_by_are_not_counted_twice():
    def event(name, start, end):
        return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end))

    ours, other = profile.MARK + "rooftile.a", profile.MARK + "rooftile.b"
    kernels = [event("main", 10, 50), event("finish", 12, 60), event("later", 70, 80), event("b's", 80, 90), event("first", 0, 9)]
    spans = [event(ours, 10, 80), event(other, 80, 90), event(ours, 100, 110)]
    assert profile.covered([*spans, *kernels]) == {ours: 60.0, other: 10.0}


def test_bytes_are_believed_up_to_what_the_memory_can_carry():
    """Writing alone may be faster than a copy, and than PyTorch's own."""
    seen, told = Ceilings(4000.0, {"float32": 50.0}, 4200.0), Ceilings(4000.0, {"float32": 50.0}, 4200.0, 4900.0)
    assert seen.believable_us(1e9, 0, torch.float32) == pytest.approx(1e6 / 4410)
    assert told.believable_us(1e9, 0, torch.float32) == pytest.approx(1e6 / 4900)
    assert told.believable_us(0, 1e12, torch.float32) == pytest.approx(1e6 / 50 / 1.05)
    assert told.floor_us(1e9, 0, torch.float32) == pytest.approx(1e6 / 4000)


def test_a_peer_is_held_to_its_bytes_alone():
    """Seen red: torch.compile's gradient of linear_cross_entropy, which has kept its logits and makes two products where ours make three, was called a
    broken measurement, and left out of what ours was held against."""
    ceilings = Ceilings(4000.0, {"bfloat16": 800.0, "float32": 50.0})
    asked = 25000.0, 2e9, 26e12, torch.bfloat16  # 1,040 TFLOP/s
    assert bench.disbelief(ceilings, "cuda.v5_hopper", *asked) == "130% of the measured ceiling: a broken measurement, not a fast kernel"
    assert bench.disbelief(ceilings, "peer.compile", *asked) == ""
    assert bench.disbelief(ceilings, "peer.compile", 250.0, *asked[1:]).startswith("200% of the measured ceiling")


def test_documents_see_their_own():
    """Seen red: all pairs of four documents were counted, and both ours and flex's time called impossible."""
    spec = OPS["attention_options"].spec
    case = next(c for c in spec.cases if c.dims.get("Documents") == 3)
    call = spec.draw(case)
    per_pair = 2 * (case.dims["D"] * 2)
    seen = int(call["mask"].expand(case.dims["B"], case.dims["H"], case.dims["T"], case.dims["S"]).sum())
    assert spec.operations(call, case.dims) == pytest.approx(per_pair * seen, rel=0.01)
