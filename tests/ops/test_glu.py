"""What the grid cannot say of gated units: views are read where they lie, a packed gate gets one gradient, messages, and the tails."""

import pytest
import torch
import torch.nn.functional as F

import rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator

FUNCTIONS = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_side_by_side_is_the_same_as_two_tensors_forward_and_backward(name):
    f = getattr(rooftile, name)
    x = torch.randn(2, 5, 22, requires_grad=True)
    gate, up = (t.detach().clone().requires_grad_() for t in x.chunk(2, -1))
    weight = torch.randn(2, 5, 11)
    one, two = f(x), f(gate, up)
    torch.testing.assert_close(one, two)
    (one * weight).sum().backward()
    (two * weight).sum().backward()
    assert x.grad.is_contiguous() and x.grad.shape == x.shape
    torch.testing.assert_close(x.grad, torch.cat([gate.grad, up.grad], -1))
    torch.testing.assert_close(two, FUNCTIONS[name](gate) * up)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_again_is_the_gradient_and_the_result(name, packed):
    gate, up = torch.randn(2, 5, 22 if packed else 11), None if packed else torch.randn(2, 5, 11)
    leaves = [t.requires_grad_() for t in (gate, up) if t is not None]
    out, dout = getattr(rooftile, name)(gate, up), torch.randn(2, 5, 11)
    grads = torch.autograd.grad(out, leaves, dout)
    made = getattr(rooftile, f"{name}_again")(dout, gate.detach(), None if packed else up.detach())
    assert all(map(torch.equal, made, grads)) and torch.equal(dout, out)


def test_again_writes_where_the_gradient_lies():
    rows = torch.randn(6, 64)
    refuse = OPS["swiglu_again"].kernel("cuda.v2_vector").refuse
    with simulator.active("checks"):
        assert refuse({"dout": rows[:, :32], "gate": rows, "up": None}) is None
        assert "no view as rows" in refuse({"dout": torch.randn(4, 3, 32).transpose(0, 1), "gate": torch.randn(3, 4, 64), "up": None})


@pytest.mark.parametrize("kernel", ["cuda.v1_naive", "cuda.v2_vector"])
def test_halves_of_one_tensor_are_not_copied(kernel, monkeypatch):
    x = torch.randn(6, 64, dtype=torch.bfloat16)
    gate, up = x.chunk(2, -1)
    run = OPS["swiglu"].kernel(kernel)
    seen = []
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda t: seen.append(t) or t.clone())
    with simulator.active("checks"):
        assert run.refuse({"gate": gate, "up": up}) is None
        out = run.bound(run.heuristic({"gate": gate, "up": up}))(gate, up)
    assert not seen
    monkeypatch.undo()
    torch.testing.assert_close(out, (F.silu(gate.float()) * up.float()).bfloat16())


def test_rows_that_begin_off_16_bytes_are_refused_with_numbers():
    refuse = OPS["swiglu"].kernel("cuda.v2_vector").refuse
    x = torch.randn(4, 72, dtype=torch.bfloat16)
    with simulator.active("checks"):
        assert "row of gate is 72 bytes, no multiple of the 16" in refuse({"gate": x, "up": None})
        assert refuse({"gate": torch.randn(3, 67), "up": torch.randn(3, 67)}) is None  # one row of 201
        assert "begins 4 bytes past a multiple of 16" in refuse({"gate": torch.randn(68)[1:], "up": torch.randn(67)})


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_again_wants_a_gradient_as_wide_as_the_result(name):
    """A kernel would read and write beyond a narrower one's end."""
    for narrow in (1, 3, 5):
        with pytest.raises(ValueError, match=f"K is {narrow} in dout, but half of gate's N=8 is 4"):
            getattr(rooftile, f"{name}_again")(torch.ones(2, narrow), torch.ones(2, 8))


