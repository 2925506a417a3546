"""The products around gelu for Hopper in the simulator: what the grid's cases do not reach, and that no line that orders anything can be taken away."""

import re

import pytest
import torch

from attention_gradients import rewritten, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops.mlp import cuda_kernels as kernels
from rooftile.ops.mlp import reference
from rooftile.workbench.build import instances

FORWARD, BACKWARD = kernels.FORWARD[0], kernels.BACKWARD[0]


def problem(m, k, f, approximate="tanh", dtype=torch.bfloat16, biases=True):
    """Sizes of the two products: x [m, k] by weight1 [f, k], dout [m, k] by weight2 [k, f]."""
    gen = torch.Generator().manual_seed(m + k + f)
    x, dout, w1, w2 = (torch.randn(*s, generator=gen).div(d**0.5).to(dtype) for s, d in (((m, k), 1), ((m, k), 1), ((f, k), k), ((k, f), k)))
    b1, b2 = (torch.randn(n, generator=gen).to(dtype) if biases else None for n in (f, k))
    _, pre, h = reference.mlp(x, w1, b1, w2, b2, approximate)
    return (x, w1, b1, w2, b2, approximate), (dout, x, w1, b1, w2, b2, pre, h, approximate)


def near(got, wanted):
    """Within three roundings, as a share of the largest element."""
    unit = torch.finfo(got.dtype).eps if got.dtype != torch.float32 else torch.finfo(torch.bfloat16).eps
    return got.shape == wanted.shape and bool((got.double() - wanted).abs().max() <= 1.5 * unit * max(1.0, float(wanted.abs().max())))


def exact(call):
    return [t.double() if isinstance(t, torch.Tensor) else t for t in call]


def forward(call, config, level="checks"):
    """Whether pre and h are right."""
    with simulator.active(level):
        _, pre, h = FORWARD.run(*call, config=config)
    _, pre_wanted, h_wanted = reference.mlp(*exact(call))
    return near(pre, pre_wanted) and near(h, h_wanted)


def backward(call, config, level="checks"):
    """Whether what follows of dpre, dx and dweight1, and the sums of its columns are right."""
    with simulator.active(level):
        dx, dweight1, dbias1, *_ = BACKWARD.run(*call, config=config)
    dx_wanted, dweight1_wanted, dbias1_wanted, *_ = reference.mlp_backward(*exact(call))
    return near(dx, dx_wanted) and near(dweight1, dweight1_wanted) and near(dbias1, dbias1_wanted)


SHAPES = [  # M, K, F around every boundary: tiles of 128 x 256, panels of 64, steps of 32 and 64, strips of 16 rows
    (1, 8, 8), (16, 64, 64), (17, 72, 72), (64, 32, 256), (65, 40, 264), (127, 200, 248), (128, 128, 512), (129, 136, 520),
]  # fmt: skip


@pytest.mark.parametrize("m, k, f", SHAPES)
def test_edges(m, k, f):
    config = kernels.CONFIGS[(m + f) % len(kernels.CONFIGS)]
    calls = problem(m, k, f, "tanh" if m % 2 else "none", torch.float16 if f % 3 else torch.bfloat16, biases=k != 40)
    assert forward(calls[0], config) and (calls[0][2] is None or backward(calls[1], config))


@pytest.mark.parametrize("config", kernels.CONFIGS, ids=str)
def test_several_tiles_a_block(config):
    """Six of a last row and column that are not whole, in groups of two rows of tiles: each of two blocks walks from one to the next."""
    calls = problem(300, 200, 520)
    config = {**config, "GROUP": 2}
    assert forward(calls[0], config) and backward(calls[1], config)
