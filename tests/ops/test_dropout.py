"""What the grid cannot say of dropout: the mask's statistics, its independence of strides, and that forward and backward share it."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import Dropout, dropout
from rooftile.ops._shared.philox import kept, philox


def test_philox_gives_the_published_words():
    """Known answers of Random123's philox4x32-7."""
    assert [int(w) for w in philox(torch.tensor([0]), torch.tensor(0))] == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


def test_counters_do_not_wrap_at_32_bits():
    low, high = philox(torch.tensor([5]), torch.tensor(7)), philox(torch.tensor([5 + 2**32]), torch.tensor(7))
    assert all(int(a) != int(b) for a, b in zip(low, high))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keep_rate_within_five_sigma(p):
    n = 2**20
    for seed in (0, 1, -1, 2**40):
        rate = kept(torch.Size([n]), torch.tensor(seed), p).double().mean()
        assert abs(float(rate) - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5


def test_neighbours_and_seeds_are_uncorrelated():
    n = 2**20
    a, b = (kept(torch.Size([n]), torch.tensor(s), 0.5).double() * 2 - 1 for s in (1, 2))
    for lag in (1, 2, 4, 1024):
        assert abs(float((a[lag:] * a[:-lag]).mean())) < 5 / n**0.5
    assert abs(float((a * b).mean())) < 5 / n**0.5


def test_one_seed_one_mask_forward_backward_and_across_strides_and_dtypes():
    x = torch.rand(6, 50).add_(0.5).requires_grad_()
    out = dropout(x, 0.4, seed=11)
    out.sum().backward()
    assert torch.equal(out != 0, x.grad != 0)
    assert torch.equal(out, dropout(x.detach().t().contiguous().t(), 0.4, seed=11))
    assert torch.equal(out != 0, dropout(x.detach().bfloat16(), 0.4, seed=torch.tensor([11])) != 0)
    assert not torch.equal(out != 0, dropout(x, 0.4, seed=12) != 0)


def test_the_default_generator_decides():
    x = torch.ones(100)
    torch.manual_seed(3)
    a, b = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), a) and not torch.equal(a, b)


def test_the_ends():
    x = torch.tensor([1.0, float("inf"), float("nan")])
    assert dropout(x, 0.0) is x and dropout(x, 0.7, training=False) is x
    assert torch.equal(dropout(x, 1.0), torch.zeros(3))
    module = Dropout(0.5).eval()
    assert module(x) is x
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match=f"p is {wrong}"):
            dropout(x, wrong)
    with pytest.raises(ValueError, match="dropout: x must be a tensor, got list"):
        dropout([1.0])
    with pytest.raises(ValueError, match="inplace=True is not supported"):
        Dropout(inplace=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 7, 8, 4099])
def test_cuda_has_the_reference_bit_for_bit(dtype, n):
    """The mask, and the products: one rounding each."""
    op = OPS["dropout"]
    x = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    for seed, p in ((-(2**62) + 3, 0.1), (2**33, 0.9), (5, 1 - 2**-53)):
        wanted = op.spec.reference(x, torch.tensor(seed), p)
        for kernel in (k for k in op.kernels if k.name.startswith("cuda.")):
            for config in kernel.configs or ({},):
                with simulator.active():
                    assert torch.equal(kernel.bound(config)(x, torch.tensor(seed), p), wanted), (kernel.name, config, seed, p)


def test_a_seed_is_an_integer_of_64_bits():
    x = torch.ones(8)
    assert torch.equal(dropout(x, seed=2**64 - 1), dropout(x, seed=-1))
    for wrong, said in (
        (1.5, "seed is 1.5, it takes an integer"),
        (2**64, "seed is 1844.*, it takes"),
        (torch.zeros(2).long(), "seed has 2 numbers"),
    ):
        with pytest.raises(ValueError, match=said):
            dropout(x, seed=wrong)
