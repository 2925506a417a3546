"""Who is chosen: forces, refusals, determinism, and a memory that stays bounded."""

import pytest
import torch

import rooftile
from rooftile.core import kernel as k
from rooftile.core.kernel import OPS, Kernel, Refused, forced

X = torch.randn(3, 5)


def test_a_forced_kernel_that_refuses_is_an_error_with_its_sentence():
    with (
        forced("softmax", "triton"),
        pytest.raises(Refused, match="the forced kernel triton refuses: it needs a CUDA device, the tensor is on cpu"),
    ):
        rooftile.softmax(X)
    rooftile.softmax(X)  # outside, the choice is free again


def test_a_force_reaches_the_backward():
    x = X.clone().requires_grad_()
    y = rooftile.softmax(x)
    with forced("softmax", "triton"), pytest.raises(Refused, match="softmax_backward"):
        y.sum().backward()


def test_a_wrong_force_suggests_the_right_name():
    with pytest.raises(ValueError, match=r"did you mean triton\?"), forced("softmax", "tritn"):
        pass


def test_a_kernel_that_varies_is_ruled_out_by_determinism(monkeypatch):
    op = OPS["softmax"]
    free = Kernel("free", op.spec.reference, "", varies="the order of a sum is left to chance")
    monkeypatch.setattr(op, "kernels", (free, *op.kernels))
    assert op.choose({"x": X}).kernel is free
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    choice = op.choose({"x": X})
    assert choice.kernel.name == "reference" and "left to chance" in dict(choice.refused)["free"]
    with forced("softmax", "free"), pytest.raises(Refused, match="left to chance"):
        rooftile.softmax(X + 1)


def test_who_declines_is_passed_over_but_for_the_reference(monkeypatch):
    op = OPS["softmax"]
    modest = [Kernel(n, op.spec.reference, "", declines=lambda call: "another is sooner done") for n in ("modest", "shy")]
    willing = Kernel("willing", op.spec.reference, "")
    monkeypatch.setattr(op, "kernels", (*modest, willing, op.kernels[-1]))
    choice = op.choose({"x": X})
    assert choice.kernel is willing and choice.refused == (("modest", "another is sooner done"), ("shy", "another is sooner done"))
    monkeypatch.setattr(op, "kernels", (*modest, op.kernels[-1]))
    assert op.choose({"x": X}).kernel is modest[0]


def test_what_only_a_gradient_reads_is_made_where_one_is_wanted(monkeypatch):
    op = OPS["layernorm"]
    asked = []

    def run(*args, save=True):
        asked.append(save)
        made = op.spec.reference(*args)
        return made if save else (made[0], None, None)

    monkeypatch.setattr(op, "kernels", (Kernel("lean", run), *op.kernels))
    op.forget()
    try:
        x, weight = X.clone(), torch.ones(5, requires_grad=True)
        rooftile.layernorm(x)
        with torch.no_grad():
            rooftile.layernorm(x, weight)
        assert asked == [False, False]
        rooftile.layernorm(x, weight).sum().backward()
        assert weight.grad is not None and asked == [False, False, True]
        torch.ops.rooftile.layernorm(x, None, None, 1e-5)  # a schema promises all results
        assert asked[3:] == [True]
    finally:
        op.forget()


def test_lengths_that_never_repeat_do_not_fill_the_memory():
    op = OPS["gelu"]
    op.forget()
    op._memo.update({(i,): op.spec.reference for i in range(8192)})
    rooftile.gelu(X)
    assert len(op._memo) == 1


def test_nearest_without_a_neighbour():
    with pytest.raises(ValueError, match=r"no thing is called 'zzz'\. There are 1: softmax"):
        k.nearest("zzz", ["softmax"], "thing")
