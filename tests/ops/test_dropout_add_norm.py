"""What the grid cannot say: the mask is dropout's own, p = 0 is the plain operators, and blocks that take several rows, with races watched."""

import pytest
import torch

import rooftile
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.ops._shared import philox
from rooftile.ops.dropout_add_norm.spec import LAYER, RMS
from rooftile.workbench.check import with_gradients

KERNELS = ["reference", "cuda.v1_naive", "cuda.v2_rows"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("columns", [64, 67])
def test_the_mask_is_that_of_dropout_forward_and_backward(kernel, columns):
    op, seed, p = OPS["dropout_add_norm"], torch.tensor(-(2**50) + 11), 0.3
    x, residual = torch.rand(5, columns) + 0.5, torch.zeros(5, columns)
    wanted = rooftile.dropout(x, p, seed=seed)
    call = {"x": x, "residual": residual, "weight": None, "bias": None, "seed": seed, "p": p, "eps": 1e-5, "norm": "layer"}
    with simulator.active("checks"):
        if op.kernel(kernel).refuse(call):
            assert columns == 67 and "no multiple of the 16" in op.kernel(kernel).refuse(call)
            return
        _, total, mean, rstd = op.kernel(kernel).bound(op.kernel(kernel).heuristic(call))(*call.values())
        torch.testing.assert_close(total, wanted)
        back = op.backward.kernel(kernel)
        call = {"dout": torch.zeros_like(x), "dsum": x, "sum": total, "weight": None, "bias": None, "mean": mean, "rstd": rstd, "seed": seed,
                "p": p, "norm": "layer"}  # fmt: skip
        dx, dr, *_ = back.bound(back.heuristic(call))(*call.values())
    torch.testing.assert_close(dx, wanted)
    torch.testing.assert_close(dr, x)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_without_dropout_it_is_the_plain_operator(norm):
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    plain = rooftile.add_layernorm if norm == "layer" else rooftile.add_rmsnorm
    wanted = plain(x, residual, weight, eps=1e-5)
    for made in (
        rooftile.dropout_add_norm(x, residual, weight, p=0.0, norm=norm),
        rooftile.dropout_add_norm(x, residual, weight, p=0.7, norm=norm, training=False),
    ):
        assert all(torch.equal(a, b) for a, b in zip(made, wanted))
    with_bias = rooftile.dropout_add_norm(x, residual, weight, torch.ones(8), p=0.0, norm=norm)
    torch.testing.assert_close(with_bias[0], wanted[0] + 1)


def test_without_dropout_no_seed_is_drawn():
    """An evaluation must not move what the next step draws."""
    x, w, state = torch.randn(2, 8), torch.ones(8), torch.get_rng_state()
    for norm in ("layer", "rms"):
        rooftile.dropout_add_norm(x, x, w, w, 0.5, norm=norm, training=False)
        assert torch.equal(torch.get_rng_state(), state)
    rows = torch.vmap(lambda row: rooftile.dropout_add_norm(row, row, w, w, 0.0, norm="rms")[0])(x)
    torch.testing.assert_close(rows, rooftile.dropout_add_norm(x, x, w, w, 0.0, norm="rms")[0])


def test_the_composition_of_three_operators_has_the_same_values_and_gradients():
    leaves = [t.requires_grad_() for t in (torch.randn(4, 12), torch.randn(4, 12), torch.rand(12), torch.randn(12))]
    x, residual, weight, bias = leaves
    seed, (a, b) = torch.tensor(5), torch.randn(2, 4, 12)
    out, total = rooftile.dropout_add_norm(x, residual, weight, bias, 0.4, seed=seed)
    ours = torch.autograd.grad((out * a + total * b).sum(), leaves)
    again, s = rooftile.add_layernorm(rooftile.dropout(x, 0.4, seed=seed), residual, weight, bias)
    theirs = torch.autograd.grad((again * a + s * b).sum(), leaves)
    for u, v in zip((out, total, *ours), (again, s, *theirs)):
        torch.testing.assert_close(u, v)


@pytest.mark.parametrize("params", [LAYER, RMS], ids=["layer", "rms"])
def test_blocks_take_row_after_row(params):
    for op in with_gradients([OPS["dropout_add_norm"]]):
        call = op.spec.draw(Case({"M": 5, "N": 2048}, torch.bfloat16, params))
        k = op.kernel("cuda.v2_rows")
        wanted = op.spec.reference(*call.values())
        for config in (k.heuristic(call), {**k.heuristic(call), "stages": 1}):
            with simulator.active("all"):
                assert k.refuse(call) is None
                made = k.bound(config)(*call.values())
            for a, b in zip(made, wanted):
                torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_messages():
    x = torch.ones(2, 4)
    for call, words in [
        ({"p": 1.5}, "p is 1.5, it lies between 0 and 1"),
        ({"p": 1.5, "training": False}, "p is 1.5, it lies between 0 and 1"),
        ({"norm": "batch"}, "norm is 'batch', takes layer or rms"),
        ({"norm": "batch", "p": 0.0}, "norm is 'batch', takes layer or rms"),
        ({"weight": torch.ones(5)}, "N is 5 in weight, but 4 in x"),
        ({"x": [1.0, 2.0]}, "dropout_add_norm: x must be a tensor, got list"),
    ]:
        with pytest.raises(ValueError, match=words):
            rooftile.dropout_add_norm(**{"x": x, "residual": x, **call})


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "triton.online", "cuda.v1_naive", "cuda.v2_rows"])
def test_the_mask_beyond_2_31_elements(kernel):
    """The last row's counters have more than 29 bits, its elements more than 31; 18 GB."""
    m, n, p, seed = 2**19 + 3, 4096, 0.5, torch.tensor(2**50 + 5, device="cuda")
    x = torch.ones(m, n, dtype=torch.bfloat16, device="cuda")
    k = OPS["dropout_add_norm"].kernel(kernel)
    call = {"x": x, "residual": torch.zeros_like(x), "weight": None, "bias": None, "seed": seed, "p": p, "eps": 1e-5, "norm": "rms"}
    total = k.bound(k.heuristic(call))(*call.values())[1]
    first = (m - 1) * n
    words = torch.stack(philox.philox(torch.arange(first // 4, (first + n) // 4, device="cuda"), seed), -1).reshape(-1)
    assert torch.equal(total[-1] != 0, words >= philox.threshold(p))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_rows_without_columns_have_statistics_as_the_fake_says(norm):
    op = OPS["dropout_add_norm"]
    x = torch.ones(5, 0)
    call = {"x": x, "residual": x, "weight": None, "bias": None, "seed": torch.tensor(1), "p": 0.5, "eps": 1e-5, "norm": norm}
    assert [t.shape for t in op.launch(*call.values())] == [t.shape for t in op.spec.empty_returns(call)]
