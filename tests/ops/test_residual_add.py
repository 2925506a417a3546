"""What the grid cannot say of the residual's addition: the gradient is the output's own, and what in place may and may not."""

import pytest
import torch

import rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator


def test_the_gradient_is_handed_on_in_each_ones_dtype():
    x, residual = torch.randn(3, 5).bfloat16().requires_grad_(), torch.randn(3, 5, requires_grad=True)
    out = rooftile.residual_add(x, residual)
    assert out.dtype == torch.float32
    dout = torch.randn(3, 5)
    out.backward(dout)
    assert torch.equal(residual.grad, dout) and torch.equal(x.grad, dout.bfloat16())


def test_a_float32_stream_keeps_what_bf16_loses():
    x = torch.full((4,), 2.0**-10).bfloat16()
    assert torch.equal(rooftile.residual_add(x, torch.ones(4)), torch.full((4,), 1 + 2.0**-10))
    assert torch.equal(rooftile.residual_add(x, torch.ones(4).bfloat16()), torch.ones(4).bfloat16())


@pytest.mark.parametrize("kernel", ["reference", "cuda.v1_naive", "cuda.v2_vector"])
def test_in_place_writes_where_the_residual_lies(kernel):
    wide, x = torch.zeros(6, 72), torch.randn(6, 64)
    residual = wide[:, :64].fill_(1)
    op = OPS["residual_add_overwrite"]
    call = {"x": x, "residual": residual}
    k = op.kernel(kernel)
    with simulator.active("checks"):
        assert k.refuse(call) is None
        assert k.bound(k.heuristic(call))(x, residual) is None
    assert torch.equal(residual, x + 1) and not wide[:, 64:].any()


def test_in_place_returns_the_residual_and_tells_autograd():
    x, residual = torch.randn(5), torch.randn(5)
    version, wanted = residual._version, x + residual
    assert rooftile.residual_add(x, residual, inplace=True) is residual
    assert torch.equal(residual, wanted) and residual._version > version


def test_in_place_refusals():
    x, residual = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match="keeps no graph, but residual requires a gradient"):
        rooftile.residual_add(x, residual, inplace=True)
    with torch.no_grad():
        rooftile.residual_add(x, residual, inplace=True)
    with pytest.raises(ValueError, match=r"residual is \[2, 3\] with strides \[0, 1\]: elements share a place"):
        rooftile.residual_add(x, torch.ones(3).expand(2, 3), inplace=True)
    refuse = OPS["residual_add_overwrite"].kernel("cuda.v1_naive").refuse
    with simulator.active("checks"):
        assert "has no view as rows" in refuse({"x": torch.ones(4, 2, 3), "residual": torch.ones(2, 4, 3).transpose(0, 1)})
        assert "neighbours in a row of residual are 2 apart" in refuse(
            {"x": torch.ones(1, 2, 3), "residual": torch.ones(1, 2, 6)[..., ::2]}
        )
