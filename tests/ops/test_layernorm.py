"""What the grid cannot say of layernorm: invariances, extremes, and a drop-in module."""

import contextlib

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import processes
from rooftile.core.kernel import OPS, Kernel
from rooftile.cuda import simulator
from rooftile.ops import LayerNorm, add_layernorm, layernorm, linear_add, stream_layernorm
from rooftile.workbench.check import Problem, poisoned


def test_shift_and_scale_of_a_row_change_nothing():
    x = torch.randn(5, 64)
    torch.testing.assert_close(layernorm(8 * x + 16, eps=0.0), layernorm(x, eps=0.0), rtol=1e-5, atol=1e-5)


def test_variance_survives_a_mean_a_million_times_larger():
    """E[x²] - E[x]² in float32 would be off by more than the variance itself."""
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    torch.testing.assert_close(layernorm(x + 1e6), layernorm(x), rtol=1e-4, atol=1e-4)


RUNGS = [k for k in OPS["layernorm"].kernels if k.name.startswith("cuda.")]


@pytest.mark.parametrize("n", [264, 1000])
@pytest.mark.parametrize("kernel", RUNGS, ids=lambda k: k.name)
def test_a_row_of_one_number_is_the_bias(kernel, n):
    """Also of a large one, which 1 / sqrt(eps) makes so large that float32 has no digits left for a difference."""
    x = torch.tensor([1000.0, -30000.0, 12344.0, 26704.0, 0.0]).half()[:, None].repeat(1, n)
    call = {"x": x, "weight": torch.ones_like(x[0]), "bias": torch.linspace(-1, 1, n).half(), "eps": 1e-5}
    with simulator.active(), poisoned():
        out, _, _ = kernel.bound(kernel.heuristic(call))(*call.values())
    assert torch.equal(out, call["bias"].expand(x.shape))


