import pytest
import torch

from library_of_products import in_the_machines_place
from rooftile import Linear, gemm, linear, mlp
from rooftile.core.kernel import OPS
from rooftile.cuda import cublaslt
from rooftile.ops._shared.products import product
from rooftile.ops.gemm import cublaslt_kernels
from rooftile.workbench import check


def test_linear_is_gemm_with_the_weight_transposed():
    x, w, b = torch.randn(3, 5, 7), torch.randn(11, 7), torch.randn(11)
    assert torch.equal(linear(x, w, b), gemm(x, w.t(), b))


def test_a_sum_of_rows_is_a_row_of_sums():
    a, b = torch.randint(-4, 5, (6, 9)).float(), torch.randint(-4, 5, (9, 4)).float()
    assert torch.equal(gemm(a.sum(0, keepdim=True), b), gemm(a, b).sum(0, keepdim=True))


def test_nothing_to_sum_leaves_the_bias():
    bias = torch.tensor([1.0, -2.0])
    assert torch.equal(gemm(torch.ones(3, 0), torch.ones(0, 2), bias), bias.expand(3, 2))
    assert gemm(torch.ones(2, 3), torch.ones(3, 0)).shape == (2, 0)


def test_one_row_without_leading_axes():
    assert torch.equal(gemm(torch.ones(3), torch.ones(3, 2)), torch.full((2,), 3.0))


def test_the_weight_gradient_is_dense_and_not_a_copy():
    layer, x = Linear(8, 4, bias=False), torch.randn(2, 3, 8)
    layer(x).sum().backward()
    assert layer.weight.grad.is_contiguous() and layer.weight.grad.shape == (4, 8)


