"""What the grid cannot say of layernorm: invariances, extremes, and a drop-in module."""

import pytest
import torch

from rooftile.ops import LayerNorm, add_layernorm, layernorm


def test_shift_and_scale_of_a_row_change_nothing():
    x = torch.randn(5, 64)
    torch.testing.assert_close(layernorm(8 * x + 16, eps=0.0), layernorm(x, eps=0.0), rtol=1e-5, atol=1e-5)


def test_variance_survives_a_mean_a_million_times_larger():
    """E[x²] - E[x]² in float32 would be off by more than the variance itself."""
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    torch.testing.assert_close(layernorm(x + 1e6), layernorm(x), rtol=1e-4, atol=1e-4)


def test_an_expanded_gradient_sums_over_every_row():
    x, w, b = torch.randn(6, 8), torch.ones(8, requires_grad=True), torch.zeros(8, requires_grad=True)
    layernorm(x, w, b).sum().backward()
    assert torch.equal(b.grad, torch.full((8,), 6.0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n", [96, 20000])
def test_the_sum_is_rounded_once_and_then_normalised(n, device):
    """The gate draws sums that need no rounding; these do."""
    x, residual = (torch.randn(5, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    out, total = add_layernorm(x, residual)
    assert torch.equal(total, x + residual) and torch.equal(out, layernorm(total))


def test_the_sum_and_the_norm_have_one_gradient_for_both_inputs():
    x, residual = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    out, total = add_layernorm(x, residual)
    out.square().sum().backward(retain_graph=True)  # without the sum's
    expected = torch.autograd.grad(torch.nn.functional.layer_norm(x + residual, (8,)).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
    assert torch.equal(x.grad, residual.grad) and x.grad.data_ptr() != residual.grad.data_ptr()
    x.grad = residual.grad = None
    total.sum().backward()  # and without the norm's
    assert torch.equal(x.grad, torch.ones(3, 8)) and torch.equal(residual.grad, torch.ones(3, 8))


@pytest.mark.parametrize("arguments", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 1e-3, "dtype": torch.float64}])
def test_module_is_a_drop_in(arguments):
    theirs, ours = torch.nn.LayerNorm(16, **arguments), LayerNorm(16, **arguments)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    if arguments.get("dtype") is None:
        x = torch.randn(3, 16)
        torch.testing.assert_close(ours(x), theirs(x))


def test_messages_have_both_numbers():
    with pytest.raises(ValueError, match=r"N is 7 in weight, but 8 in x"):
        layernorm(torch.zeros(2, 8), torch.ones(7))
    with pytest.raises(ValueError, match=r"N is 7 in residual, but 8 in x"):
        add_layernorm(torch.zeros(2, 8), torch.zeros(2, 7))
    with pytest.raises(ValueError, match="give one number"):
        LayerNorm((4, 4))
    with pytest.raises(ValueError, match="N is 8 in the module"):
        LayerNorm(8)(torch.zeros(2, 7))
