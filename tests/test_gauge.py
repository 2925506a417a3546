"""The measure itself: PyTorch's luck with its roundings must not refuse an exact kernel, nor let a wrong one pass."""

import pytest
import torch
from torch import Tensor

from rooftile.core.spec import Tolerance
from rooftile.workbench import gauge as measured
from rooftile.workbench.gauge import Gauge

COLUMNS = 8


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sums(seed: int, rounded: int, noise: int = 0, off: float = 0.0) -> Tensor:
    """A weight's gradient as it is where all x are equal: 24 products for each of 72 rows, added up and 8 times the same. `rounded`: nothing, the
    products, or a factor and the products, as PyTorch does, in float16."""
    g, slope = drawn(seed, 24, 72), drawn(seed + 1000, 72).half().double()
    terms = (g.half().double() if rounded == 2 else g) * slope * (1 + off)
    x = torch.full((24, 72, COLUMNS), 1.5, dtype=torch.float64)
    if noise:
        x = x * (1 + 2 * measured.U32 * drawn(seed + 10000 * noise, 24, 72, COLUMNS))
    return ((terms.half().double() if rounded else terms)[..., None] * x).sum(0)


def measure(seed: int) -> Gauge:
    return Gauge(sums(seed, 0), sums(seed, 2).half(), [sums(seed, 0, noise) for noise in (1, 2, 3)], 1.5, Tolerance(), False)


def refusals(**kernel) -> int:
    return sum(not measure(seed).read(sums(seed, **kernel).half()).passed for seed in range(100))


def test_an_exact_kernel_is_not_refused_for_pytorchs_luck(monkeypatch):
    """It rounds once where PyTorch rounds twice. Without the scale of the terms it is refused now and then; with it a kernel that is off by two
    parts in a hundred is refused no less often than before."""
    exact, wrong = refusals(rounded=1), refusals(rounded=1, off=0.02)
    monkeypatch.setattr(measured, "CANCELS", float("inf"))
    assert exact == 0 and refusals(rounded=1) >= 10
    assert wrong >= 80 and wrong >= refusals(rounded=1, off=0.02) - 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_that_do_not_cancel_are_allowed_what_pytorchs_error_is(dtype):
    """Where no row cancels the scale of the terms changes nothing."""
    truth = drawn(0, 24, 72).abs() + 1
    noisy = [truth * (1 + 2 * measured.U32 * drawn(i, 24, 72)) for i in (1, 2, 3)]
    made = Gauge(truth, (truth * (1 + 1e-3)).to(dtype), noisy, 1.5, Tolerance(), False)
    plain = made.tolerance.factor * (made.rounding + made.sense + made.sense.amax(-1, keepdim=True) + made.beta * made.row)
    assert torch.equal(made.allowed, plain) and made.allowed_rows[0][1] == made.allowed_rows[1][1]


def test_whole_numbers_may_be_within_one_and_few_of_them():
    truth = drawn(0, 24, 72).mul(40).round().add(128).clamp(0, 250).to(torch.uint8)
    own = truth.clone()
    own.view(-1)[::20] += 1  # what a hair rounds to the other side in the working dtype
    made = Gauge(truth, own, [], 1.5, Tolerance(), False, within=1)
    assert made.read(own).passed and made.read(truth).passed
    assert "all of them as far off as any may be" in made.controls() and not any(
        made.read(wrong).passed for wrong in made.controls().values()
    )
    two = truth.clone()
    two[3, 5] -= 2
    said = made.read(two)
    assert not said.passed and said.message.startswith("1 of 1728 elements are more than 1 apart, the first at [3, 5] of [24, 72]")
    assert not made.read(torch.where(drawn(1, 24, 72) > 0, truth, truth + 1)).passed
    exact = Gauge(truth, own, [], 1.5, Tolerance(), False)
    assert exact.read(truth).passed and not exact.read(own).passed


def test_a_row_that_cancels_may_be_wrong_by_its_terms_and_no_more():
    truth, terms = torch.ones(16, 8, dtype=torch.float64), torch.full((16, 1), 2.0, dtype=torch.float64)
    terms[3] = 1000.0
    noisy = [truth + 2 * measured.U32 * terms * drawn(i, 16, 8).sign() for i in (1, 2, 3)]
    own = truth + 2.0**-10 * torch.where(terms > 2, 0.0, terms)  # PyTorch was lucky in the row that cancels
    made = Gauge(truth, own.half(), noisy, 1.5, Tolerance(), False)

    def passes(row: int, error: float) -> bool:
        wrong = truth.clone()
        wrong[row] += error
        return made.read(wrong.half()).passed

    assert passes(3, 0.5) and not passes(3, 5.0)
    assert passes(0, 2.0**-10) and not passes(0, 0.01)


def test_a_row_that_cancels_says_nothing_of_the_others(monkeypatch):
    """PyTorch is off by four times a row that cancels: no other row may be unwritten for that."""
    truth, terms = drawn(0, 256, 8), torch.full((256, 1), 2.0, dtype=torch.float64)
    truth[7], terms[7] = truth[7] / 1000, 4.0
    noisy = [truth + 2 * measured.U32 * terms * drawn(i, 256, 8).sign() for i in (1, 2, 3)]
    own = truth.clone()
    own[7] *= 5
    made = Gauge(truth, own.to(torch.bfloat16), noisy, 1.0, Tolerance(), False)
    assert made.read(own.to(torch.bfloat16)).passed and not made.read(made.controls()["last row unwritten"]).passed
    monkeypatch.setattr(measured, "CANCELS", float("inf"))
    made = Gauge(truth, own.to(torch.bfloat16), noisy, 1.0, Tolerance(), False)
    assert made.read(made.controls()["last row unwritten"]).passed  # by the row alone
