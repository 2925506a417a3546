"""What the docstrings and README.md show is what comes out."""

import doctest
import re
from pathlib import Path

import pytest
import torch

import rooftile

README = Path(__file__).resolve().parent.parent / "README.md"
SHOWN = {name: getattr(rooftile, name) for name in rooftile.__all__}


@pytest.mark.parametrize("name", [n for n, public in SHOWN.items() if ">>>" in (public.__doc__ or "")])
def test_docstring(name):
    (test,) = doctest.DocTestFinder(recurse=False).find(SHOWN[name], name, globs={"torch": torch, **SHOWN})
    said = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def test_readme():
    """The first Python of the page, on a CPU."""
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    here = {}
    exec(code.replace('"cuda"', '"cpu"'), here)
    assert here["loss"].isfinite() and here["x"].grad.shape == here["x"].shape
    assert torch.allclose(here["step"](here["y"]), rooftile.gelu(here["y"], "tanh"))