def test_linear_loads_the_state_of_torch():
    theirs, ours = torch.nn.Linear(5, 3), Linear(5, 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(7, 5)
    torch.testing.assert_close(ours(x), theirs(x))


def test_autocast_casts_every_factor():
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: gemm(torch.ones(2, 3), torch.ones(4, 5)), "K is 4 in b, but 3 in a"),
        (lambda: gemm(torch.ones(2, 3), torch.ones(3, 5), torch.ones(4)), "N is 4 in bias, but 5 in b"),
        (lambda: gemm(torch.ones(2, 3), torch.ones(3, 5).bfloat16()), "dtype is bfloat16 in b, but float32 in a"),
        (lambda: linear(torch.ones(2, 3), torch.ones(3, 5)), "K is 5 in weight, but 3 in x"),
        (lambda: gemm(torch.ones(2, 3), torch.ones(3)), "needs 2"),
    ],
)
def test_a_wrong_call_names_both_sides(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ---- cuBLASLt, on a library that is its header put into Python --------------------------------------------------------------


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(cublaslt, "off_gpu", lambda x: None)
    monkeypatch.setattr(cublaslt_kernels, "column_sum", lambda g: g.sum(0, dtype=torch.float32).to(g.dtype))
    with in_the_machines_place(monkeypatch) as put:
        yield put(offered=4, tiles=(24, 23, 20, 29))


@pytest.mark.parametrize("name", ["gemm", "gemm_backward", "linear", "linear_backward"])
def test_the_gate_on_cublaslt(name, library):
    grid = [p for p in check.grid([OPS[name]]) if p.kernel.name == "cublaslt"]
    made = check.run_points(grid, "cpu")
    assert [v for v in made if v.status not in ("passed", "refused")] == []
    for v in made:  # rows of odd lengths are not for it
        whole = any(size in v.case for size in ("K128", "N48_K40", "N88", "N328"))
        assert v.status == "refused" or ("float32" not in v.case and whole), v
    assert {v.case.split("-")[1] for v in made if v.status == "passed"} == {"bfloat16", "float16"} and library.log


def test_a_wrong_product_is_refused(library, monkeypatch):
    product = cublaslt.product
    monkeypatch.setattr(cublaslt, "product", lambda out, left, right, **how: product(out, left.flip(0), right, **how))
    case = next(c for c in OPS["linear"].spec.cases if c.dims.get("K") == 128 and c.dtype == torch.bfloat16)
    assert check.Problem(OPS["linear"].spec, case, "normal", "cpu").judge(OPS["linear"].kernel("cublaslt")).status == "failed"


@pytest.mark.parametrize("name", ["gemm", "linear"])
def test_it_declines_what_the_first_algorithm_does_as_well(name, library, monkeypatch):
    op, case = OPS[name], next(c for c in OPS[name].spec.cases if c.dims.get("K") == 128 and c.dtype == torch.bfloat16)
    for at in (op, op.backward):
        kernel, call = at.kernel("cublaslt"), at.spec.draw(case)
        assert "as good as any known for M, N, K = (128, " in kernel.declines(call)
        with monkeypatch.context() as patch:
            patch.setattr(cublaslt, "preferred", lambda *shape: (29,))
            assert kernel.declines(call) is None and at.choose(call).kernel.name == "cublaslt"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("better", [False, True])
@pytest.mark.parametrize("result", ["same", torch.float32])
def test_a_product_for_operators(dtype, better, result, library, monkeypatch):
    """By either road the same: new, in what is given, added to it, with a bias."""
    monkeypatch.setattr(cublaslt, "preferred", lambda *shape: (29,) if better else ())
    to = dtype if result == "same" else result
    gen = torch.Generator().manual_seed(0)
    memory = torch.empty(8192, dtype=dtype)
    start = -memory.data_ptr() % 256 // memory.itemsize
    a, b = (memory[start + i * 1024 :][: m * n].view(m, n).normal_(generator=gen) for i, (m, n) in enumerate(((16, 24), (32, 24))))
    bias, exact = memory[start + 3072 :][:32].normal_(generator=gen), a.double() @ b.double().t()
    close = {"rtol": 0, "atol": 50 * torch.finfo(to).eps} if dtype == to else {"rtol": 0, "atol": 1e-4}
    torch.testing.assert_close(product(a, b.t(), dtype=to), exact.to(to), **close)
    out = torch.full((16, 32), 2.0, dtype=to)
    made = product(a, b.t(), out=out)
    assert made is out
    torch.testing.assert_close(out, exact.to(to), **close)
    product(a, b.t(), out=out, add=out)
    torch.testing.assert_close(out, (2 * exact).to(to), **{**close, "atol": 4 * close["atol"]})
    if result == "same":
        other = memory[start + 3584 :][: 16 * 32].view(16, 32).normal_(generator=gen)
        torch.testing.assert_close(product(a, b.t(), add=other), (exact + other.double()).to(to), **close)
    if result == "same":
        for out in (None, torch.empty(16, 32, dtype=to)):
            torch.testing.assert_close(product(a, b.t(), bias, out=out), (exact + bias.double()).to(to), **close)
    assert bool(library.log) == (
        dtype != torch.float32 and (better or result == "same")
    )  # what is added to but not in place is ours to ask for


@pytest.mark.parametrize("name", ["gemm", "linear", "mlp"])
def test_a_frozen_bias_costs_no_sum_of_columns(name, monkeypatch):
    x, w, b = torch.randn(5, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True), torch.randn(8)
    made = {"gemm": lambda: gemm(x, w, b), "linear": lambda: linear(x, w, b), "mlp": lambda: mlp(x, w, b, w * 1, b)}[name]
    asked, backward = [], OPS[f"{name}_backward"]
    launch = backward.launch
    monkeypatch.setattr(backward, "launch", lambda *args: asked.append([a is None for a in args]) or launch(*args))
    dx, dw = torch.autograd.grad(made().sum(), (x, w))
    b.requires_grad_()
    for ours, theirs in zip((dx, dw), torch.autograd.grad(made().sum(), (x, w))):
        assert torch.equal(ours, theirs)
    assert any(asked[0]) and not any(asked[1])
