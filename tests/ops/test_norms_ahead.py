"""What the simulator's own choice for v9_ahead.cu is too small to reach: more vectors a thread than parameters are asked for ahead."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator

CONFIG = {"cluster": 2, "rows": 2, "vecs": 8, "ahead": 3, "per": 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [8192, 8192 - 40])
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_parameters_come_in_turns(name, n, dtype):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, n, generator=draw).bfloat16()
    w, b = (torch.randn(n, generator=draw).to(dtype) for _ in "wb")
    args = (x, w, b, 1e-5) if name == "layernorm" else (x, w, 1e-6, 0.5)
    kernel = OPS[name].kernel("cuda.v9_ahead")
    with simulator.active("checks"):
        made = kernel.run(*args, config=CONFIG)
    want = OPS[name].kernel("reference").run(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    for ours, true in zip(made, want):
        torch.testing.assert_close(ours.double(), true, rtol=8e-3, atol=8e-3)
