"""The wheel that people install holds what the checkout holds."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rooftile.workbench import doctor

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WANTED = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}


def test_the_built_wheel_is_whole(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(p.relative_to(ROOT / "src"))
        for p in (ROOT / "src").rglob("*")
        if p.suffix in (".py", ".cu", ".cuh", ".h", ".cpp", ".md", ".jsonl", ".typed", ".pyi")
    }
    wanted |= {"rooftile/py.typed"}
    assert wanted <= inside, sorted(wanted - inside)
    assert "rooftile/ops/vector_add/cuda/v3_vector.cu" in inside  # CUDA C++ is compiled on the user's machine, from these
    assert any(n.endswith("LICENSE") for n in inside)


def test_a_system_without_triton_is_told():
    """Where it is not published, as on a Mac, pip installs rooftile without it. Seen red: "No module named 'triton'" from the middle of an operator."""
    code = "import sys\nsys.modules['triton'] = None\nimport rooftile"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].startswith("ImportError: rooftile's kernels are written in Triton, which is not installed")


def test_a_typer_that_does_not_know_todays_click_is_not_enough():
    """Seen red: beside click 8.5 typer 0.12 ended every command in a RuntimeError, 0.13 and 0.15 each --help in a TypeError, and up to 0.17 `rooftile explain`
    without an operator went on with None."""
    assert list(WANTED["typer"].filter(["0.12.5", "0.15.1", "0.17.5", "0.18.0"])) == ["0.18.0"]


@pytest.mark.parametrize("name", doctor.RANGES)
def test_the_doctor_takes_what_the_wheel_takes(name):
    (low, below), limits = doctor.RANGES[name], WANTED[name]
    assert {str(limit) for limit in limits} == {">=" + ".".join(map(str, low)), "<" + ".".join(map(str, below))}
