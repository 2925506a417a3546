"""Fresh memory holds NaN in every test, so that what a kernel does not write shows."""

import os

os.environ.setdefault("ROOFTILE_CACHE", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "rooftile"))

import pytest
import torch

from rooftile.workbench.check import poisoned

torch.set_num_threads(1)  # two workers on two cores


@pytest.fixture(autouse=True)
def poison():
    with poisoned():
        yield


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