def test_messages_have_both_numbers():
    for call, words in [
        ((torch.ones(2, 5), None), "N is 5 in gate, which without up is gate and up side by side"),
        ((torch.ones(2, 4), torch.ones(2, 5)), "N is 5 in up, but 4 in gate"),
        ((torch.ones(2, 4), torch.ones(3, 4)), r"leading shape is \[3\] in up, but \[2\] in gate"),
        ((torch.ones(2, 4), torch.ones(2, 4).half()), "dtype is float16 in up, but float32 in gate"),
    ]:
        with pytest.raises(ValueError, match=words):
            rooftile.swiglu(*call)
    with pytest.raises(ValueError, match="approximate is 'exact', takes none or tanh"):
        rooftile.geglu(torch.ones(2), torch.ones(2), "exact")


def ends(name, x):
    """cuda.v2_vector's values and gradients at x, with up and dout 1."""
    op, one = OPS[name], torch.ones_like(x)
    form = ("none",) if name == "geglu" else ()
    config = {"vecs": 1, "threads": 128}
    with simulator.active("checks"):
        return (
            op.kernel("cuda.v2_vector").bound(config)(x, one, *form),
            *op.backward.kernel("cuda.v2_vector").bound(config)(one, x, one, *form),
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_ends_of_the_number_line(name):
    """+-inf, NaN, zeros, and numbers whose exponential overflows, as PyTorch has them."""
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 100.0, -100.0, 1e18, -1e18])
    value, slope, again = ends(name, x)
    expected = FUNCTIONS[name](x)
    expected[0] = float("inf")  # PyTorch's vectorised erf makes a NaN of it
    assert torch.equal(value.nan_to_num(7, 8, 9), expected.nan_to_num(7, 8, 9)) and torch.equal(value.nan_to_num(), again.nan_to_num())
    wanted = torch.autograd.functional.jacobian(lambda t: FUNCTIONS[name](t).sum(), x[3:])
    torch.testing.assert_close(slope[3:], wanted)


def test_gelu_without_erf_keeps_the_digits_of_its_left_tail():
    x = torch.linspace(-9, 9, 20001)
    value, slope, _ = ends("geglu", x)
    wide = x.double().requires_grad_()
    truth = wide * torch.erfc(-wide / 2**0.5) / 2
    (d,) = torch.autograd.grad(truth.sum(), wide)
    relative = ((value - truth) / truth.abs().clamp_min(1e-30)).abs()
    assert relative[x.abs() < 5].max() < 1.5e-6 and relative.max() < 5e-6
    assert (slope - d).abs().max() < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "cuda.v1_naive", "cuda.v2_vector"])
@pytest.mark.parametrize("packed", [False, True])
def test_more_than_2_31_elements(kernel, packed):
    """A row's offset and an element's number beyond what 32 bits count; 26 GB."""
    rows, columns = 2**16 + 1, 2**15 + 8
    x = torch.empty(rows, 2 * columns, dtype=torch.bfloat16, device="cuda").fill_(0.5)
    x[-1] = torch.randn(2 * columns, device="cuda")
    halves = x.chunk(2, -1)
    gate, up = (x, None) if packed else (halves[0].contiguous(), halves[1].contiguous())
    op = OPS["swiglu"]
    k, back = op.kernel(kernel), op.backward.kernel(kernel)
    out = k.bound(k.heuristic({"gate": gate, "up": up}))(gate, up)
    row = x[-1:].float().chunk(2, -1)
    torch.testing.assert_close(out[-1:].float(), F.silu(row[0]) * row[1], rtol=1e-2, atol=1e-2)
    assert torch.equal(out[:-1:1024, ::1024], torch.full_like(out[:-1:1024, ::1024], float(F.silu(torch.tensor(0.5)) * 0.5)))
    dgate, dup = back.bound(back.heuristic({"dout": out, "gate": gate, "up": up}))(out, gate, up)
    last = dgate[-1:, columns:] if packed else dup[-1:]
    torch.testing.assert_close(last.float(), out[-1:].float() * F.silu(row[0]), rtol=2e-2, atol=2e-2)
