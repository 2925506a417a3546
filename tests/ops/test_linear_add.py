"""What the grid cannot say of linear_add: one rounding, a residual's own gradient, messages."""

import pytest
import torch

from rooftile.ops import gated_mlp, linear_add


def test_the_sum_is_rounded_once():
    """256 + 1 in bfloat16 is 256, and so it is when 1 is added to that; 258 is all three."""
    x, w, residual = (torch.tensor([row], dtype=torch.bfloat16) for row in ((256.0, 1.0), (1.0, 1.0), (1.0,)))
    assert linear_add(x, w, residual).item() == 258 != (torch.nn.functional.linear(x, w) + residual).item()


@pytest.mark.parametrize("make", [lambda x, w, r: linear_add(x, w, r), lambda x, w, r: gated_mlp(x, w.new_ones(8, 6), w[:, :4], "silu", r)])
def test_the_residuals_gradient_is_the_outputs(make):
    x, w, r = (torch.randn(*shape, requires_grad=True) for shape in ((3, 6), (5, 6), (3, 5)))
    out, dout = make(x, w, r), torch.randn(3, 5)
    dx, dr = torch.autograd.grad(out, (x, r), dout)
    assert torch.equal(dr, dout) and dx.shape == x.shape
    assert torch.equal(torch.autograd.grad(make(x.detach(), w.detach(), r), r, dout)[0], dout)


def test_messages_have_both_numbers():
    x, w = torch.zeros(3, 6), torch.zeros(5, 6)
    with pytest.raises(ValueError, match=r"linear_add: .*5 in weight.*1 in residual|linear_add: .*1 in residual.*5 in weight"):
        linear_add(x, w, torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"linear_add: .*\[3\] in x.*\[1\] in residual|linear_add: .*\[1\] in residual.*\[3\] in x"):
        linear_add(x, w, torch.zeros(1, 5))
    with pytest.raises(ValueError, match="linear_add: dtype is bfloat16 in residual, but float32 in x"):
        linear_add(x, w, torch.zeros(3, 5, dtype=torch.bfloat16))
