"""What the grid cannot say of scan: infinities, wrapping integers, its four directions, long rows."""

import pytest
import torch

from rooftile.ops import scan

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def test_four_directions():
    x = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    expected = {(False, False): [1, 3, 6, 10], (True, False): [0, 1, 3, 6], (False, True): [10, 9, 7, 4], (True, True): [9, 7, 4, 0]}
    for (exclusive, reverse), want in expected.items():
        assert scan(x, exclusive, reverse).tolist() == want


def test_an_infinity_does_not_reach_the_sum_that_leaves_it_out():
    """An inclusive sum less the element would be inf - inf."""
    assert scan(torch.tensor([1.0, float("inf"), 2.0]), exclusive=True).tolist() == [0.0, 1.0, float("inf")]


def test_float32_sums_of_narrow_numbers():
    """Ones in bfloat16 would stop at 256."""
    assert scan(torch.ones(1000, dtype=torch.bfloat16))[-1] == 1000


@pytest.mark.parametrize("device", DEVICES)
def test_integers_wrap(device):
    x = torch.tensor([2**31 - 1, 1, 1], dtype=torch.int32, device=device)
    assert scan(x).tolist() == [2**31 - 1, -(2**31), -(2**31) + 1]


def test_the_gradient_is_the_scan_from_the_other_end():
    x = torch.zeros(6, requires_grad=True)
    weights = torch.arange(6.0)
    for exclusive in (False, True):
        for reverse in (False, True):
            (dx,) = torch.autograd.grad(scan(x, exclusive, reverse), x, weights)
            assert torch.equal(dx, scan(weights, exclusive, not reverse))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2**26, 2**31 + 5])
def test_one_very_long_row(n):
    """Small integers, whose sums are exact in int32."""
    x = torch.randint(-1, 2, (n,), device="cuda", dtype=torch.int32)
    out = scan(x)
    assert out[-1] == x.sum() and torch.equal(out[:100000], x[:100000].cumsum(0).int())
    middle = n // 2
    assert torch.equal(out[middle : middle + 1000] - out[middle - 1], x[middle : middle + 1000].cumsum(0).int())
