"""What the grid's smallest shape does not reach in the simulator: blocks that share a row and take several, one after another, with races watched."""

import pytest
import torch

from rooftile import ops  # noqa: F401  declares the operators
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.workbench.check import with_gradients

EPS = {"softmax": {}, "rmsnorm": {"eps": 1e-6}, "layernorm": {"eps": 1e-5}}


@pytest.mark.parametrize("kernel", ["cuda.v6_pipeline", "cuda.v7_cluster"])
@pytest.mark.parametrize("name", EPS)
def test_blocks_take_row_after_row(name, kernel):
    for op in with_gradients([OPS[name]]):
        call = op.spec.draw(Case({"M": 7, "N": 2048}, torch.bfloat16, EPS[name]))
        k = op.kernel(kernel)
        wanted = op.spec.reference(*call.values())
        for config in (k.heuristic(call), {**k.heuristic(call), "stages": 2}):
            with simulator.active("all"):
                assert k.refuse(call) is None
                made = k.bound(config)(*call.values())
            for a, b in zip(made if isinstance(made, tuple) else [made], wanted if isinstance(wanted, tuple) else [wanted]):
                torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)
