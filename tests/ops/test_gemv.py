"""What the grid cannot say of gemv: matrices stored by columns, long dot products, messages."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import gemv

SPLIT, VECTOR, WARP, NAIVE = (k for k in OPS["gemv"].kernels if k.sources)
GRADIENTS = next(k for k in OPS["gemv_backward"].kernels if k.sources)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_matrix_stored_by_columns(device):
    a, x = torch.randn(300, 70, device=device).mul(2).round(), torch.randn(300, device=device).mul(2).round()
    assert torch.equal(gemv(a.t(), x), gemv(a.t().contiguous(), x))
    assert torch.equal(gemv(a[:, ::2].t(), x), gemv(a[:, ::2].t().contiguous(), x))


@pytest.mark.parametrize("device", DEVICES)
def test_float32_sums_of_narrow_numbers(device):
    """Ones in bfloat16 would stop at 256."""
    ones = torch.ones(3, 40000, device=device, dtype=torch.bfloat16)
    assert gemv(ones, ones[0]).tolist() == [39936.0] * 3  # 40000 rounded to 8 bits


def test_nothing_in_nothing_out():
    a = torch.empty(4, 0, requires_grad=True)
    y = gemv(a, torch.empty(0))
    assert torch.equal(y, torch.zeros(4))
    y.sum().backward()
    assert a.grad.shape == (4, 0)


def test_messages_have_both_numbers():
    with pytest.raises(ValueError, match="K is 7 in x, but 8 in a"):
        gemv(torch.zeros(2, 8), torch.zeros(7))
    with pytest.raises(ValueError, match="dtype is float16 in x, but float32 in a"):
        gemv(torch.zeros(2, 8), torch.zeros(8, dtype=torch.float16))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "kernel, config",
    [(k, c) for k in (SPLIT, VECTOR) for c in k.configs],
    ids=lambda v: getattr(v, "name", None) or "-".join(map(str, v.values())),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_config_of_the_vector_rungs(kernel, config, dtype):
    """Rows past the last, more turns of the loop than one and a last that is not full, columns after the last vector, slices."""
    width = 16 // dtype.itemsize
    a = torch.arange(5 * (2 * 2048 * width + 24)).remainder(5).sub(2).view(5, -1).to(dtype)[:, : 2 * 2048 * width + 17]
    x = torch.arange(a.shape[1]).remainder(3).sub(1).to(dtype)
    with simulator.active("checks") as reports:
        assert torch.equal(kernel.bound(config)(a, x), (a.double() @ x.double()).to(dtype))
    assert len(reports) == (2 if kernel is SPLIT else 1)  # few wide rows: slices, and a second launch that adds them


@pytest.mark.parametrize("config", GRADIENTS.configs, ids=str)
def test_every_grid_of_the_gradients(config):
    a = torch.arange(203 * 40).remainder(7).sub(3).view(203, 40).float()
    x, dout = torch.arange(40.0).remainder(3), torch.arange(203.0).remainder(5)
    with simulator.active("checks"):
        da, dx = GRADIENTS.bound(config)(dout, a, x)
    assert torch.equal(da, torch.outer(dout, x)) and torch.equal(dx, a.t() @ dout)


def test_a_warps_request_in_every_rung():
    """Sectors of 32 bytes for 32 lanes: a thread a row touches one each; a warp a row four in float32; 16 bytes a lane sixteen."""
    a, x = torch.ones(64, 4096), torch.ones(4096)
    sectors = {}
    for kernel in (SPLIT, VECTOR, WARP, NAIVE):
        with simulator.active("all") as reports:
            assert torch.equal(kernel.bound(kernel.heuristic({"a": a, "x": x}))(a, x), torch.full((64,), 4096.0))
        sectors[kernel.name] = max(r.per_request for r in reports[0].accesses if r.space == "global" and not r.store)
    assert sectors["cuda.v1_naive"] > 16 and (sectors["cuda.v2_warp"], sectors["cuda.v3_vector"], sectors["cuda.v4_split"]) == (4, 16, 16)


@pytest.mark.parametrize(
    "a, why",
    [
        (torch.zeros(64, 36, dtype=torch.float16), "rows of a lie 36 elements apart, and it reads 8 at a time"),
        (torch.zeros(64, 64).t(), "neighbours in a row of a lie 64 elements apart, and it reads 4 of them at a time"),
        (torch.zeros(64 * 64 + 1)[1:].view(64, 64), "a begins 4 bytes past a multiple of 16, and it reads 16 bytes at a time"),
    ],
)
def test_what_vectors_cannot_take_is_refused_with_both_numbers(a, why):
    with simulator.active():
        assert SPLIT.refuse({"a": a, "x": torch.zeros(a.shape[1], dtype=a.dtype)}) == why
        assert VECTOR.refuse({"a": a, "x": torch.zeros(a.shape[1], dtype=a.dtype)}) == why
