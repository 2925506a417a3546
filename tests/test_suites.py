"""Attention asked what the tests of other libraries ask of theirs: that the questions are theirs, and that a wrong answer is one."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from edited_sources import forget
from rooftile.cli import app
from rooftile.core import record
from rooftile.core.record import read
from rooftile.ops.attention import triton_kernels
from rooftile.workbench import ledger, pages, suites
from rooftile.workbench.suites import SUITES, Asked, judge

SMALL = {
    "flash-attention": [
        Asked(2, 4, 2, 13, 23, 59, torch.bfloat16, True, local=True, alibi=True, dropout=0.17, deterministic=True),
        Asked(2, 4, 1, 16, 9, 32, torch.float16, True, softcap=50.0),
    ],
    "pytorch": [
        Asked(1, 4, 4, 8, 4, 21, torch.float32, True, 1 / 21),
        Asked(1, 4, 4, 4, 64, 203, torch.bfloat16, True),
        Asked(8, 4, 4, 8, 8, 8, torch.float16, False),
    ],
}


@pytest.fixture
def few(monkeypatch):
    for name, points in SMALL.items():
        monkeypatch.setitem(SUITES, name, replace(SUITES[name], points=lambda points=points: points))


def test_they_are_as_many_as_there():
    """FlashAttention's product of its parameters without those it skips; PyTorch's, of which dropout is left out and scales are two."""
    assert [len(s.points()) for s in SUITES.values()] == [2 * 3 * 2 * 2 * 2 * 2 * 11 * 10 * 3, 2 * 8 * 8 * 12 * 2 * 3 * 2]
    assert [len(set(s.points())) for s in SUITES.values()] == [len(s.points()) for s in SUITES.values()]
    assert [len({p.kind for p in s.points()}) for s in SUITES.values()] == [2 * 3 * 2 * 2 * 2 * 2 * 11 * 3, 12 * 2 * 3]


@pytest.mark.parametrize("name, number", [(name, i) for name, points in SMALL.items() for i in range(len(points))])
def test_a_point_is_right_and_a_wrong_answer_is_not(name, number, monkeypatch):
    point = SMALL[name][number]
    verdict = judge(name, point, number, "cpu")
    assert (
        verdict["status"] == "passed"
        and set(verdict["apart"]) == {"out", "dq", "dk", "dv"}
        and all(0 <= x <= 1 for x in verdict["apart"].values())
    )
    door = "scaled_dot_product_attention" if SUITES[name].from_the_first else "attention"
    real = getattr(suites, door)
    for planted in (
        lambda *x, **more: 1.05 * real(*x, **more),
        lambda *x, **more: real(*x, **more | {"is_causal" if "is_causal" in more else "causal": not point.causal}),
    ):
        monkeypatch.setattr(suites, door, planted)
        assert judge(name, point, number, "cpu")["status"] == "failed"


def refuses(*x, **more):
    raise ValueError("no")


def test_what_is_refused_is_not_wrong_and_is_counted(few, monkeypatch):
    monkeypatch.setattr(suites, "attention", refuses)
    (made,) = suites.run(["flash-attention"], "cpu", 1, 1e9, None, None)
    assert made.status == "refused" and made.extra["refused"] == made.extra["judged"] == 2 and made.extra["passed"] == 0


def test_how_they_were_answered_is_a_record_and_goes_stale(few, tmp_path, monkeypatch):
    said = CliRunner().invoke(app, ["suites", "--device", "cpu", "--record", "--folder", str(tmp_path)])
    assert said.exit_code == 0 and said.stdout.count("0 wrong, 0 refused") == 2
    (made,) = read(next(tmp_path.glob("*/suite.flash-attention.jsonl")))
    assert made.extra["points"] == made.extra["judged"] == made.extra["passed"] == 2 and not ledger.is_stale(made)
    table = ledger.latest(tmp_path)
    assert "| flash-attention | 2 of 2 | 2 | 0 | 0 | out 0." in pages.asked_by_others(table)
    edited, real = Path(record._origin(triton_kernels.__name__)), Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **k: real(self, **k) + ("\nX = 1\n" if self == edited else ""))
    forget()
    try:
        assert ledger.is_stale(made) and "2 of 2 (stale)" in pages.asked_by_others(table)
    finally:
        forget()


@pytest.fixture
def clock(monkeypatch):
    """One that goes on by a second a point."""
    now = SimpleNamespace(seconds=0.0)

    def judged(*asked):
        now.seconds += 1.0
        return {"status": "passed", "message": "", "apart": {}}

    monkeypatch.setattr(suites, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(suites, "judge", judged)
    return now


def test_what_there_is_no_time_for_is_told(few, clock):
    made = suites.run(list(SMALL), "cpu", 1, 1.5, None, None)
    assert [(r.extra["judged"], r.extra["points"]) for r in made] == [(1, 2), (1, 3)]
    assert len(suites._judged("pytorch", (0, 1, 2), "cpu", clock.seconds + 1.5)) == 2


def test_what_is_under_way_at_the_end_is_heard(few, clock, monkeypatch):
    """Seen red: the first that was heard of after the end was the last."""

    def together(work, units, jobs, end):
        verdicts = [(unit, work(*unit)) for unit in units]  # all have been judged before one is heard of
        clock.seconds = end
        yield from verdicts

    monkeypatch.setattr(suites, "spread", together)
    assert [r.extra["judged"] for r in suites.run(list(SMALL), "cpu", 2, 9.0, None, None)] == [2, 3]


def test_of_no_point_there_is_no_record(few, tmp_path):
    said = CliRunner().invoke(app, ["suites", "--device", "cpu", "--record", "--folder", str(tmp_path), "--within", "0"])
    assert said.exit_code == 1 and "pytorch: 0 of 3 points judged" in said.output and not list(tmp_path.iterdir())


def test_suites_take_turns(few, monkeypatch):
    asked = []
    monkeypatch.setattr(suites, "judge", lambda suite, *more: asked.append(suite) or {"status": "passed", "message": "", "apart": {}})
    made = suites.run(list(SMALL), "cpu", 1, 1e9, None, None)
    assert asked == ["flash-attention", "pytorch"] * 2 + ["pytorch"] and [r.extra["judged"] for r in made] == [2, 3]


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_there_was_no_room_it_is_asked_again_alone(few, monkeypatch, jobs):
    room: list[str] = []

    def crowded(*asked):
        if asked not in room:
            room.append(asked)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return judge(*asked)

    monkeypatch.setattr(suites, "judge", crowded)
    monkeypatch.setattr(suites, "spread", lambda work, units, jobs, end: ((unit, work(*unit)) for unit in units))
    (made,) = suites.run(["flash-attention"], "cpu", jobs, 1e9, None, None)
    assert len(room) == made.extra["judged"] == made.extra["passed"] == 2


def test_a_suite_that_is_none_is_told():
    said = CliRunner().invoke(app, ["suites", "pytorsch", "--device", "cpu"])
    assert said.exit_code != 0 and "did you mean pytorch?" in str(said.exception) + said.output


def test_a_later_run_goes_on_where_the_record_ends(few, clock, tmp_path):
    """What it had found stays found: the counts, the furthest and the first that is wrong."""

    def asked(seconds, **more):
        clock.seconds = 0.0
        return suites.run(list(SMALL), "cpu", 1, seconds, None, tmp_path, **more)

    first = asked(1.5)
    assert [(r.extra["judged"], r.extra["places"]) for r in first] == [(1, "0"), (1, "0")]
    then = asked(1.5, lacking=tmp_path)
    assert [(r.extra["judged"], r.extra["passed"], r.extra["places"]) for r in then] == [(2, 2, "0-1"), (2, 2, "0-1")]
    assert [r.extra["judged"] for r in asked(9.0, lacking=tmp_path)] == [2, 3]
    files = sorted(tmp_path.glob("*/*.jsonl"))
    assert [len(list(read(f))) for f in files] == [2, 3]
    assert [r.extra["judged"] for r in asked(9.0, lacking=tmp_path)] == [2, 3] and [len(list(read(f))) for f in files] == [2, 3]
    assert [r.extra["judged"] for r in asked(1.5)] == [1, 1], "without it a run begins again"


def test_what_was_wrong_stays_wrong_and_another_attention_begins_again(few, tmp_path, monkeypatch):
    wrong = {"status": "failed", "message": "dq is off by 3 of what it may", "apart": {"dq": 3.0}}
    right = {"status": "passed", "message": "", "apart": {"dq": 0.5}}
    numbers = [n for kind in suites._kinds("pytorch") for n in kind]
    end = numbers.index(1) + 1
    monkeypatch.setattr(suites, "judge", lambda suite, point, n, device: wrong if n == 1 else right)
    monkeypatch.setattr(suites, "_kinds", lambda name: [(n,) for n in numbers[:end]])
    suites.run(["pytorch"], "cpu", 1, 1e9, None, tmp_path)
    monkeypatch.setattr(suites, "_kinds", lambda name: [(n,) for n in numbers])
    (made,) = suites.run(["pytorch"], "cpu", 1, 1e9, None, tmp_path, tmp_path)
    assert (made.status, made.extra["judged"], made.extra["failed"], made.extra["apart"]["dq"]) == ("failed", 3, 1, 3.0)
    assert "dq is off by 3" in made.message
    monkeypatch.setattr(suites, "suite_digest", lambda: "another")
    monkeypatch.setattr(suites, "judge", lambda *asked: right)
    (made,) = suites.run(["pytorch"], "cpu", 1, 1e9, None, tmp_path, tmp_path)
    assert (made.status, made.extra["judged"], made.extra["failed"]) == ("passed", 3, 0)


def test_what_another_release_of_torch_answered_is_not_added_to(few, clock, tmp_path):
    (made,) = suites.run(["pytorch"], "cpu", 1, 1.5, None, tmp_path)
    (file,) = tmp_path.glob("*/*.jsonl")
    file.write_text(replace(made, environment=made.environment | {"torch": "1.0"}).json() + "\n")
    (made,) = suites.run(["pytorch"], "cpu", 1, 1.5, None, None, tmp_path)
    assert made.extra["judged"] == made.extra["passed"] < 3


def test_a_folder_that_nothing_is_read_from_or_written_to_is_told(few, tmp_path):
    said = CliRunner().invoke(app, ["suites", "--device", "cpu", "--folder", str(tmp_path)])
    assert said.exit_code != 0 and "neither --record nor --stale is said" in str(said.exception) + said.output


def test_places_are_told_in_ranges():
    for places in (set(), {0}, {0, 1, 2, 7}, {3, 5, 6, 9}):
        assert suites._in_ranges(suites._ranges(places)) == places
    assert suites._ranges({7, 0, 2, 1}) == "0-2 7"
