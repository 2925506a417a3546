import pytest
import torch

import rooftile


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_any_axis(dim):
    x = torch.randn(3, 4, 5, requires_grad=True)
    y = rooftile.softmax(x, dim)
    torch.testing.assert_close(y, torch.softmax(x, dim))
    (g,) = torch.autograd.grad(y, x, torch.arange(60.0).view(3, 4, 5))
    (want,) = torch.autograd.grad(torch.softmax(x, dim), x, torch.arange(60.0).view(3, 4, 5))
    torch.testing.assert_close(g, want)


def test_shifting_a_row_changes_nothing():
    x = torch.randn(4, 33)
    torch.testing.assert_close(rooftile.softmax(x + 100), rooftile.softmax(x), rtol=1e-4, atol=1e-6)


def test_module():
    assert str(rooftile.Softmax(dim=1)) == "Softmax(dim=1)"
    x = torch.randn(2, 3)
    assert torch.equal(rooftile.Softmax()(x), rooftile.softmax(x))
