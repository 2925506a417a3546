"""Fresh memory holds NaN in every test, so that what a kernel does not write shows, and PyTorch draws the same numbers each time: what one run shows
the next one does."""

import gc
import os
from collections import Counter

os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores, and their children
os.environ.setdefault("ROOFTILE_CACHE", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "rooftile"))

import pytest
import torch

from rooftile.workbench.check import poisoned

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def poison():
    torch.manual_seed(0)
    with poisoned():
        yield


LONG = (
    "test_every_kernel_compiles",
    "test_triton_compiles",
    "through_the_interpreter",
    "in_the_simulator",
    "test_two_processes",
    "test_reference",
)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what has been imported stays: a twentieth of the time went into looking at it again


@pytest.hookimpl(tryfirst=True)  # what is thorough is left out by its mark, after this
def pytest_collection_modifyitems(items):
    """Of a test marked sampled(n), `make test` runs every n-th case, and `make test-thorough` the others."""
    met = Counter()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            if met[item.function] % mark.args[0]:
                item.add_marker(pytest.mark.thorough)
            met[item.function] += 1
    items.sort(key=lambda item: not any(name in item.name for name in LONG))  # what takes long first: the end is then shared out evenly
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
