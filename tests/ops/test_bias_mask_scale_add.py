"""What the grid cannot say: what is masked is not read as a number, broadcast masks stay where they are, the residual's gradient is no copy."""

import pytest
import torch

import rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.workbench import explain


@pytest.mark.parametrize("kernel", ["reference", "cuda.v1_naive", "cuda.v2_vector", "cuda.v3_pipeline"])
def test_a_masked_nan_does_not_spread(kernel):
    x, residual, mask = torch.randn(4, 16), torch.randn(4, 16), torch.rand(4, 16) > 0.5
    x[~mask] = float("nan")
    k = OPS["bias_mask_scale_add"].kernel(kernel if kernel != "cuda.v3_pipeline" else "cuda.v2_vector")  # backward alone
    back = OPS["bias_mask_scale_add_backward"].kernel(kernel)
    call = {"x": x, "bias": torch.ones(16), "mask": mask, "scale": 2.0, "residual": residual}
    with simulator.active("checks"):
        out = k.bound(k.heuristic(call))(*call.values())
        dx, dbias = back.bound(back.heuristic(call))(x, torch.ones(16), mask, 2.0)
    assert torch.equal(out[~mask], residual[~mask]) and bool(out.isfinite().all())
    assert not dx[~mask].any() and bool(dbias.isfinite().all())


def test_an_expanded_mask_is_read_where_it_lies(monkeypatch):
    row = torch.rand(64) > 0.3
    mask, x = row.expand(6, 64), torch.randn(6, 64)
    k = OPS["bias_mask_scale_add"].kernel("cuda.v2_vector")
    call = {"x": x, "bias": torch.zeros(64), "mask": mask, "scale": 1.0, "residual": torch.zeros(6, 64)}
    seen = []
    real = torch.Tensor.contiguous
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda t: real(t) if t.is_contiguous() else seen.append(t))
    with simulator.active("checks"):
        assert k.refuse(call) is None
        out = k.bound(k.heuristic(call))(*call.values())
    assert not seen and torch.equal(out, torch.where(row, x, 0.0))


def test_who_takes_few_elements():
    """Dense, and fewer than a tile of rows is for: there the rows' kernel is asked next, and who is told to take many takes them."""
    op = OPS["bias_mask_scale_add"]

    def answers(m, n, part=slice(None)):
        with explain.imagined("cuda"):
            x = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
            call = {"x": x, "bias": x[0], "mask": torch.empty(m, n, dtype=torch.bool, device="cuda")[:, part], "scale": 2.0, "residual": x}
            return op.choose(call).kernel.name, op.kernel("triton.dense").objection(call)

    assert answers(64, 4096) == ("triton.dense", None)
    assert answers(2048, 4096) == ("triton", None)
    assert answers(64, 4096, slice(0, 4088)) == ("triton", "the rows of mask do not lie one behind another")
    assert answers(2**16, 2**15) == ("triton", f"{2**31} elements are counted in 32 bits")


def test_the_residuals_gradient_is_the_outputs_own_and_costs_nothing(monkeypatch):
    op = OPS["bias_mask_scale_add"]
    x, bias, residual = torch.randn(3, 5), torch.randn(5), torch.randn(3, 5, requires_grad=True)
    mask = torch.ones(3, 5, dtype=torch.bool)
    ran = []
    real = op.backward.launch
    monkeypatch.setattr(op.backward, "launch", lambda *args: ran.append(1) or real(*args))
    dout = torch.randn(3, 5)
    (dr,) = torch.autograd.grad(rooftile.bias_mask_scale_add(x, bias, mask, 0.5, residual), residual, dout)
    assert dr.data_ptr() == dout.data_ptr() and not ran
    x.requires_grad_()
    dr, dx = torch.autograd.grad(rooftile.bias_mask_scale_add(x, bias, mask, 0.5, residual), [residual, x], dout)
    assert torch.equal(dr, dout) and torch.equal(dx, dout * 0.5) and ran


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m, n", [(1, 8), (23, 264), (700, 264), (157, 1032), (1200, 8), (0, 8)])
def test_rows_in_turns_are_each_read_once_and_all_added(dtype, m, n):
    """More turns than stages, groups that M is no multiple of, a strip with a lane too many, 64 rows of one vector at a time."""
    k = OPS["bias_mask_scale_add_backward"].kernel("cuda.v3_pipeline")
    dout, mask = torch.randint(-2, 3, (m, n)).to(dtype), torch.rand(m, n) > 0.3
    for config in k.configs:
        with simulator.active():
            dx, dbias = k.bound(config)(dout, torch.ones(n), mask, 0.5)
        assert torch.equal(dx, torch.where(mask, dout * 0.5, 0.0)) and torch.equal(dbias, dx.float().sum(0)), config


def test_many_rows_go_to_the_pipeline_and_few_to_one_launch():
    op = OPS["bias_mask_scale_add_backward"]

    def chosen(m, n=128):
        with simulator.active():
            call = {"dout": torch.ones(m, n), "bias": torch.ones(n), "mask": torch.ones(m, n, dtype=torch.bool), "scale": 0.5}
            return next(k.name for k in op.kernels if not k.refuse(call) and not k.decline(call))

    assert [chosen(m) for m in (0, 256, 257, 1000)] == ["cuda.v2_vector"] * 2 + ["cuda.v3_pipeline"] * 2


def test_refusals_have_numbers():
    refuse = OPS["bias_mask_scale_add"].kernel("cuda.v2_vector").refuse
    x, bias = torch.randn(4, 64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)

    def why(mask):
        return refuse({"x": x, "bias": bias, "mask": mask, "scale": 1.0, "residual": x})

    with simulator.active("checks"):
        assert why(torch.ones(4, 64, dtype=torch.bool)) is None
        assert "rows of mask are 67 bytes apart, no multiple of the 8" in why(torch.ones(4, 67, dtype=torch.bool)[:, :64])
        assert "mask begins 3 bytes past a multiple of 8" in why(torch.ones(4, 72, dtype=torch.bool)[:, 3:67])
    with pytest.raises(ValueError, match="mask is float32, takes bool"):
        rooftile.bias_mask_scale_add(x, bias, torch.ones(4, 64), 1.0, x)
