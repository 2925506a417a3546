"""What the grid cannot say of reduce_sum: long sums of small numbers, any strides, its gradient's shape."""

import pytest
import torch

from rooftile.ops import reduce_sum


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_float32_sums_of_narrow_numbers(device):
    """Ones in bfloat16 would stop at 256, in a chain of float32 at 2^24."""
    assert reduce_sum(torch.ones(40000, dtype=torch.bfloat16, device=device)) == 39936  # 40000 rounded to 8 bits
    assert reduce_sum(torch.ones(2**25, device=device)) == 2**25


def test_the_sum_does_not_depend_on_the_strides():
    x = torch.randn(37, 53).mul(4).round()
    assert reduce_sum(x) == reduce_sum(x.t()) == reduce_sum(x[:, ::2]) + reduce_sum(x[:, 1::2])
    assert reduce_sum(torch.tensor(2.5)) == 2.5 and reduce_sum(torch.empty(0, 3)) == 0


def test_the_gradient_is_one_number_everywhere():
    x = torch.randn(3, 4, requires_grad=True)
    (3 * reduce_sum(x)).backward()
    assert torch.equal(x.grad, torch.full((3, 4), 3.0)) and x.grad.is_contiguous()


def test_messages_name_what_is_taken():
    with pytest.raises(ValueError, match="x is int64, takes float32"):
        reduce_sum(torch.ones(3, dtype=torch.int64))
