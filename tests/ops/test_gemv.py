"""What the grid cannot say of gemv: matrices stored by columns, long dot products, messages."""

import pytest
import torch

from rooftile.ops import gemv

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
