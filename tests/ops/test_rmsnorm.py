"""What the grid cannot say of rmsnorm: invariances, rounding, and a drop-in module."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.ops import RMSNorm, add_rmsnorm, rmsnorm, stream_rmsnorm


def test_scale_of_a_row_changes_nothing_and_its_shift_does():
    x = torch.randn(5, 64)
    torch.testing.assert_close(rmsnorm(8 * x, eps=0.0), rmsnorm(x, eps=0.0), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(rmsnorm(x + 1, eps=0.0), rmsnorm(x, eps=0.0), atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offset_is_added_to_the_weight_before_anything_is_rounded(dtype):
    """1 + w of a bfloat16 w below 1/256 would be 1."""
    x, w = torch.randn(4, 32).to(dtype), torch.full((32,), 2.0**-9, dtype=dtype)
    torch.testing.assert_close(rmsnorm(x, w, offset=1.0), rmsnorm(x, w.float() + 1), rtol=0, atol=0)
    assert not torch.equal(rmsnorm(x, torch.zeros_like(w), offset=1.0).float(), rmsnorm(x.float(), w.float() + 1))
    assert torch.equal(rmsnorm(x, None, offset=1.0), rmsnorm(x))


def test_a_module_with_an_offset_begins_as_one_without():
    x = torch.randn(3, 16, requires_grad=True)
    ours, plain = RMSNorm(16, offset=1.0), RMSNorm(16)
    assert not ours.weight.any() and torch.equal(ours(x), plain(x)) and "offset=1.0" in repr(ours)
    for module in (ours, plain):
        module(x).square().sum().backward()
    assert torch.equal(ours.weight.grad, plain.weight.grad)
    with torch.no_grad():
        ours.weight.fill_(7)
    ours.reset_parameters()
    assert not ours.weight.any()


def test_the_gradient_is_at_right_angles_to_the_row():
    """out does not change with the row's length, so dx has no part along x."""
    x = torch.randn(7, 96, requires_grad=True)
    (dx,) = torch.autograd.grad(rmsnorm(x, eps=0.0), x, torch.randn(7, 96))
    assert (dx * x).sum(-1).abs().max() < 1e-4


def test_the_result_is_rounded_once_after_the_weight():
    """Rounding x times rstd to bfloat16 before the weight would show in one element of three."""
    x, w = torch.randn(64, 256).bfloat16(), torch.randn(256)
    exact = torch.nn.functional.rms_norm(x.double(), (256,), w.double(), 1e-6)
    assert (rmsnorm(x, w) != exact.bfloat16()).float().mean() < 1e-3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n", [96, 20000])
def test_the_sum_is_rounded_once_and_then_normalised(n, device):
    """The gate draws sums that need no rounding; these do."""
    x, residual = (torch.randn(5, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    out, total = add_rmsnorm(x, residual)
    assert torch.equal(total, x + residual) and torch.equal(out, rmsnorm(total))


def test_the_sum_and_the_norm_have_one_gradient_for_both_inputs():
    x, residual = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    out, total = add_rmsnorm(x, residual)
    out.square().sum().backward(retain_graph=True)  # without the sum's
    expected = torch.autograd.grad(torch.nn.functional.rms_norm(x + residual, (8,), eps=1e-6).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(x.grad, residual.grad)
    x.grad = residual.grad = None
    total.sum().backward()  # and without the norm's
    assert torch.equal(x.grad, torch.ones(3, 8)) and torch.equal(residual.grad, torch.ones(3, 8))


@pytest.mark.parametrize("arguments", [{}, {"elementwise_affine": False}, {"eps": 1e-3, "dtype": torch.float64}])
def test_module_is_a_drop_in(arguments):
    theirs, ours = torch.nn.RMSNorm(16, **arguments), RMSNorm(16, **arguments)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    if arguments.get("dtype") is None:
        x = torch.randn(3, 16)
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_epsilon_that_nobody_gave_is_pytorchs(dtype):
    x = (torch.randn(3, 16) * 1e-2).to(dtype)  # so small that finfo(bfloat16).eps, 0.0078, would be most of the mean square
    torch.testing.assert_close(RMSNorm(16, dtype=dtype)(x), torch.nn.RMSNorm(16, dtype=dtype)(x))


STREAMS = {
    "both": lambda out, x: (out * torch.arange(8.0)).sum() + (x * x).sum(),
    "the norm alone": lambda out, x: (out * torch.arange(8.0)).sum(),
    "the stream alone": lambda out, x: (x * x).sum(),
}


@pytest.mark.parametrize("use", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a_stream_has_both_gradients(use, frozen, times):
    def gradients(norm):
        torch.manual_seed(0)
        x, w = torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=not frozen)
        loss = use(*norm(x * 1, w))
        for i in range(times):
            loss.backward(retain_graph=i + 1 < times)
        return x.grad, w.grad

    for ours, theirs in zip(gradients(stream_rmsnorm), gradients(lambda x, w: (rmsnorm(x, w), x))):
        assert ours is theirs is None or torch.allclose(ours, theirs, atol=1e-5)


def test_a_streams_gradient_is_added_as_the_norms_is_written(monkeypatch):
    launched = []
    for name in ("rmsnorm_backward", "add_rmsnorm_backward"):
        op, launch = OPS[name], OPS[name].launch
        monkeypatch.setattr(op, "launch", lambda *args, name=name, launch=launch: launched.append(name) or launch(*args))
    x = torch.randn(5, 8, requires_grad=True)
    for use in STREAMS.values():
        use(*stream_rmsnorm(x * 1)).backward()
    assert launched == ["add_rmsnorm_backward", "rmsnorm_backward"]
    with torch.no_grad():
        assert stream_rmsnorm(x)[1] is x


def test_messages_have_both_numbers():
    with pytest.raises(ValueError, match=r"N is 7 in weight, but 8 in x"):
        rmsnorm(torch.zeros(2, 8), torch.ones(7))
    with pytest.raises(ValueError, match=r"N is 7 in residual, but 8 in x"):
        add_rmsnorm(torch.zeros(2, 8), torch.zeros(2, 7))
    with pytest.raises(ValueError, match="give one number"):
        RMSNorm((4, 4))
    with pytest.raises(ValueError, match="N is 8 in the module"):
        RMSNorm(8)(torch.zeros(2, 7))
