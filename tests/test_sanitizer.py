"""NVIDIA's compute-sanitizer over every kernel of every operator, on a GPU: `make test-sanitizer`.

Four things it does not see, and reports what hangs on them: memory that a bulk copy has written (initcheck), one lane of a warp that tells others
through an mbarrier what all its lanes have done, how Triton's warp specialisation hands work to warps, and which lane has made an mbarrier (racecheck).
The first two are shown by kernels of tests/cuda/unseen.cu, in which the simulator finds nothing; what the four explain is passed over here, line by line."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rooftile
import sanitized
from rooftile.cuda import simulator
from rooftile.workbench.check import all_ops

TOOLS = ("memcheck", "racecheck", "initcheck")
PACKAGE = Path(rooftile.__file__).parent
# Their kernels read what cuBLAS or a kernel of ours has stored by bulk copies; each of their parts is looked at by itself.
READ_BULK_COPIES = {
    "gated_mlp",
    "linear_cross_entropy",
    "linear_cross_entropy_ahead",
    "linear_cross_entropy_frozen",
    "mlp",
    "rotary_attention",
}
# Of a file the words in whose lines accesses are ordered though racecheck does not see it.
ORDERED = {
    "tma.cuh": ("cp.async.bulk.shared::cluster.global.mbarrier",),  # where one lane has said of each warp that it has read
    "v5_hopper_backward.cu": ("sMine[4 * i]",),
    "v6_hopper_wide_backward.cu": ("(sLse2 + ", "(sDelta + ", "sP[j * 128]"),
    "v7_hopper_latent_backward.cu": ("(sDelta + ",),
    "gluon_kernels.py": ("def forward(", "if GROUPS == 2:"),  # Triton's own, before and behind the work of warps
    "gluon_options_kernels.py": ("def forward(", "gl.warp_specialize(", "sTold."),  # and a tile's number, told by one lane
}
# And where a warning is enough: of one lane, the first, which racecheck takes for the last.
ORDERED_IN_A_WARP = {**ORDERED, "mbarrier.cuh": ("mbarrier.init.shared", "mbarrier.arrive.expect_tx.")}
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer"),
]


def gpu(test):
    for mark in on_a_gpu:
        test = mark(test)
    return test


def sanitize(tool: str, name: str) -> subprocess.CompletedProcess[str]:
    """Tensors get memory of their own with a gap behind it, so that a step out of one is not a step into another."""
    words = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        "--print-limit",
        "1000" if tool == "racecheck" else "5",
        *(["--padding", "4096"] if tool == "memcheck" else []),
    ]
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run([*words, sys.executable, sanitized.__file__, name], env=env, capture_output=True, text=True, timeout=500)


def source_line(file: str, number: int) -> str:
    (found,) = (p for p in PACKAGE.rglob(file))
    return found.read_text().splitlines()[number - 1]


def unexplained(report: str) -> list[str]:
    """The races of a report, each from its first line to the last access, of which an access is on no line of ORDERED."""
    races = re.findall(r"^=+ +(?:Error|Warning): Race reported.*(?:\n=+ +and .*)+", report, re.M)
    return [
        race for race in races if not all(ordered(*place, ORDERED_IN_A_WARP if "Warning" in race else ORDERED) for place in places(race))
    ]


def places(race: str) -> list[tuple[str, int]]:
    made = [(file, int(line)) for file, line in re.findall(r" in (\S+):(\d+)", race)]
    assert len(made) == len(race.splitlines()), race
    return made


def ordered(file: str, line: int, known: dict[str, tuple[str, ...]]) -> bool:
    return any(words in source_line(file, line) for words in known.get(file, ()))


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


@pytest.fixture(scope="session")
def reports(request):
    """What each tool says of each operator that was asked for: processes beside each other, as most of their time is one core's."""
    asked = [item.callspec.params for item in request.session.items if "reports" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 2)) as pool:
        yield {(a["tool"], a["name"]): pool.submit(sanitize, a["tool"], a["name"]) for a in asked}


NAMES = sorted((op.spec.name for op in all_ops()), key=lambda name: "attention" not in name)  # the longest first


@gpu
@pytest.mark.parametrize("name, tool", [(n, t) for n in NAMES for t in TOOLS if t != "initcheck" or n not in READ_BULK_COPIES])
def test_nothing_is_found(name, tool, reports):
    found = reports[tool, name].result()
    said = (found.stdout + found.stderr)[-3000:]
    if tool == "racecheck" and found.returncode == 9:
        assert "launches\n" in found.stdout and unexplained(found.stdout) == [], said
    else:
        assert found.returncode == 0, said


@gpu
@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_planted_is_found(tool):
    found = sanitize(tool, f"planted.{tool}")
    assert found.returncode == 9, (found.stdout + found.stderr)[-3000:]
    assert tool != "racecheck" or unexplained(found.stdout)


@gpu
@pytest.mark.parametrize("tool", ["racecheck", "initcheck"])
def test_what_a_tool_does_not_see(tool):
    """Red when it learns to: what is passed over for it can then be looked at."""
    found = sanitize(tool, f"unseen.{tool}")
    assert found.returncode == 9 and "Error" not in found.stderr, (found.stdout + found.stderr)[-3000:]
