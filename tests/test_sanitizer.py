"""`rooftile sanitize`, whose verdicts a GPU gives: `make test-sanitizer`; elsewhere a tool that says what a test wants it to say."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

import sanitized
from rooftile.cli import app
from rooftile.core.kernel import OPS
from rooftile.core.record import Status
from rooftile.cuda import simulator
from rooftile.workbench import ledger, pages, sanitizer
from rooftile.workbench.check import all_ops
from rooftile.workbench.sanitizer import FOUND, ORDERED_IN_A_WARP, PACKAGE, TOOLS, unexplained

on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer"),
]


def gpu(test):
    for mark in on_a_gpu:
        test = mark(test)
    return test


REPORT = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at own_keys(int)+0x1740 in v6_hopper_wide_backward.cu:{read}
=========     and Write access at own_values(int)+0x5590 in v6_hopper_wide_backward.cu:{write} [5952 hazards]
=========
32 launches
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_a_race_is_passed_over_only_where_both_lines_are_known():
    write, read = lines("v6_hopper_wide_backward.cu", "sP[j * 128]")
    assert unexplained(REPORT.format(write=write, read=read)) == []
    assert len(unexplained(REPORT.format(write=write, read=read + 1))) == 1
    assert len(unexplained(REPORT.format(write=write + 1, read=read))) == 1
    init, arrive = lines("mbarrier.cuh", *ORDERED_IN_A_WARP["mbarrier.cuh"])
    made = REPORT.replace("v6_hopper_wide_backward.cu", "mbarrier.cuh").format(write=init, read=arrive)
    assert len(unexplained(made)) == 1 and unexplained(made.replace("Error: ", "Warning: ")) == []  # of lanes of a warp, not of two warps


def lines(file: str, *words: str) -> list[int]:
    (found,) = PACKAGE.rglob(file)
    return [i for i, line in enumerate(found.read_text().splitlines(), 1) if any(w in line for w in words)]


@pytest.mark.parametrize("file", ORDERED_IN_A_WARP)
def test_what_is_passed_over_is_there(file):
    (found,) = PACKAGE.rglob(file)
    assert [words for words in ORDERED_IN_A_WARP[file] if words not in found.read_text()] == []


@pytest.mark.parametrize("tool", ["racecheck", "initcheck"])
def test_the_simulator_finds_nothing_in_what_a_tool_does_not_see(tool):
    with simulator.active():
        sanitized.unseen(tool, "cpu")


# ---- a tool that says what a test wants ----------------------------------------------------------------------------------

ADD = [("residual_add", k.name) for k in OPS["residual_add"].kernels[:-1]] + [("residual_add_backward", "triton")]
MEMORY = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at add(float *)+0x80 in v2_vector.cu:12
=========     by thread (127,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """`says[tool]`: what it prints and leaves with, once the program has said what it launched; None: the program never comes so far."""
    said, folder = tmp_path / "said", tmp_path / "bin"
    said.mkdir()
    folder.mkdir()
    script = folder / "compute-sanitizer"
    script.write_text(f'#!/bin/sh\ncat "{said}/$2"\nexit $(cat "{said}/$2.status")\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(sanitizer.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sanitizer.gatekeeper, "slug_here", lambda: "gpu")

    def say(launched=ADD, **reports):
        for name in TOOLS:
            report, status = reports.get(name, ("", 0))
            (said / name).write_text(report + "".join(f"launched {op} {kernel} 3\n" for op, kernel in launched))
            (said / f"{name}.status").write_text(str(status))

    say()
    return say


def test_a_verdict_is_a_record_of_each_kernel(tool, tmp_path, monkeypatch):
    folder = tmp_path / "records"
    total = sanitizer.sanitize(["residual_add"], None, 2, folder)
    here = sanitizer.looked_at(OPS["residual_add"])
    assert (total["passed"], total["failed"], total["left"]) == (len(ADD), 0, []) and total["refused"] == len(here) - len(ADD)
    records = [r for _, r in ledger.every(folder)]
    assert {(r.op, r.kernel, r.case) for r in records} == {(o.spec.name, k.name, f"sanitizer-{k.name}") for o, k in here}
    first = records[0]
    assert first.extra == dict.fromkeys(TOOLS, 3) and first.digest == OPS["residual_add"].kernels[0].digest and not ledger.is_stale(first)
    again = sanitizer.sanitize(["residual_add"], None, 1, None, lacking=folder)
    assert again["results"] == [] == again["left"]
    every = sum(len(sanitizer.looked_at(op)) for op in all_ops())
    told = pages.sanitized(ledger.latest(folder))
    assert f"| {len(here)} of {every} | memcheck {3 * len(ADD)}, racecheck {3 * len(ADD)}, initcheck {3 * len(ADD)} | " in told
    assert "residual_add " not in told and f"gelu_backward {len(OPS['gelu'].backward.kernels) - 1}" in told
    monkeypatch.setattr(type(OPS["residual_add"].kernels[0]), "digest", "another")
    assert sanitizer.sanitize(["residual_add"], None, 1, None, lacking=folder)["passed"] == len(ADD)
    assert f"| 0 of {every} |" in pages.sanitized(ledger.latest(folder))


@pytest.mark.parametrize(
    "reports, message",
    [
        ({"memcheck": (MEMORY, FOUND)}, "memcheck: Invalid __global__ write of size 4 bytes\n=========     at add(float *)+0x80 in v2_vector.cu:12"),
        ({"racecheck": (REPORT.format(write=1, read=2), FOUND)}, "racecheck: ========= Error: Race reported between Read access"),
        ({"racecheck": (REPORT.replace(" in v6_hopper_wide_backward.cu:{write}", " somewhere").format(read=2), FOUND)}, "racecheck: ========= Error: Race"),
        ({"initcheck": ("Traceback\nOutOfMemoryError: CUDA\n", 1)}, "initcheck: Traceback\nOutOfMemoryError: CUDA"),
    ],
)  # fmt: skip
def test_what_is_found_is_said_of_all_that_was_looked_at(tool, tmp_path, reports, message):
    tool(**reports)
    total = sanitizer.sanitize(["residual_add"], None, 1, tmp_path / "records")
    assert total["failed"] == len(total["results"]) and total["passed"] == 0
    assert all(r["message"].startswith(message) for r in total["results"])
    assert {r.status for _, r in ledger.every(tmp_path / "records")} == {Status.FAILED}
    assert ledger.green(tmp_path / "records", "gpu", of=ledger.SANITIZED) == set()
    assert "sanitizer" not in pages.ladder([OPS["residual_add"]], ledger.latest(tmp_path / "records"))  # a verdict is no figure
    made = CliRunner().invoke(app, ["sanitize", "residual_add"])
    assert (
        made.exit_code == 1 and f"0 passed, {total['failed']} failed, 0 refused" in made.output and message.splitlines()[0] in made.output
    )


def test_known_races_pass_and_a_program_that_never_ends_well_does_not(tool):
    write, read = lines("v6_hopper_wide_backward.cu", "sP[j * 128]")
    tool(racecheck=(REPORT.format(write=write, read=read), FOUND))
    assert sanitizer.sanitize(["residual_add"], None)["failed"] == 0
    tool(launched=[])
    total = sanitizer.sanitize(["residual_add"], None)
    assert total["failed"] == len(total["results"]) and "it ended with status 0" in total["results"][0]["message"]


def test_what_is_left_and_what_cannot_be(tool, tmp_path, monkeypatch):
    total = sanitizer.sanitize(["gelu", "residual_add"], None, within=0.0, folder=tmp_path / "records")
    assert total["left"] == ["gelu", "residual_add"] and not list(ledger.every(tmp_path / "records"))
    made = CliRunner().invoke(app, ["sanitize", "residual_add", "--within", "0", "--json"])
    assert made.exit_code == 1 and json.loads(made.stdout)["left"] == ["residual_add"]
    monkeypatch.setattr(sanitizer.torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="this machine has 0 CUDA devices"):
        sanitizer.sanitize([], None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="compute-sanitizer is on none of the folders of PATH"):
        sanitizer.sanitize([], None)


def test_a_program_that_hangs_is_told(monkeypatch):
    def hangs(*words, timeout, **how):
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(sanitizer.subprocess, "run", hangs)
    assert sanitizer.look("memcheck", "gelu") == ({}, "it had not ended after 500 seconds")


# ---- on a GPU ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def reports(request):
    """What each tool says of each operator that was asked for: processes beside each other, as most of their time is one core's."""
    asked = [item.callspec.params for item in request.session.items if "reports" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 2)) as pool:
        yield {(a["tool"], a["name"]): pool.submit(sanitizer.look, a["tool"], a["name"]) for a in asked}


NAMES = sorted((op.spec.name for op in all_ops()), key=lambda name: "attention" not in name)  # the longest first


@gpu
@pytest.mark.parametrize("name, tool", [(n, t) for n in NAMES for t in sanitizer.tools_for(n)])
def test_nothing_is_found(name, tool, reports):
    launches, fault = reports[tool, name].result()
    assert launches and fault == ""


@gpu
@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_planted_is_found(tool):
    found = sanitizer.under(tool, sanitized.__file__, f"planted.{tool}")
    assert found.returncode == FOUND, (found.stdout + found.stderr)[-3000:]
    assert sanitizer.fault(tool, found, True)


@gpu
@pytest.mark.parametrize("tool", ["racecheck", "initcheck"])
def test_what_a_tool_does_not_see(tool):
    """Red when it learns to: what is passed over for it can then be looked at."""
    found = sanitizer.under(tool, sanitized.__file__, f"unseen.{tool}")
    assert found.returncode == FOUND and "Error" not in found.stderr, (found.stdout + found.stderr)[-3000:]
