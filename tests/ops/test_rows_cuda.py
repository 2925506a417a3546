"""What the grid's smallest shape does not reach in the simulator: blocks that share a row and take several, one after another, with races watched."""

from dataclasses import replace

import pytest
import torch

from rooftile import ops  # noqa: F401  declares the operators
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.ops._shared.cuda_rows import RESERVED, share, wide_hold
from rooftile.workbench.check import with_gradients

EPS = {"softmax": {}, "rmsnorm": {"eps": 1e-6}, "layernorm": {"eps": 1e-5}}


def with_kernel(name, kernel):
    return [op for op in with_gradients([OPS[name]]) if kernel in (k.name for k in op.kernels)]


def agree(made, wanted):
    for a, b in zip(made if isinstance(made, tuple) else [made], wanted if isinstance(wanted, tuple) else [wanted]):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2 * min(1.0, float(b.abs().nan_to_num().max() or 1)), equal_nan=True)


@pytest.mark.parametrize("kernel", ["cuda.v6_pipeline", "cuda.v7_cluster", "cuda.v8_exchange", "cuda.v9_bulk"])
@pytest.mark.parametrize("name", EPS)
def test_blocks_take_row_after_row(name, kernel):
    for op in with_kernel(name, kernel):
        call = op.spec.draw(Case({"M": 7, "N": 2048}, torch.bfloat16, EPS[name]))
        k = op.kernel(kernel)
        wanted = op.spec.reference(*call.values())
        for config in (k.heuristic(call), {**k.heuristic(call), "stages": 2}):
            with simulator.active("all"):
                assert k.refuse(call) is None
                made = k.bound(config)(*call.values())
            agree(made, wanted)


SHARED = [
    {"cluster": 8, "vecs": 1, "stages": 2, "per": 1},
    {"cluster": 2, "vecs": 2, "stages": 3, "per": 2},
    {"cluster": 4, "vecs": 4, "stages": 1, "per": 1, "stay": False},
]


@pytest.mark.parametrize("config", SHARED, ids=lambda c: f"cluster{c['cluster']}")
@pytest.mark.parametrize("n", [1000, 4096])
@pytest.mark.parametrize("kernel", ["cuda.v7_cluster", "cuda.v8_exchange", "cuda.v9_bulk"])
@pytest.mark.parametrize("name", EPS)
def test_blocks_share_a_row(name, kernel, n, config):
    """Some of them without a column of it."""
    for op in with_kernel(name, kernel):
        call = op.spec.draw(Case({"M": 5, "N": n}, torch.bfloat16, EPS[name]))
        with simulator.active("all"):
            agree(op.kernel(kernel).bound(config)(*call.values()), op.spec.reference(*call.values()))


@pytest.mark.parametrize("kernel", ["cuda.v7_cluster", "cuda.v8_exchange", "cuda.v9_bulk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_a_shared_softmax_may_trip_over(kernel, dtype):
    """Blocks, warps and threads with nothing but -inf, or with a maximum far below the row's; what is not a number reaches all of the row."""
    x = torch.randn(9, 4096, dtype=dtype)
    x[1, :3000], x[2, 1000:], x[3] = -torch.inf, -torch.inf, -torch.inf
    x[4], x[5, 7], x[6, 4095] = torch.linspace(-3e4, 3e4, 4096).to(dtype), torch.nan, torch.inf
    x[7, :2048] -= 200
    x[8] = torch.finfo(dtype).max
    with simulator.active():
        made = OPS["softmax"].kernel(kernel).bound(SHARED[0])(x)
    want = OPS["softmax"].spec.reference(x)
    assert torch.equal(made.isnan(), want.isnan()) and want.isnan().any(1).tolist() == [i in (3, 5, 6) for i in range(9)]
    torch.testing.assert_close(made, want, rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("kernel", ["cuda.v8_exchange", "cuda.v9_bulk"])
def test_parts_with_means_far_apart(kernel):
    """Each warp tells its own mean: what is between the means of the parts must not be lost, nor what is within them beside large means."""
    x = torch.randn(4, 4096) + torch.tensor([0.0, 1e4, 0.0, 0.0])[:, None]
    x[2] += torch.arange(4096) // 128 * 10.0
    x[3] = 7.0
    op = OPS["layernorm"]
    with simulator.active():
        out, mean, rstd = op.kernel(kernel).bound(SHARED[0])(x, None, None, 1e-5)
    want = op.spec.reference(x.double(), None, None, 1e-5)
    torch.testing.assert_close(mean.double(), want[1].double(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rstd.double(), want[2].double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(out.double(), want[0].double(), rtol=1e-5, atol=2e-3)


def test_a_grid_of_clusters_is_even():
    """A cluster more than fit would run alone, after all others; fewer that take as many turns leave room."""
    x = torch.empty(1000, 131072, dtype=torch.bfloat16, device="meta")
    s = share(x, {"cluster": 8, "vecs": 8, "stages": 2, "per": 2}, wide_hold(x))
    assert (s.cluster, s.threads, s.vecs, s.per, s.shared) == (8, 256, 8, 2, 65536)
    assert s.blocks(x, 1000, None, "") == 33 * 8 and s.blocks(x, 20, None, "") == 20 * 8 and s.blocks(x, 34, None, "") == 17 * 8
    assert replace(s, stay=False).blocks(x, 1000, None, "") == 8000


@pytest.mark.parametrize(
    "n, config", [(262144, {"cluster": 2, "vecs": 8, "stages": 4, "per": 4}), (8, {"cluster": 8, "vecs": 1, "stages": 9, "per": 9})]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_keep_within_a_multiprocessor(n, config, dtype):
    x = torch.empty(3, n, dtype=dtype, device="meta")
    s = share(x, config, wide_hold(x))
    width = 16 // x.itemsize
    assert s.cluster * s.threads * s.vecs * width >= n and s.per * s.threads * (128 if s.vecs * width > 32 else 64) <= 65536
    assert s.per * (s.shared + RESERVED) <= 228 * 1024


def test_rows_too_wide_are_refused_in_a_sentence():
    x = torch.empty(2, 1 << 19, dtype=torch.bfloat16)
    with simulator.active():
        said = OPS["softmax"].kernel("cuda.v9_bulk").refuse({"x": x})
        assert said == "N=524288 is longer than the 262144 columns that the registers of 8 blocks hold"
        w = torch.empty(1 << 18)
        said = OPS["layernorm"].kernel("cuda.v9_bulk").refuse({"x": torch.empty(2, 1 << 18), "weight": w, "bias": w, "eps": 1e-5})
    assert said == "a row of 262144 columns and what stays are 393216 bytes for each of 8 blocks, which have 227328"
