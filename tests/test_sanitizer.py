"""NVIDIA's compute-sanitizer over every kernel of every operator, on a GPU: `make test-sanitizer`. Some ten minutes of one GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rooftile.workbench.check import all_ops

TOOLS = ("memcheck", "racecheck", "initcheck")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer"),
]


def sanitize(tool: str, name: str) -> subprocess.CompletedProcess[str]:
    """Tensors get memory of their own with a gap behind it, so that a step out of one is not a step into another."""
    words = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        "--print-limit",
        "5",
        *(["--padding", "4096"] if tool == "memcheck" else []),
    ]
    script = Path(__file__).parent / "sanitized.py"
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run([*words, sys.executable, str(script), name], env=env, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", [op.spec.name for op in all_ops()])
def test_nothing_is_found(name, tool):
    found = sanitize(tool, name)
    assert found.returncode == 0, (found.stdout + found.stderr)[-3000:]


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_planted_is_found(tool):
    found = sanitize(tool, f"planted.{tool}")
    assert found.returncode == 9, (found.stdout + found.stderr)[-3000:]
