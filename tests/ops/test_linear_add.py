"""What the grid cannot say of linear_add: one rounding, a residual's own gradient, messages; the grid on the vendor's library put into Python."""

import pytest
import torch

from library_of_products import in_the_machines_place
from rooftile.core.kernel import OPS
from rooftile.cuda import cublaslt
from rooftile.ops import gated_mlp, linear_add, mlp
from rooftile.ops.linear_add import vendor_kernels
from rooftile.workbench import check


def test_the_sum_is_rounded_once():
    """256 + 1 in bfloat16 is 256, and so it is when 1 is added to that; 258 is all three, or all four."""
    x, w, residual = (torch.tensor([row], dtype=torch.bfloat16) for row in ((256.0, 1.0), (1.0, 1.0), (1.0,)))
    assert linear_add(x, w, residual).item() == 258 != (torch.nn.functional.linear(x, w) + residual).item()
    x, residual, bias = x * torch.tensor([1.0, 0.5]).bfloat16(), residual / 4, residual[0] / 2
    assert linear_add(x, w, residual, bias).item() == 258 != (linear_add(x, w, residual) + bias).item()


def of_mlp(x, w, r):
    return mlp(x, w.new_ones(4, 6), None, w[:, :4], None, residual=r)


def of_gated_mlp(x, w, r):
    return gated_mlp(x, w.new_ones(8, 6), w[:, :4], "silu", r)


@pytest.mark.parametrize("make", [linear_add, lambda x, w, r: linear_add(x, w, r, w[:, 0]), of_mlp, of_gated_mlp])
def test_the_residuals_gradient_is_the_outputs(make):
    x, w, r = (torch.randn(*shape, requires_grad=True) for shape in ((3, 6), (5, 6), (3, 5)))
    out, dout = make(x, w, r), torch.randn(3, 5)
    dx, dr = torch.autograd.grad(out, (x, r), dout)
    assert torch.equal(dr, dout) and dx.shape == x.shape
    assert torch.equal(torch.autograd.grad(make(x.detach(), w.detach(), r), r, dout)[0], dout)


def test_gradients_are_those_of_a_layer_and_an_addition():
    x, w, r, b = (torch.randn(*shape, requires_grad=True) for shape in ((2, 3, 6), (5, 6), (2, 3, 5), (5,)))
    dout = torch.randn(2, 3, 5)
    ours, theirs = linear_add(x, w, r, b), torch.nn.functional.linear(x, w, b) + r
    torch.testing.assert_close(ours, theirs)
    for a, e in zip(torch.autograd.grad(ours, (x, w, r, b), dout), torch.autograd.grad(theirs, (x, w, r, b), dout)):
        torch.testing.assert_close(a, e)


def test_a_bias_that_wants_no_gradient_costs_no_sum(monkeypatch):
    seen = []
    op, launch = OPS["linear_add_backward"], OPS["linear_add_backward"].launch
    monkeypatch.setattr(op, "launch", lambda *args: seen.append(args[3] is None) or launch(*args))
    x, w, r, b = (torch.randn(*shape, requires_grad=True) for shape in ((3, 6), (5, 6), (3, 5), (5,)))
    for bias in (b, b.detach()):
        linear_add(x, w, r, bias).sum().backward()
    assert seen == [False, True] and torch.equal(b.grad, torch.full((5,), 3.0))


def test_messages_have_both_numbers():
    x, w = torch.zeros(3, 6), torch.zeros(5, 6)
    with pytest.raises(ValueError, match=r"linear_add: .*5 in weight.*1 in residual|linear_add: .*1 in residual.*5 in weight"):
        linear_add(x, w, torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"linear_add: .*\[3\] in x.*\[1\] in residual|linear_add: .*\[1\] in residual.*\[3\] in x"):
        linear_add(x, w, torch.zeros(1, 5))
    with pytest.raises(ValueError, match="linear_add: dtype is bfloat16 in residual, but float32 in x"):
        linear_add(x, w, torch.zeros(3, 5, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="linear_add: N is 4 in bias, but 5 in weight"):
        linear_add(x, w, torch.zeros(3, 5), torch.zeros(4))


# ---- cuBLASLt, on a library that is its header put into Python --------------------------------------------------------------


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(cublaslt, "off_gpu", lambda x: None)
    with in_the_machines_place(monkeypatch) as put:
        yield put(offered=4, tiles=(24, 23, 20, 28))


def gate(*cases):
    points = [p for p in check.grid([OPS["linear_add"]]) if p.kernel.name == "vendor" and p.case in cases]
    return check.run_points(points, "cpu")


BIASED = [c for c in OPS["linear_add"].spec.cases if "biased" in c.params and "bench" not in c.use and c.dtype != torch.float32]


def test_the_gate_on_the_vendors_own_sum_of_three(library):
    """One product each, which adds both, where rows begin at whole 16 bytes; float32 sums of both where they do not."""
    for case in BIASED:
        library.log.clear()
        made = gate(case)
        assert made and {v.status for v in made} == {"passed"}, made
        assert bool(library.log) == (case.dims["N"] % 8 == 0 and 0 not in case.dims.values()), case.id


@pytest.mark.parametrize("lost", ["bias", "add"])
def test_a_term_that_is_lost_is_refused(lost, library, monkeypatch):
    product = cublaslt.product
    monkeypatch.setattr(vendor_kernels.cublaslt, "product", lambda *args, **how: product(*args, **{**how, lost: None}))
    case = next(c for c in BIASED if c.dims.get("M") == 24)
    assert "failed" in {v.status for v in gate(case)}