def test_an_expanded_gradient_sums_over_every_row():
    x, w, b = torch.randn(6, 8), torch.ones(8, requires_grad=True), torch.zeros(8, requires_grad=True)
    layernorm(x, w, b).sum().backward()
    assert torch.equal(b.grad, torch.full((8,), 6.0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n", [96, 20000])
def test_the_sum_is_rounded_once_and_then_normalised(n, device):
    """The gate draws sums that need no rounding; these do."""
    x, residual = (torch.randn(5, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    out, total = add_layernorm(x, residual)
    assert torch.equal(total, x + residual) and torch.equal(out, layernorm(total))


def test_the_sum_and_the_norm_have_one_gradient_for_both_inputs():
    x, residual = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    out, total = add_layernorm(x, residual)
    out.square().sum().backward(retain_graph=True)  # without the sum's
    expected = torch.autograd.grad(torch.nn.functional.layer_norm(x + residual, (8,)).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
    assert torch.equal(x.grad, residual.grad) and x.grad.data_ptr() != residual.grad.data_ptr()
    x.grad = residual.grad = None
    total.sum().backward()  # and without the norm's
    assert torch.equal(x.grad, torch.ones(3, 8)) and torch.equal(residual.grad, torch.ones(3, 8))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n", [96, 20000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_bias_that_x_lacks_is_added_before_the_one_rounding(n, dtype, device):
    x, residual = (torch.randn(5, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    x_bias = torch.randn(n, device=device).to(dtype)
    out, total = add_layernorm(x, residual, x_bias=x_bias)
    assert torch.equal(total, (x.float() + x_bias.float() + residual.float()).bfloat16()) and torch.equal(out, layernorm(total))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("m, n", [(4000, 768), (500, 20000)])
def test_its_gradient_is_that_of_float64(m, n, device):
    """But for the rounding of dx, whose rows are summed as they are written."""
    gen = torch.Generator(device=device).manual_seed(0)
    x, residual, dout, dsum = (torch.randn(m, n, generator=gen, device=device, dtype=torch.bfloat16) for _ in range(4))
    w, b, x_bias = (torch.rand(n, generator=gen, device=device) + 0.5 for _ in range(3))
    leaves = [t.requires_grad_() for t in (x, residual, w, b, x_bias)]
    torch.autograd.backward(add_layernorm(x, residual, w, b, x_bias=x_bias), (dout, dsum))
    true = [t.detach().double().requires_grad_() for t in leaves]
    total = true[0] + true[4] + true[1]
    total = total + (total.bfloat16().double() - total).detach()  # rounded, which no gradient sees
    torch.autograd.backward((torch.nn.functional.layer_norm(total, (n,), *true[2:4]), total), (dout.double(), dsum.double()))
    assert (x_bias.grad - true[4].grad).norm() < 2e-3 * true[4].grad.norm()
    written = x.grad.double().sum(0)
    assert (x_bias.grad - written).norm() < 1e-3 * (true[4].grad - written).norm()


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0), (4,), (2, 3, 4)])
@pytest.mark.parametrize("stream", [True, False])
def test_its_gradient_of_rows_of_nothing_and_of_a_row_alone(stream, shape):
    x, residual = (torch.randn(shape, requires_grad=True) for _ in range(2))
    x_bias = torch.randn(shape[-1:], requires_grad=True)
    both = stream_layernorm(x + residual + x_bias.detach(), x_bias=x_bias) if stream else add_layernorm(x, residual, x_bias=x_bias)
    for out in (both, both[:1], both[1:]):
        dx, dx_bias = torch.autograd.grad(out, (x, x_bias), [torch.ones(shape)] * len(out), retain_graph=True)
        torch.testing.assert_close(dx_bias, dx.sum_to_size(shape[-1:]))


SUMS = """
import torch
from rooftile.workbench import interpreter
from rooftile.ops.layernorm import reference
from rooftile.ops.layernorm.triton_kernels import ADD_BACKWARD
draw = lambda *shape: torch.randn(*shape, generator=gen)
for m, n in ((37, 768), (9, 1300), (1, 40), (0, 8)):
    for weight, bias, narrow in ((1, 1, False), (1, 1, True), (1, 0, False), (0, 1, True), (0, 0, False)):
        gen = torch.Generator().manual_seed(m)
        x, residual, dout, dsum = (draw(m, n).bfloat16() for _ in range(4))
        w, b = draw(n) if weight else None, draw(n) if bias else None
        x_bias = draw(2 * n)[::2].to(torch.bfloat16 if narrow else torch.float32)
        _, total, mean, rstd = reference.add_layernorm(x, residual, w, b, 1e-5, x_bias)
        call = (dout, dsum, total, w, b, mean, rstd, x_bias)
        wanted = reference.add_layernorm_backward(*call)
        for kernel in ADD_BACKWARD:
            config = kernel.heuristic(dict(zip(("dout", "dsum", "sum", "weight", "bias", "mean", "rstd", "x_bias"), call)))
            made = kernel.bound(config)(*call)
            for name, a, c in zip(("dx", "dweight", "dbias", "dx_bias"), made, wanted):
                loose = 1e-2 if a.dtype == torch.bfloat16 else 1e-5
                torch.testing.assert_close(a, c, rtol=loose, atol=loose * 3, msg=lambda text: f"{kernel.name} {m} {n} {weight} {bias} {name}: {text}")
            written = made[0].double().sum(0)
            assert (made[3].double() - written.to(x_bias.dtype).double()).abs().max() <= (2e-2 if narrow else 1e-5), (kernel.name, m, n)
"""


def test_sums_of_one_two_and_three_gradients_in_the_interpreter():
    """Of rows as they are written, whichever parameters there are beside it."""
    done = processes.run(code=SUMS, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


def _without_the_last_rows(dx, call):
    """Of four programs' partial rows the last is forgotten."""
    return dx[: -(-len(dx) * 3 // 4)].float().sum(0)


@pytest.mark.parametrize(
    "wrong", [_without_the_last_rows, lambda dx, call: call["dout"].float().sum(0), lambda dx, call: call["dsum"].float().sum(0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_sum_for_the_bias_of_x_is_refused(wrong, dtype):
    op = OPS["add_layernorm_backward"]
    case = next(c for c in op.spec.cases if "lacks" in c.params and c.dims.get("N", 0) > 256 and c.dtype == dtype)

    def run(*args):
        call = dict(zip(op.names, args))
        dx, dweight, dbias, dx_bias = op.spec.reference(**call)
        return dx, dweight, dbias, wrong(dx, call).to(dx_bias.dtype)

    problem = Problem(op.spec, case, "normal", "cpu")
    verdict = problem.judge(Kernel("planted", run))
    assert problem.judge(op.kernels[-1]).status == "passed" and verdict.status == "failed" and "dx_bias" in verdict.message, verdict


def test_kernels_that_cannot_add_a_bias_of_x_say_so():
    for op in (OPS["add_layernorm"], OPS["add_layernorm_backward"]):
        case = next(c for c in op.spec.cases if "lacks" in c.params)
        refused = {k.name for k in op.kernels if "x_bias is given" in (k.refuse(op.spec.draw(case)) or "")}
        assert refused == {k.name for k in op.kernels if k.name in ("cuda.v1_naive", "cuda.v2_rows")}


@pytest.mark.parametrize("arguments", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 1e-3, "dtype": torch.float64}])
def test_module_is_a_drop_in(arguments):
    theirs, ours = torch.nn.LayerNorm(16, **arguments), LayerNorm(16, **arguments)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    if arguments.get("dtype") is None:
        x = torch.randn(3, 16)
        torch.testing.assert_close(ours(x), theirs(x))


STREAMS = {
    "both": lambda out, x: (out * torch.arange(8.0)).sum() + (x * x).sum(),
    "the norm alone": lambda out, x: (out * torch.arange(8.0)).sum(),
    "the stream alone": lambda out, x: (x * x).sum(),
}
FROZEN = {"nothing": (), "the parameters": (1, 2), "x's bias": (3,), "the branch": (0,), "all but x's bias": (0, 1, 2)}


@pytest.mark.parametrize("use", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("door", [contextlib.nullcontext, lambda: FlopCounterMode(display=False)], ids=["eager", "traced"])
def test_a_stream_has_both_gradients_and_the_last_bias_has_its_own(use, frozen, door):
    def gradients(left, times):
        torch.manual_seed(0)
        leaves = a, w, b, x_bias = [torch.randn(*s, requires_grad=i not in frozen) for i, s in enumerate(((5, 8), (8,), (8,), (8,)))]
        with door():
            if left:  # by the layer to the norm
                made = use(*stream_layernorm(a * 2 + x_bias.detach(), w, b, x_bias=x_bias))
            else:
                x = a * 2 + x_bias
                made = use(layernorm(x, w, b), x)
        for i in range(times):
            made.backward(retain_graph=i + 1 < times)
        return [t.grad for t in leaves]

    for times in (1, 2):
        for ours, theirs in zip(gradients(True, times), gradients(False, times)):
            assert ours is theirs is None or torch.allclose(ours, theirs, atol=1e-5)


def test_a_stream_in_one_graph():
    def loss(a, x_bias):
        return use(*stream_layernorm(a * 2 + x_bias.detach(), x_bias=x_bias))

    use, leaves = STREAMS["both"], (torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True))
    graph = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(*(torch.autograd.grad(run(*leaves), leaves) for run in (graph, loss))):
        torch.testing.assert_close(ours, theirs)


def test_a_streams_gradient_and_its_last_biass_are_one_launch(monkeypatch):
    launched = []
    for name in ("layernorm_backward", "add_layernorm_backward"):
        op, launch = OPS[name], OPS[name].launch
        monkeypatch.setattr(op, "launch", lambda *args, name=name, launch=launch: launched.append((name, *args[7:])) or launch(*args))
    x, x_bias = torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    for use in STREAMS.values():
        use(*stream_layernorm(x * 1)).backward()
        use(*stream_layernorm(x * 1, x_bias=x_bias)).backward()
    assert [(name, [t is not None for t in bias]) for name, *bias in launched] == [
        ("add_layernorm_backward", [False]),
        ("add_layernorm_backward", [True]),
        ("layernorm_backward", []),
        ("add_layernorm_backward", [True]),
    ]
    with torch.no_grad():
        assert stream_layernorm(x, x_bias=x_bias)[1] is x
    assert stream_layernorm(x.detach(), x_bias=x_bias.detach())[0].requires_grad is False


def test_a_streams_last_bias_is_not_added_again():
    a, w, stream, b = (torch.randn(*shape, dtype=torch.bfloat16) for shape in ((5, 8), (16, 8), (5, 16), (16,)))
    x = linear_add(a, w, stream, b)
    for x_bias in (b.requires_grad_(), b.detach().float().requires_grad_()):
        out, on = stream_layernorm(x, x_bias=x_bias)
        assert torch.equal(out, layernorm(x)) and torch.equal(on, x)
        (made,) = torch.autograd.grad((out * 3 + on).sum(), x_bias)
        assert made.dtype == x_bias.dtype and made.shape == (16,)


def test_messages_have_both_numbers():
    for x_bias, said in ((torch.ones(7), r"x_bias is \[7\] float32.* \[8\]"), (torch.ones(8).half(), "float16, of this x it must be")):
        with pytest.raises(ValueError, match=said):
            stream_layernorm(torch.zeros(2, 8), x_bias=x_bias)
    with pytest.raises(ValueError, match=r"N is 7 in weight, but 8 in x"):
        layernorm(torch.zeros(2, 8), torch.ones(7))
    with pytest.raises(ValueError, match=r"N is 7 in residual, but 8 in x"):
        add_layernorm(torch.zeros(2, 8), torch.zeros(2, 7))
    with pytest.raises(ValueError, match="give one number"):
        LayerNorm((4, 4))
    with pytest.raises(ValueError, match="N is 8 in the module"):
        LayerNorm(8)(torch.zeros(2, 7))


def test_the_bias_of_a_streams_layer_has_its_gradient_in_vmap():
    """As in an ensemble of models: inside vmap no tensor says that it requires a gradient."""
    x, bias = torch.randn(2, 3, 8), torch.randn(2, 8, requires_grad=True)

    def total(x, bias):
        out, stream = stream_layernorm(x + bias.detach(), x_bias=bias)
        return (out * out * out).sum() + (stream * stream).sum()

    (ours,) = torch.autograd.grad(torch.vmap(total)(x, bias).sum(), bias)
    (singly,) = torch.autograd.grad(sum(map(total, x, bias)), bias)
    torch.testing.assert_close(ours, singly)
